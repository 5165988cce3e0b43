"""What an error of the user's code may come from that the code cannot know: the sandbox, the variables and the memory
that it is given. A hint names the flag that changes that; it is the end of the error's line."""

import errno
import os
import re
import resource
import socket
import sys
import traceback

REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)  # as the sandbox answers
MAX_CAUSES = 100
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
NO_MEMORY = re.compile(r"cannot allocate memory|failed to map segment|bad_alloc|not enough memory", re.IGNORECASE)

SANDBOX = "; the sandbox has no network and one small scratch folder, $TMPDIR; --rm-sandbox off lifts that"
VARIABLE = "; the sandbox has few variables of the environment (docs/REWARDS.md): --rm-env {} lets this one through"
MEMORY = "; each process may have {} bytes of memory: --rm-memory-bytes raises that"
TORCH = (
    "; the torch of Tandem's own interpreter is for the program alone: "
    "name an interpreter that has torch with --rm-python"
)

_missed = []  # variables that the user's file has looked for in vain, the last one at the end


def hint_of(error, sandboxed):
    """The hint on an error that the user's code has raised; "" where there is none. sandboxed: the process is in the
    sandbox; without it there are the same limits of memory, and nothing else is kept away."""
    causes = list(causes_of(error))
    if sandboxed and any(_was_refused(cause) for cause in causes):
        return SANDBOX
    if sandboxed and (name := _missing_variable(error, causes)) is not None:
        return VARIABLE.format(name)
    if any(_lacked_memory(cause) for cause in causes):
        return MEMORY.format(resource.getrlimit(resource.RLIMIT_DATA)[0])
    if any(_lacked_torch(cause) for cause in causes):
        return TORCH
    return ""


def causes_of(error):
    """The error, and those that it comes from. Libraries wrap errors: in a cause or context, in `reason` (urllib), in
    `exceptions` (groups)."""
    seen = []
    waiting = [error]
    while waiting and len(seen) < MAX_CAUSES:
        cause = waiting.pop()
        if not isinstance(cause, BaseException) or any(cause is other for other in seen):
            continue
        seen.append(cause)
        yield cause
        waiting += [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
        waiting += getattr(cause, "exceptions", ())


def watch_lookups(path):
    """From now on os.getenv() and os.environ.get() note what code of the file asks for and does not find: the None that
    they give makes an error elsewhere."""
    kind = type(os.environ)
    get_plainly = kind.get

    def get(self, key, default=None):
        value = get_plainly(self, key, default)
        if value is None:
            caller = sys._getframe(1)
            if caller.f_code is os.getenv.__code__:
                caller = caller.f_back
            if caller is not None and caller.f_code.co_filename == path:
                _missed.append(key)
                del _missed[:-1]
        return value

    kind.get = get


def _was_refused(cause):
    """What a sandbox answers: a refusal, or no name server."""
    return isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno in REFUSALS)


def _missing_variable(error, causes):
    names = [cause.args[0] for cause in causes if isinstance(cause, KeyError) and _was_raised_by_environ(cause)]
    if isinstance(error, (TypeError, AttributeError)) and "None" in str(error):
        names += _missed
    return next((name for name in names if isinstance(name, str) and NAME.fullmatch(name)), None)


def _was_raised_by_environ(error):
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_code is type(os.environ).__getitem__.__code__


def _lacked_memory(cause):
    if isinstance(cause, MemoryError):
        return True
    if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
        return True
    return isinstance(cause, (ImportError, OSError, RuntimeError)) and NO_MEMORY.search(str(cause)[:2000]) is not None


def _lacked_torch(cause):
    """torch is not there, or has raised while it was imported: then it is not among the modules."""
    if not isinstance(cause, (ImportError, OSError)) or "torch" in sys.modules:
        return False
    if isinstance(cause, ModuleNotFoundError) and cause.name == "torch":
        return True
    return any(frame.f_globals.get("__name__") == "torch" for frame, _ in traceback.walk_tb(cause.__traceback__))
