"""Functions with the parameters and results of the examples on TRL's pages (grpo_trainer.md, "Using a custom reward
function", examples 1 to 6, and the functions of trl.rewards). The bodies are ours: what counts is how they are called
and what they give back."""

import asyncio
import math


def box_of(text):
    begin = text.find("\\boxed{")
    return None if begin < 0 else text[begin + 7 : text.index("}", begin)]


def by_tokens(completion_ids, **kwargs):  # example 1
    lengths = map(len, completion_ids)
    return [length / 2 for length in lengths]


def by_characters(completions, **kwargs):  # example 1.1
    return [0.5 * len(text) for text in completions]


def of_a_format(completions, **kwargs):  # example 2, of messages
    contents = [completion[0]["content"] for completion in completions]
    return [float(c.startswith("<think>") and "</think><answer>" in c and c.endswith("</answer>")) for c in contents]


def of_a_reference(completions, ground_truth, **kwargs):  # example 3
    return [float(box_of(completion) == truth) for completion, truth in zip(completions, ground_truth)]


def of_one_task(prompts, completions, task, **kwargs):  # example 4
    rewards = []
    for prompt, completion, name in zip(prompts, completions, task):
        rewards.append((1.0 if completion in prompt else -1.0) if name == "math" else None)
    return rewards


async def after_a_wait(prompts, completions, **kwargs):  # example 5
    await asyncio.sleep(0.02)
    return [float(bool(text)) for text in completions]


def with_logs(completions, ground_truth, log_extra=None, log_metric=None, **kwargs):  # example 6
    answers = list(map(box_of, completions))
    right = [answer == truth for answer, truth in zip(answers, ground_truth)]
    if log_extra is not None:
        log_extra("expected", ground_truth)
        log_extra("answered", ["nothing" if answer is None else answer for answer in answers])
    if log_metric is not None:
        log_metric("share right", right.count(True) / len(right))
    return right


def accuracy(completions: list, solution: list, log_extra=None, **kwargs) -> list:  # trl.rewards.accuracy_reward
    return [None if truth == "?" else float(c[0]["content"] == truth) for c, truth in zip(completions, solution)]


def reasoning_accuracy(completions, solution, reasoning_delimiters=None, log_extra=None, **kwargs):
    delimiters = reasoning_delimiters or ["</think>"]
    return [float(c[0]["content"].split(delimiters[0])[-1] == truth) for c, truth in zip(completions, solution)]


class Cosine:  # trl.rewards.get_cosine_scaled_reward() gives such an object
    def __init__(self, max_len):
        self.max_len = max_len

    def __call__(self, completions, solution, completion_ids, **kwargs):
        return [math.cos(math.pi * min(len(ids) / self.max_len, 1.0)) for ids in completion_ids]


class Repetition:  # trl.rewards.get_repetition_penalty_reward() and get_soft_overlong_punishment()
    def __call__(self, completion_ids, **kwargs):
        return [len(set(ids)) / len(ids) - 1.0 for ids in completion_ids]


cosine = Cosine(4)
repetition = Repetition()


def of_prompts(prompts, **kwargs):
    return [float(len(prompt)) for prompt in prompts]


def of_metadata(completions, metadata):
    return [row["weight"] for row in metadata]


def centred(completions, **kwargs):
    mean = sum(map(len, completions)) / len(completions)
    return [len(completion) - mean for completion in completions]


def of_truncated(completions, truncated, **kwargs):
    return [-1.0 if cut else 1.0 for cut in truncated]


def of_all_names(**columns):  # the marks are missing: refused
    return [0.0]
