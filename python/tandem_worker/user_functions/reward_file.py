"""The user's file with a reward function: found, imported, and quoted where it raised something."""

import importlib.util
import inspect
import os
import sys
import traceback

from tandem_worker.outcomes import describe
from tandem_worker.protocol import UserFault, with_article
from tandem_worker.user_functions import hints, slime_generation, slime_sample


def load_function(spec, sandboxed, flag="--custom-rm-path"):
    """FILE.py:NAME to the function; `flag` has it, for messages. The file's folder comes first on the import path, as when
    Python runs a file."""
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name:
        raise UserFault(f"{flag} {spec}: write it as FILE.py:FUNCTION")
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise UserFault(f"{flag} {spec}: {path} is no file")
    sys.path.insert(0, os.path.dirname(path))
    slime_sample.STAND_INS.update(slime_generation.STAND_INS)  # one file may hold a reward and a generate function
    slime_sample.stand_in_for_slime()
    module_spec = importlib.util.spec_from_file_location("tandem_custom_reward", path)
    if module_spec is None:
        raise UserFault(f"{flag} {spec}: {path} is not a Python file (its name must end in .py)")
    if sandboxed:
        hints.watch_lookups(path)
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # dataclasses and pickle look a function's module up there
    try:
        module_spec.loader.exec_module(module)
    except BaseException as error:  # sys.exit() at import is the file's fault too
        traceback.print_exc()
        raise UserFault(f"{flag} {spec}: {describe(error, path)}{hints.hint_of(error, sandboxed)}") from None
    function = getattr(module, name, None)
    if function is None:
        own = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        listed = ", ".join(sorted(own)) or "none"
        raise UserFault(f"{flag} {spec}: the file has no {name}; its functions: {listed}")
    if not callable(function):
        raise UserFault(f"{flag} {spec}: {name} is {with_article(type(function).__name__)}, not a function")
    return function
