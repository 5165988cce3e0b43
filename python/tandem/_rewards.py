"""Reward functions of a script as flags: the file and name that the grader processes import, and their interpreter."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from tandem._program import UserFault

Reward = Callable[..., object]
_EXIT_USER = 2
# Options that name Python code of the user, as --print-config has them.
_USER_CODE = ("custom-rm-path", "custom-generate-function-path", "dynamic-sampling-filter-path",
              "custom-advantage-path")  # fmt: skip


def reward_flags(reward: Reward | Sequence[Reward] | None) -> dict[str, object]:
    """--custom-rm-path of one function or several."""
    if reward is None:
        return {}
    functions = list(reward) if isinstance(reward, (list, tuple)) else [reward]
    if not functions:
        raise UserFault("reward: the list is empty; give functions, or rm_type=... for a built-in reward", _EXIT_USER)
    return {"custom_rm_path": [_place_of(function) for function in functions]}


def _place_of(function: object) -> str:
    """FILE.py:name."""
    if isinstance(function, str):
        raise UserFault(
            f"reward: {function!r} is a text; rm_type={function!r} names a built-in reward, "
            'custom_rm_path="FILE.py:function" a function of a file',
            _EXIT_USER,
        )
    name = getattr(function, "__qualname__", "")
    try:
        file = inspect.getsourcefile(function) if callable(function) else None
    except TypeError:
        file = None
    if file is None or not os.path.isfile(file) or not name.isidentifier():
        raise UserFault(
            f"reward: {name or repr(function)} is not a function at the top level of a file, and the grader processes "
            'import it from there; write it into a file, or give custom_rm_path="FILE.py:function"',
            _EXIT_USER,
        )
    return f"{os.path.abspath(file)}:{name}"


def interpreter_flags(settings: Mapping[str, object]) -> dict[str, object]:
    """--rm-python: the interpreter that runs this script, where a reward is the user's and nobody names another."""
    has_code = any(settings.get(name) for name in _USER_CODE)
    return {"rm_python": sys.executable} if has_code and not settings.get("rm-python") and sys.executable else {}


def with_interpreter_hint(fault: UserFault) -> UserFault:
    """The same fault; where it is about an interpreter that this package chose, with what to do."""
    return UserFault(
        f"{fault}; rewards run in the interpreter that runs this script: install what is missing there, or name "
        "another one as rm_python=...",
        fault.exit_code,
    )
