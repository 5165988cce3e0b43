"""The user's filter of --dynamic-sampling-filter-path, in slime's dialect: whether a group is trained on.

    def fn(args, samples, **kwargs) -> DynamicFilterOutput(keep, reason) or bool

`samples` are the samples of one group that have a reward, in their order. docs/SAMPLING.md says what they hold.
"""

import ast
import inspect
import os
import statistics
import textwrap
import types
from dataclasses import dataclass

from tandem_worker.outcomes import WrongType, describe
from tandem_worker.protocol import UserFault, one_line, with_article
from tandem_worker.user_functions import slime_sample
from tandem_worker.user_functions.reward_file import load_function

FLAG = "--dynamic-sampling-filter-path"
MAX_REASON_CHARACTERS = 80  # it becomes part of a metric's name
MIN_STD = 1e-6  # slime's
NOT_KEPT = "keep_when_insufficient is not supported: a dropped group stays dropped; return keep=True"


@dataclass
class DynamicFilterOutput:
    keep: bool
    reason: object = None
    keep_when_insufficient: bool = False  # slime's; it is refused with a sentence


def check_reward_nonzero_std(args, samples, **kwargs):
    """slime's, for filters that build on it."""
    rewards = [float(sample.get_reward_value(args)) for sample in samples]
    keep = len(rewards) > 1 and statistics.stdev(rewards) > MIN_STD
    return DynamicFilterOutput(keep=keep, reason=None if keep else f"zero_std_{round(rewards[0], 1)}")


class Call:
    """One call of the filter. Each sample of the group has the group's verdict as its grade: 1 is kept, 0 dropped."""

    def __init__(self, start, num_samples):
        self.start = start
        self.num_samples = num_samples
        self._reason = None

    def values(self, returned):
        keep, self._reason = verdict(returned)
        return [float(keep)] * self.num_samples

    def grade(self, i, value, reward_key):
        return {"reward": value, "extras": {}}

    def logs(self, i):
        return {"columns": {"reason": self._reason}} if self._reason is not None else {}


class GroupFilter:
    takes_group = True
    concurrent = False
    dialect = "filter"

    def __init__(self, spec, metadata_key, arguments, sandboxed):
        slime_sample.STAND_INS.update(
            {
                "slime.rollout.filter_hub.base_types": {"DynamicFilterOutput": DynamicFilterOutput},
                "slime.rollout.filter_hub.dynamic_sampling_filters": {
                    "DynamicFilterOutput": DynamicFilterOutput,
                    "check_reward_nonzero_std": check_reward_nonzero_std,
                },
            }
        )
        self._function = load_function(spec, sandboxed, FLAG)
        if inspect.iscoroutinefunction(self._function):
            raise UserFault(f"{FLAG} {spec}: is async, and slime calls filters without await; write a plain def")
        check_signature(self._function, spec)
        if asks_to_keep(self._function):
            raise UserFault(f"{FLAG} {spec}: {NOT_KEPT}")
        self._path = os.path.abspath(spec.rpartition(":")[0])
        self._metadata_key = metadata_key
        self._arguments = types.SimpleNamespace(**{name.replace("-", "_"): v for name, v in arguments.items()})

    def call(self, requests):
        samples = [graded_sample(request, self._metadata_key, self._arguments) for request in requests]
        return Call(lambda: self._function(self._arguments, samples), len(requests))

    def result_of(self, call):
        return call.start()

    def describe(self, error):
        return describe(error, self._path)


def check_signature(function, spec):
    try:
        inspect.signature(function).bind(None, [])
    except TypeError:
        raise UserFault(f"{FLAG} {spec}: cannot be called with (args, samples); write def fn(args, samples, **kwargs)") from None
    except ValueError:  # Python cannot tell its parameters: the call will
        pass


def asks_to_keep(function):
    """Whether the function's own text has keep_when_insufficient=True. A value that is computed is known in a call."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # it has no text of its own
        return False
    return any(
        node.arg == "keep_when_insufficient" and isinstance(node.value, ast.Constant) and bool(node.value.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword)
    )


def graded_sample(request, metadata_key, arguments):
    sample = slime_sample.sample_of(request, metadata_key)
    graded = request["graded"]
    key = getattr(arguments, "reward_key", "")
    sample.reward = {**graded["extras"], key: graded["reward"]} if key else graded["reward"]
    sample.remove_sample = graded["remove_sample"]
    sample.status = slime_sample.Status(graded["status"])
    return sample


def verdict(returned):
    """What the filter returned as (keep, reason); the reason is None for a group that is kept."""
    if getattr(returned, "keep_when_insufficient", False):
        raise WrongType(NOT_KEPT)
    keep = getattr(returned, "keep", returned)
    if hasattr(keep, "item") and not isinstance(keep, bool):  # of NumPy or PyTorch
        keep = keep.item()
    if not isinstance(keep, bool):
        what = with_article(type(keep).__name__)
        raise WrongType(f"the filter returned {what}; return True, False or DynamicFilterOutput(keep=..., reason=...)")
    reason = getattr(returned, "reason", None)
    return keep, None if keep or reason is None else one_line(str(reason), MAX_REASON_CHARACTERS)
