"""Calls of an async function of the user's that are under way together, in one event loop, as if each were alone: with a
clock that does not count the time in which another one computes, and with random numbers of its own."""

import asyncio
import inspect
import time
import types

from tandem_worker.outcomes import DeadlinePassed
from tandem_worker.user_functions.random_numbers import generator_states, seed_generators, set_generator_states

MIN_TURN_S = 0.1  # of computing, before the program is answered


class _Call:
    def __init__(self, seed, deadline_s, others_computed_s):
        self.seed = seed
        self.deadline_s = deadline_s
        self.begun = time.monotonic()
        self.computed_s = 0.0  # by this call
        self.others_computed_s = others_computed_s  # by all others, before it began
        self.states = None  # of the generators, since its last step
        self.task = None


async def _result_of(start):
    result = start()
    return await result if inspect.isawaitable(result) else result


class Overlap:
    def __init__(self, loop):
        self._loop = loop
        self._calls = {}
        self._computed_s = 0.0
        self._turn_ends = 0.0

    def begin(self, key, start, seed, deadline_s):
        """Takes in a call; start() gives an awaitable or a value."""
        call = _Call(seed, deadline_s, self._computed_s)
        call.task = self._loop.create_task(self._run(call, start))
        self._calls[key] = call

    def is_empty(self):
        return not self._calls

    def cancel(self, key):
        """Ends a call of which nobody wants to know more."""
        call = self._calls.pop(key, None)
        if call is not None:
            call.task.cancel()

    def go_on(self, wait_s, woken=None):
        """Goes on with all calls until one of them has ended, the future `woken` is done or wait_s have passed.
        [(key, end)] of those that ended; end() returns what the call returned, or raises what it raised."""
        if not self._calls:
            return []
        self._turn_ends = time.monotonic() + max(wait_s, MIN_TURN_S)
        tasks = [call.task for call in self._calls.values()] + ([] if woken is None else [woken])
        self._loop.run_until_complete(asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED))
        ended = []
        for key, call in list(self._calls.items()):
            if call.task.done():
                ended.append((key, lambda task=call.task: task.result()()))
            elif self._age_s(call) - self.waited_s(key) > call.deadline_s:
                call.task.cancel()
                ended.append((key, _raiser(DeadlinePassed(self.late_text(call.deadline_s)))))
            else:
                continue
            del self._calls[key]
        return ended

    def waited_s(self, key):
        """Returns the seconds of a call that its deadline does not count."""
        return 0.0

    def late_text(self, deadline_s):
        return f"did not answer: the deadline of {deadline_s:g} s passed"

    def _age_s(self, call):
        others_s = self._computed_s - call.computed_s - call.others_computed_s
        return time.monotonic() - call.begun - others_s

    async def _run(self, call, start):
        return await self._steps(call, _result_of(start))

    @types.coroutine
    def _steps(self, call, coroutine):
        """Drives a coroutine from await to await. What it raises is its own, even SystemExit, and ends no other."""
        error = None
        while True:
            while time.monotonic() > self._turn_ends:  # others have computed: the rest waits for the next turn
                error = (yield from _thrown_at(None)) or error
            self._before_step(call)
            try:
                awaited = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as end:
                return _returner(end.value)
            except BaseException as raised:
                return _raiser(raised)
            finally:
                self._after_step(call)
            error = yield from _thrown_at(awaited)

    def _before_step(self, call):
        if call.states is None:
            seed_generators(call.seed)
        else:
            set_generator_states(call.states, call.seed)
        self._step_began = time.monotonic()

    def _after_step(self, call):
        took_s = time.monotonic() - self._step_began
        call.computed_s += took_s
        self._computed_s += took_s
        call.states = generator_states()


def _thrown_at(awaited):
    """Yields to the loop. Returns what it throws in, such as the cancellation by a time-out of the function's own, which
    is for the function to see; None where it throws nothing."""
    try:
        yield awaited
    except (Exception, asyncio.CancelledError) as error:
        return error


def _returner(value):
    return lambda: value


def _raiser(error):
    def end():
        raise error

    return end
