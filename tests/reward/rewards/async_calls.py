"""Async functions of one sample, and what happens when calls of one process are under way together."""

import asyncio
import os
import random
import sys
import time

import numpy

started = finished = 0


async def waits(args, sample):
    await asyncio.sleep(float(sample.response))
    return 1.0


async def together(args, sample):
    """How many calls of this process had begun when this one ended."""
    global started
    started += 1
    await asyncio.sleep(0.3)
    return float(started)


async def draws(data_source, solution_str, ground_truth):
    """Random numbers on both sides of an await, of Python's and NumPy's global generators."""
    numbers = [random.random(), numpy.random.random()]
    await asyncio.sleep(0.01 + 0.02 * random.random())
    return {"score": random.random() + numpy.random.random(), "first": numbers[0], "second": numbers[1]}


async def sum_of_group(completions, **kwargs):
    await asyncio.sleep(0.2)
    return [float(sum(map(len, completions)))] * len(completions)


async def computes(args, sample):
    """Computes after an await, as a judge's answer is read: the loop is busy for all others."""
    await asyncio.sleep(0.05)
    end = time.monotonic() + 0.25
    while time.monotonic() < end:
        pass
    return 1.0


async def background(args, sample):
    task = asyncio.ensure_future(asyncio.sleep(0.01, result=0.5))
    return await task


async def hangs_for_ever():
    await asyncio.Event().wait()


async def will_not_be_cancelled():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


async def exits():
    await asyncio.sleep(0.01)
    sys.exit(3)


async def exits_in_a_task():
    async def inner():
        sys.exit(3)

    await asyncio.ensure_future(inner())


async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(1)


async def blocks():
    await asyncio.sleep(0.05)
    time.sleep(1000)


async def dies():
    await asyncio.sleep(0.05)
    os._exit(5)


async def eats_memory():
    await asyncio.sleep(0.05)
    blocks = []
    while True:
        blocks.append(bytearray(1 << 24))


async def forgets_to_await():
    return asyncio.sleep(1)


FAULTS = {f.__name__: f for f in (hangs_for_ever, will_not_be_cancelled, exits, exits_in_a_task, cancels_itself, blocks,
                                  dies, eats_memory, forgets_to_await)}  # fmt: skip


async def score(data_source, solution_str, ground_truth):
    if solution_str in FAULTS:
        return await FAULTS[solution_str]()
    await asyncio.sleep(0.1)
    return float(solution_str)
