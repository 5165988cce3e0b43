"""What a grade says: a number, what came with it, or why there is none. The program reads these messages within the
same bounds (src/reward/grade_messages.cc)."""

import json
import math
import os
import traceback

from tandem_worker.protocol import is_finite_number, one_line, with_article

MAX_NAMES = 256
MAX_NAME_CHARACTERS = 200
MAX_TEXT_CHARACTERS = 2000


class Failed(Exception):
    """A sample that gets no grade. `kind` is the class that the program counts it in."""

    kind = "exception"


class BadLine(Failed):
    """The line of the data cannot be graded, whatever the response says."""

    kind = "line"


class WrongType(Failed):
    kind = "wrong_type"


class WrongCount(Failed):
    """A function of several samples gave back another number of rewards."""

    kind = "wrong_count"


class NotFinite(Failed):
    kind = "not_finite"


class NotApplicable(Failed):
    """A TRL function gave None for this sample."""

    kind = "none"


class SaidToHaveFailed(Failed):
    """A slime function set sample.status to FAILED."""

    kind = "status"


class DeadlinePassed(Failed):
    kind = "deadline"


def describe(error, path=""):
    """`ValueError: text (reward.py:12)`: the last line of the user's own file that the error passed through."""
    text = f"{type(error).__name__}: {one_line(error, 300)}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        return text
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{text} ({os.path.basename(path)}:{lines[-1]})" if lines else text


def failure(kind, reason):
    return {"failed": kind, "reason": one_line(reason)}


def number(value, what):
    """A Python number, a bool, or what NumPy and PyTorch make of one."""
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return float(value)
    raise WrongType(f"{what} is {with_article(type(value).__name__)}, not a number")


def finite(value, what):
    try:
        result = number(value, what)
    except OverflowError:
        raise NotFinite(f"{what} is an integer beyond floating point") from None
    if not math.isfinite(result):
        raise NotFinite(f"{what} is {result}")
    return result


def checked_name(name, what):
    name = str(name)
    if len(name) > MAX_NAME_CHARACTERS:
        raise WrongType(f"{what} {one_line(name, 40)!r} has {len(name)} characters; at most {MAX_NAME_CHARACTERS}")
    return name


def reward(value, reward_key):
    """The message of a reward as a function returns it: a number, or a dict of numbers and other things."""
    extras = {}
    if isinstance(value, dict):
        key = reward_key or "score"
        if key not in value:
            keys = ", ".join(str(k) for k in value) or "none"
            raise WrongType(f"the reward is a dict without {key!r} (its keys: {keys}); name one with --reward-key")
        extras = {
            checked_name(k, "the key"): float(v)
            for k, v in value.items()
            if k != key and is_finite_number(v)
        }
        if len(extras) > MAX_NAMES:
            raise WrongType(f"the reward is a dict of {len(extras)} numbers; at most {MAX_NAMES}")
        value = value[key]
    return {"reward": finite(value, "the reward"), "extras": extras}


def json_within(value, what, max_characters):
    """The text of a value that a function left, as JSON."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongType(
            f"{what} holds something that is no JSON ({one_line(error, 100)}); keep numbers, texts, lists and dicts"
        ) from None
    if len(text) > max_characters:
        raise WrongType(f"{what} has {len(text)} characters as JSON; at most {max_characters}")
    return text


def column_value(value):
    """A value of a logged column as JSON has it: numbers, bools, None and text as they are, all else as text."""
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        try:
            value = value.item()
        except (TypeError, ValueError, RuntimeError):  # an array of several
            pass
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        if not isinstance(value, int) or abs(value) < 1 << 63:
            return value
    text = str(value)
    return text if len(text) <= MAX_TEXT_CHARACTERS else text[: MAX_TEXT_CHARACTERS - 3] + "..."
