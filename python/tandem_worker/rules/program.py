"""Runs the program of a sample for the rule `code` (code_rule.py), in a process of its own.

The process knows nothing of what the program should answer: the rule compares, elsewhere. It is started as
`python program.py SECONDS BYTES SOURCE [ANSWERS]`: SECONDS of processor time, BYTES of memory, the number of an open
descriptor from which the program's source is read. With ANSWERS, the number of another, the program's functions are
called: each line of standard input is a call, {"name", "args", "kwargs"}, and each line written to ANSWERS is what it
gave, {"value"} or {"error"}; values are in the form of encoded(). Without it the program reads standard input itself.

Needs Python 3.9 and none of Tandem's other files."""

import json
import os
import resource
import sys

# Programs of exercises use these names without importing them, and the graders of LiveCodeBench and APPS let them. The
# last line gives back built-in functions that the others have hidden, such as pow().
PREAMBLE = """
import bisect, collections, copy, datetime, functools, heapq, io, itertools, json, math, operator, os, random, re
import statistics, string, sys, time
from string import *
from collections import *
from heapq import *
from bisect import *
from math import *
from itertools import *
from functools import *
from operator import *
from typing import *
from builtins import *
"""
RECURSION_LIMIT = 50_000
MAX_FILE_BYTES = 4 << 20  # of what it writes, standard output too
PLAIN = (bool, int, str, type(None))
CONTAINERS = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": list}


class NotPlain(Exception):
    """A value of a kind that does not travel between the processes."""


def encoded(value):
    """A plain value as JSON can hold it, with its kind where JSON has none."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is float:
        return {"float": repr(value)}
    if kind is list:
        return [encoded(entry) for entry in value]
    if isinstance(value, dict):  # a Counter or a defaultdict too
        return {"dict": [[encoded(key), encoded(entry)] for key, entry in value.items()]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if kind.__name__ in CONTAINERS:
        return {kind.__name__: [encoded(entry) for entry in value]}
    if isinstance(value, tuple):  # a named one
        return {"tuple": [encoded(entry) for entry in value]}
    raise NotPlain(f"a value of type {kind.__name__} does not travel between the program and its tests")


def decoded(value):
    """What encoded() was given. ValueError where nothing was."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, list):
        return [decoded(entry) for entry in value]
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError("not a value of a program")
    ((kind, held),) = value.items()
    if kind == "float":
        return float(held)
    if kind == "dict":
        return {decoded(key): decoded(entry) for key, entry in held}
    if kind == "bytes":
        return bytes.fromhex(held)
    if kind == "complex":
        return complex(float(held[0]), float(held[1]))
    if kind in CONTAINERS:
        return CONTAINERS[kind](decoded(entry) for entry in held)
    raise ValueError("not a value of a program")


def set_limits(seconds, memory_bytes):
    """Hard ones, which hold for what the program starts too."""
    for which, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def function_named(name, names, given):
    """The program's function of that name, or the method of its class Solution. What it was given is not its own."""
    if name in names and names[name] is not given.get(name):
        return names[name]
    if "Solution" in names:
        return getattr(names["Solution"](), name)
    raise NameError(f"the program has no {name}")


def answer(call, names, given):
    """What a call gives, in the form of a line."""
    try:
        arguments = [decoded(entry) for entry in call["args"]]
        named = {key: decoded(entry) for key, entry in call["kwargs"].items()}
        return {"value": encoded(function_named(call["name"], names, given)(*arguments, **named))}
    except Exception as error:
        return {"error": type(error).__name__}


def main(seconds, memory_bytes, source, answers=None):
    with open(int(source), encoding="utf-8") as file:
        program = compile(file.read(), "program.py", "exec")
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # our files are none of the program's
    calls = sys.stdin
    if answers is not None:
        sys.stdin = open("/dev/null")  # the program is not to take the calls for its input
        answers = open(int(answers), "w", encoding="utf-8")
    names = {"__name__": "__main__" if answers is None else "program"}
    exec(PREAMBLE, names)
    given = dict(names)
    sys.setrecursionlimit(RECURSION_LIMIT)
    set_limits(int(seconds), int(memory_bytes))
    exec(program, names)
    for line in calls if answers is not None else ():
        answers.write(json.dumps(answer(json.loads(line), names, given)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
