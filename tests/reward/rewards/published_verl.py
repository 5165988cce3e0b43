"""Functions with the parameters and results of verl's published ones: docs/preparation/reward_function.rst,
docs/advance/reward_loop.rst, verl/utils/reward_score and its tests. The bodies are ours."""

from typing import Any, Optional


def my_reward_fn(data_source, solution_str, ground_truth, extra_info=None):  # reward_function.rst
    return len(solution_str) / 100


def compute_score(solution_str, ground_truth, method="strict", format_score=0.0, score=1.0):  # reward_score/gsm8k.py
    answer = solution_str.rpartition("#### ")[2] if "#### " in solution_str else None
    if answer is None:
        return 0
    return score if answer == ground_truth else format_score


def default_compute_score(data_source, solution_str, ground_truth, extra_info=None, sandbox_fusion_url=None,
                          concurrent_semaphore=None, memory_limit_mb=None, **kwargs):  # fmt: skip
    if data_source == "openai/gsm8k":
        return compute_score(solution_str, ground_truth)
    if data_source.startswith("aime"):  # math_dapo.compute_score: text beside numbers
        right = solution_str == ground_truth
        return {"score": 2.0 * right - 1.0, "acc": right, "pred": solution_str}
    raise KeyError(data_source)


def compute_score_batched(data_sources, solution_strs, ground_truths, extra_infos):  # reward_score/math_batch.py
    return [1.0 - (said != meant) for said, meant in zip(solution_strs, ground_truths)]


def toolcall_shaping(data_source: Optional[str], solution_str: str, ground_truth: str,
                     extra_info: Optional[dict[str, Any]] = None, *, shaping_reward: float = 0.25,
                     trigger_substring: str = "<tool_call>", **kwargs) -> float:  # fmt: skip
    return compute_score(solution_str, ground_truth) + (shaping_reward if trigger_substring in solution_str else 0.0)


async def judged(data_source: str, solution_str: str, ground_truth: str, extra_info: dict, **kwargs):
    return {"score": len(extra_info["question"]), "acc": True, "genrm_response": "10"}


async def served(data_source, solution_str, ground_truth, extra_info, reward_router_address, reward_model_tokenizer):
    return 0.0  # reward_loop.rst: verl serves a model to it


def of_extra_info(data_source, solution_str, ground_truth, extra_info):
    assert extra_info["num_turns"] is None and extra_info["rollout_reward_scores"] == {}
    return {"score": extra_info["index"], "truncated": extra_info["truncated"]}


def of_reward_model(data_source, solution_str, ground_truth):  # the whole object, where --label-key reward_model
    return float(ground_truth["ground_truth"] == solution_str and ground_truth["style"] == "rule")
