"""Advantage worker: computes the advantages of a rollout with the user's function of --custom-advantage-path:

    def fn(groups[, state][, args]) -> a list with an item for each group, each a list with an item for each sample

The groups come in several requests, since a rollout may be large. Then one request calls the function, and further ones
fetch what it returned. docs/ADVANTAGES.md says what a function is given and may return."""

import inspect
import json
import os
import sys
import traceback
import types
from array import array
from dataclasses import dataclass, field

from tandem_worker import protocol
from tandem_worker.outcomes import Failed, WrongCount, WrongType, describe, failure, finite, json_within
from tandem_worker.protocol import UserFault, with_article
from tandem_worker.user_functions import hints
from tandem_worker.user_functions.line_metadata import own_metadata
from tandem_worker.user_functions.random_numbers import seed_generators
from tandem_worker.user_functions.reward_file import load_function

FLAG = "--custom-advantage-path"
GIVEN = ("groups", "state", "args")
MAX_TRACE_CHARACTERS = 10000  # the end, which says most
MAX_STATE_CHARACTERS = 8 << 20  # of the state as JSON; src/reward/advantage_function.cc has the same bound


@dataclass
class Piece:
    """Adjacent tokens of a response that one speaker gave: response.tokens[begin:end]."""

    begin: int
    end: int
    text: str
    is_sampled: bool  # by the engine; False: the generate function inserted it


@dataclass
class Sample:
    index: int  # of the sample in the run
    reward: float  # weighted sum of the rewards, less penalties; None: it has none, and cannot be trained on
    rewards: dict  # what each reward gave, by its name and before its weight; None: it failed or does not apply
    extras: dict  # other numbers of a reward that is a dict
    advantage: object  # what --advantage-estimator makes of the reward: a number, or a list with one for each token
    response: str
    tokens: array  # ids of the response
    log_probs: array  # of the tokens, under the policy that sampled them
    ref_log_probs: array  # under the reference; None: there is no reference
    loss_mask: array  # 1 where the loss counts
    status: str  # "completed", "truncated" or "aborted"
    removed: bool  # out of the loss, and still part of the group
    pieces: list = field(default_factory=list)

    @property
    def length(self):
        return len(self.tokens)

    @property
    def turns(self):
        """The pieces that the engine sampled; one for a sample that was made in one go."""
        return [piece for piece in self.pieces if piece.is_sampled]


@dataclass
class Group:
    prompt_index: int  # place of the prompt in the data, from 0; None: the rollout was read from a file
    prompt: object  # text, or a list of messages
    label: object
    metadata: dict
    samples: list


def sample_of(entry):
    length = len(entry["tokens"])
    begins = [piece["begin"] for piece in entry["pieces"]]
    pieces = [
        Piece(piece["begin"], end, piece["text"], piece["is_sampled"])
        for piece, end in zip(entry["pieces"], begins[1:] + [length])
    ]
    reference = entry["ref_log_probs"]
    return Sample(
        index=entry["index"],
        reward=entry["reward"],
        rewards=entry["rewards"],
        extras=entry["extras"],
        advantage=entry["advantage"],
        response=entry["response"],
        tokens=array("i", entry["tokens"]),
        log_probs=array("f", entry["log_probs"]),
        ref_log_probs=None if reference is None else array("f", reference),
        loss_mask=array("b", [int(digit) for digit in entry["loss_mask"]]),
        status=entry["status"],
        removed=entry["removed"],
        pieces=pieces or [Piece(0, length, entry["response"], True)],
    )


class Worker:
    _function = None

    def load(self, function, metadata_key, arguments, sandboxed):
        self._sandboxed = sandboxed
        self._metadata_key = metadata_key
        self._groups, self._values = [], None
        if self._function is None:  # else this is a fork of a process that has done it
            self._path = os.path.abspath(function.rpartition(":")[0])
            self._function = load_function(function, sandboxed, FLAG)
            self._names = given_names(self._function, function)
            self._arguments = types.SimpleNamespace(**{n.replace("-", "_"): v for n, v in arguments.items()})
        return True

    def add(self, groups):
        """Takes in the next groups of the rollout."""
        for group in groups:
            self._groups.append(
                Group(
                    prompt_index=group["prompt_index"],
                    prompt=group["prompt"],
                    label=group["label"],
                    metadata=own_metadata(group, self._metadata_key),
                    samples=[sample_of(entry) for entry in group["samples"]],
                )
            )
        return True

    def compute(self, rollout, state):
        """Calls the function on the groups that were added. `state` is JSON. {"state"}, or {"failed", "reason"}."""
        seed_generators(rollout)
        shapes = [[(len(sample.tokens), len(sample.turns)) for sample in group.samples] for group in self._groups]
        try:
            given = {"groups": self._groups, "state": json.loads(state), "args": self._arguments}
            returned = self._function(**{name: given[name] for name in self._names})
            self._values = checked(returned, shapes)
            return {"state": json_within(given["state"], "state", MAX_STATE_CHARACTERS)}
        except MemoryError as error:
            return failure("memory", self._describe(error))
        except Failed as error:
            return failure(error.kind, error)
        except BaseException as error:  # sys.exit() in the function ends a call, not the process
            print(traceback.format_exc()[-MAX_TRACE_CHARACTERS:], file=sys.stderr)
            return failure("exception", self._describe(error))

    def fetch(self, first, count):
        """What the function returned for some groups: for each sample None, a number, or a list of numbers."""
        return self._values[first : first + count]

    def _describe(self, error):
        return describe(error, self._path) + hints.hint_of(error, self._sandboxed)


def given_names(function, spec):
    """The names of GIVEN that the function takes."""
    if inspect.iscoroutinefunction(function):
        raise UserFault(f"{FLAG} {spec}: is async, and is called without await; write a plain def")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise UserFault(f"{FLAG} {spec}: Python cannot tell its parameters; wrap it in a def") from None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        names = list(GIVEN)
    else:
        names = [name for name in GIVEN if name in {parameter.name for parameter in parameters}]
    try:
        inspect.signature(function).bind(**dict.fromkeys(names))
    except TypeError:
        raise UserFault(
            f"{FLAG} {spec}: cannot be called with {', '.join(GIVEN)}; write def fn(groups), and name state and args "
            "where it needs them"
        ) from None
    if "groups" not in names:
        raise UserFault(f"{FLAG} {spec}: has no parameter groups; write def fn(groups)")
    return names


def as_list(value, what):
    if hasattr(value, "tolist"):  # of NumPy or PyTorch
        value = value.tolist()
    if not isinstance(value, (list, tuple, array)):
        raise WrongType(f"{what} is {with_article(type(value).__name__)}, not a list")
    return value


def checked(returned, shapes):
    """What a function returned, as the program reads it; shapes: the numbers of tokens and turns of each sample."""
    groups = as_list(returned, "what the function returned")
    if len(groups) != len(shapes):
        raise WrongCount(f"the function returned {len(groups)} items for {len(shapes)} groups")
    return [checked_group(group, shape, f"item {i} (group {i})") for i, (group, shape) in enumerate(zip(groups, shapes))]


def checked_group(returned, shapes, what):
    values = as_list(returned, what)
    if len(values) != len(shapes):
        raise WrongCount(f"{what} has {len(values)} items for the {len(shapes)} samples of the group")
    return [checked_value(value, *shape, f"{what}, sample {i}") for i, (value, shape) in enumerate(zip(values, shapes))]


def checked_value(value, num_tokens, num_turns, what):
    is_list = isinstance(value, (list, tuple, array)) or getattr(value, "ndim", 0) > 0
    if value is None:
        return None
    if not is_list:
        return finite(value, what)
    values = as_list(value, what)
    if len(values) not in (num_tokens, num_turns):
        raise WrongCount(
            f"{what}: {len(values)} numbers; return one, one for each of its {num_turns} turns, or one for each of its "
            f"{num_tokens} tokens"
        )
    return [finite(one, what) for one in values]


def main():
    worker = Worker()
    protocol.serve(
        {"load": worker.load, "add": worker.add, "compute": worker.compute, "fetch": worker.fetch},
        forks="tandem_worker.advantage",
    )


if __name__ == "__main__":
    main()
