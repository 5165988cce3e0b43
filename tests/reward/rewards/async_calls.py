"""Async functions of one sample, and what happens when calls of one process are under way together."""

import asyncio
import os
import random
import sys
import time

started = finished = 0
answer, wanted = asyncio.Event(), asyncio.Event()


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
    """Random numbers on both sides of an await, of Python's and NumPy's global generators. The first call of a process
    imports NumPy, while others are under way."""
    first = random.random()
    await asyncio.sleep(0.01 + 0.02 * random.random())
    import numpy

    second = numpy.random.random()
    await asyncio.sleep(0.01 + 0.02 * random.random())
    return {"score": random.random() + numpy.random.random(), "first": first, "second": second}


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


async def keeps_its_own_time(args, sample):
    """One call waits, for 0.3 s at most. What it waits for comes just before the other one computes for longer."""
    if sample.response == "computes":
        await wanted.wait()
        answer.set()
        time.sleep(0.6)
        return 1.0
    # The task cancels itself as asyncio.timeout(0.3) would, which Python 3.10 does not have.
    asyncio.get_running_loop().call_later(0.3, asyncio.current_task().cancel)
    wanted.set()
    try:
        await answer.wait()
    except asyncio.CancelledError:
        return 0.25
    return 0.5


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
