"""One function per dialect, as users bring them."""

import asyncio
import random

import sibling  # lies beside this file


def trl(prompts, completions, answer, **kwargs):
    texts = [c[0]["content"] if isinstance(c, list) else c for c in completions]
    assert len(prompts) == len(completions) == len(answer) == len(kwargs["level"])
    return [float(text == a) + 0.5 * level for text, a, level in zip(texts, answer, kwargs["level"])]


def trl_without_kwargs(completions, label):
    return [sibling.points(c == expected) for c, expected in zip(completions, label)]


def trl_group(prompts, completions, **kwargs):
    return [len(c) - min(map(len, completions)) for c in completions]


async def trl_async(completions, **kwargs):
    await asyncio.sleep(0)
    return [1 for _ in completions]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "length": len(solution_str), "from_gsm": data_source == "gsm",
            "split": extra_info["split"], "big": float("inf")}  # fmt: skip


async def slime(args, sample):
    await asyncio.sleep(0)
    assert args.rm_note == "hello", args
    assert sample.status.value == "truncated" and sample.status is sample.Status.TRUNCATED
    assert sample.tokens[-sample.response_length :] == [7, 8, 9] and len(sample.tokens) == 5
    return {"good": 0.25 if sample.response == sample.label else sample.metadata["weight"], "other": True}


async def slime_group(args, samples):
    best = max(len(sample.response) for sample in samples)
    return [float(len(sample.response) == best) for sample in samples]


def two_marks(completions, solution_str):
    return [0.0]


def no_marks(a, b):
    return 0.0


def draws(data_source, solution_str, ground_truth):
    return random.random()


def draws_by_numpy(data_source, solution_str, ground_truth):
    """Imports NumPy itself: nobody has it before the first call of a process. Libraries look whether it is there first."""
    import importlib.util

    assert importlib.util.find_spec("numpy")
    import numpy

    return numpy.random.random()


not_callable = 5
