"""Rewards that are added up. The first two are named and called as those of TRL's page (grpo_trainer.md, "Multi-task reward
functions"); the bodies are ours."""


def math_reward_func(prompts, completions, task, **kwargs):
    return [1.0 if name == "math" else None for name in task]


def coding_reward_func(prompts, completions, task, log_metric, log_extra, **kwargs):
    log_metric("called", 1)
    log_extra("task", task)
    return [-1.0 if name == "coding" else None for name in task]


async def by_slime(args, sample):
    sample.remove_sample = True
    return len(sample.tokens) + 1


def by_verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 2, "length": len(solution_str)}


def fails(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "raise":
        raise ValueError("asked for")
    return float("nan") if solution_str == "nan" else 1.0


async def masks_first(args, sample):
    sample.loss_mask = [0] + [1] * (sample.response_length - 1)
    return 1
