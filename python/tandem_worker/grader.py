"""Grader worker: scores samples with a built-in reward or the user's function, and says of each that failed why."""

import errno
import math
import random
import signal
import socket
import sys
import traceback

from tandem_worker import protocol, rewards
from tandem_worker.dialects import Function, WrongCount, describe
from tandem_worker.protocol import UserFault, one_line, with_article


MAX_TRACE_CHARACTERS = 10000  # the end, which says most; a message can be as long as it likes
REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS)  # as the sandbox answers
SANDBOX_HINT = "; reward code has no network and one scratch folder, $TMPDIR; --rm-sandbox off lifts that"


class WrongType(Exception):
    pass


def failure(kind, reason):
    return {"failed": kind, "reason": one_line(reason)}


def number(value):
    """A Python number, a bool, or what NumPy and PyTorch make of one."""
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return float(value)
    raise WrongType(f"the reward is {with_article(type(value).__name__)}, not a number")


class Worker:
    _dialect = None
    _function = None

    def load(self, rm_type, custom_rm_path, reward_key, group_rm, label_key, arguments, sandboxed):
        if self._dialect is None:  # else this is a worker whose warm parent has done it
            self._dialect = self._load(rm_type, custom_rm_path, group_rm, label_key, arguments)
        self._sandboxed = sandboxed
        self._reward_key = reward_key
        return {"dialect": self._dialect}

    def _load(self, rm_type, custom_rm_path, group_rm, label_key, arguments):
        if custom_rm_path:
            self._function = Function(custom_rm_path, group_rm, label_key, arguments)
            return self._function.dialect
        if rm_type not in rewards.MAKERS:
            raise UserFault(f"--rm-type {rm_type}: not one of {', '.join(rewards.MAKERS)}")
        self._rule = rewards.MAKERS[rm_type]()
        return "built-in"

    def grade(self, samples):
        # A function that draws random numbers gives the same ones whichever process it runs in.
        seed = samples[0]["sample_id"]
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)
        try:
            if self._function is None:
                return [self._graded(lambda sample=sample: self._outcome(self._rule(sample))) for sample in samples]
            values = self._graded(lambda: self._function.call(samples))
            if not isinstance(values, list):  # the call failed, and with it all its samples
                return [values] * len(samples)
            return [self._graded(lambda value=value: self._outcome(value)) for value in values]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that user code left must not ring in the next call

    def _graded(self, grade):
        try:
            return grade()
        except MemoryError as error:
            return failure("memory", self._describe(error))
        except rewards.TookTooLong as error:
            return failure("deadline", error)
        except WrongCount as error:
            return failure("wrong_count", error)
        except WrongType as error:
            return failure("wrong_type", error)
        except BaseException as error:  # sys.exit() in a reward function ends a grade, not the grader
            print(traceback.format_exc()[-MAX_TRACE_CHARACTERS:], file=sys.stderr)
            return failure("exception", self._describe(error))

    def _describe(self, error):
        text = describe(error) if self._function is None else self._function.describe(error)
        refused = isinstance(error, socket.gaierror) or (isinstance(error, OSError) and error.errno in REFUSALS)
        return text + SANDBOX_HINT if self._sandboxed and refused else text

    def _outcome(self, value):
        extras = {}
        if isinstance(value, dict):
            key = self._reward_key or "score"
            if key not in value:
                keys = ", ".join(str(k) for k in value) or "none"
                raise WrongType(f"the reward is a dict without {key!r} (its keys: {keys}); name one with --reward-key")
            extras = {str(k): float(v) for k, v in value.items() if k != key and isinstance(v, (bool, int, float))}
            value = value[key]
        if value is None:
            raise WrongType("the reward is None")
        try:
            reward = number(value)
        except OverflowError:
            return failure("not_finite", "the reward is an integer beyond floating point")
        if not math.isfinite(reward):
            return failure("not_finite", f"the reward is {reward}")
        return {"reward": reward, "extras": {k: v for k, v in extras.items() if math.isfinite(v)}}


def main():
    worker = Worker()
    protocol.serve({"load": worker.load, "grade": worker.grade}, forks="tandem_worker.grader")


if __name__ == "__main__":
    main()
