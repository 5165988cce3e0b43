"""Instructions that a program can check: the table of all, by the names that IFEval, IFBench and IF-RLVR have for them, and how
their arguments are read from a line of data.

A check is a function (text, arguments...) -> bool. The annotation of an argument reads its value from JSON: it returns
the value that the check takes, or raises ValueError with the words that follow "is to be". A check must take a text of
any length and content in about linear time, and raise nothing."""

import inspect
import re

CHECKS = {}  # name -> function; ifeval.py, ifbench.py and ifrlvr.py fill it


def instruction(name, requires=None):
    """Enters a check into the table. `requires`: what its arguments must fulfil together, as a function of all of them and
    the words that follow the instruction's name where they do not."""

    def enter(check):
        CHECKS[name] = check
        check.requires = requires
        return check

    return enter


class BadInstruction(ValueError):
    """A line asks for what cannot be checked."""


def checked_by(name, arguments):
    """The function (text) -> bool for an instruction with its arguments, a dict; those that are null are not given.
    BadInstruction where the name or the arguments are not those of an instruction."""
    if not isinstance(name, str) or name not in CHECKS:
        raise BadInstruction(f"{name!r:.80} is none of the {len(CHECKS)} instructions of IFEval, IFBench and IF-RLVR")
    check = CHECKS[name]
    parameters = list(inspect.signature(check).parameters.values())[1:]
    given = {key: value for key, value in arguments.items() if value is not None}
    known = [parameter.name for parameter in parameters]
    for key in given:
        if key not in known:
            raise BadInstruction(f"{name} has no argument {key!r:.80}; it has {', '.join(known) or 'none'}")
    values = {}
    for parameter in parameters:
        if parameter.name not in given:
            raise BadInstruction(f"{name} needs the argument {parameter.name}")
        try:
            values[parameter.name] = parameter.annotation(given[parameter.name])
        except ValueError as error:
            raise BadInstruction(f"{parameter.name} of {name} is to be {error}") from None
    if check.requires and not check.requires[0](**values):
        raise BadInstruction(f"{name} {check.requires[1]}")
    return lambda text: check(text, **values)


# ------------------------------------------------------------------------------------------------------- arguments


def Count(value):
    """Data sets that were tables once have whole numbers as floats."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != value // 1:
        raise ValueError("a whole number of 0 or more")
    return int(value)


def Positive(value):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 1 or value != value // 1:
        raise ValueError("a whole number of 1 or more")
    return int(value)


def Percentage(value):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
        raise ValueError("a number from 0 to 100")
    return value


def Text(value):
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text that is not blank")
    return value


def Word(value):
    """Some lines have a list, of which the first is meant."""
    return Text(value[0] if isinstance(value, list) and value else value).strip()


def Character(value):
    if not isinstance(value, str) or len(value) != 1 or value.isspace():
        raise ValueError("a single character")
    return value


def Pattern(value):
    """Keywords are regular expressions, as published, alone, without white space at the ends, and within the expression of
    a check."""
    try:
        for form in (Text(value), value.strip(), value.lower(), rf"\b{value}\b"):
            re.compile(form)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"a regular expression, as published, and {value[:80]!r} is none: {error}") from None
    return value


def Patterns(value):
    if not isinstance(value, list) or not value:
        raise ValueError("a list of texts")
    return [Pattern(entry) for entry in value]


def Relation(value):
    """Returns the comparison of a number with a threshold."""
    if value == "less than":
        return lambda number, threshold: number < threshold
    if value == "at least":
        return lambda number, threshold: number >= threshold
    raise ValueError("'less than' or 'at least'")

