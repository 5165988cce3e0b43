"""The `tandem` program: where it lies, what it needs around it, and what its exit codes say."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, TextIO

# The program's exit codes; docs/TESTING.md has the list.
_EXIT_USER, _EXIT_ENVIRONMENT = 2, 3
# A run that a signal stopped is saved, and can go on.
_EXIT_STOPPED = (129, 130)
_EXIT_UNSAVED = 143
_CHUNK_BYTES = 1 << 16
_WATCH_S = 0.05


class TandemError(Exception):
    """The program ended with an error. `exit_code` is its exit code, the text the last line that it said."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


class UserFault(TandemError, ValueError):
    """A flag, a file or a reward is wrong (exit code 2). The text names it and the remedy."""


class EnvironmentFault(TandemError, OSError):
    """The machine refused something: memory, disk, a device, a library (exit code 3)."""


@functools.cache
def program_path() -> str:
    """The program that this package starts: the one beside it where it was installed from a wheel, else the one that
    the shell would find."""
    beside = pathlib.Path(__file__).parent / "bin" / "tandem"
    found = str(beside) if beside.is_file() else shutil.which("tandem")
    if found is None:
        raise EnvironmentFault(
            "no program `tandem` beside this package or on the PATH: install the wheel, or put build/release/src/cli "
            "of a clone on the PATH",
            _EXIT_ENVIRONMENT,
        )
    return found


def environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment that the program is started in: the given variables (None: this process's) and, for an installed
    program, where it finds LibTorch and its interpreter."""
    variables = dict(os.environ if given is None else given)
    if pathlib.Path(program_path()).parent != pathlib.Path(__file__).parent / "bin":
        return variables  # a clone's: it knows both
    variables.setdefault("TANDEM_WORKER_PYTHON", sys.executable)
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        raise EnvironmentFault(
            f"torch is not installed for {sys.executable}, and the program computes with its libraries: "
            "pip install torch==2.11.0",
            _EXIT_ENVIRONMENT,
        )
    libraries = pathlib.Path(torch.submodule_search_locations[0]) / "lib"
    # If torch and tandem are in one site-packages folder, the program finds the libraries by itself.
    if libraries.parent.parent != pathlib.Path(__file__).parent.parent:
        places = [str(libraries), str(libraries.parent.parent / "nvidia" / "cu13" / "lib")]
        if variables.get("LD_LIBRARY_PATH"):
            places.append(variables["LD_LIBRARY_PATH"])
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(places)
    return variables


def flags_of(options: Mapping[str, object]) -> list[str]:
    """Flags as they are typed: `rollout_batch_size=32` is `--rollout-batch-size=32`, True `--name`, False `--no-name`,
    a list its values one after the other. None leaves the flag out."""
    words: list[str] = []
    for name, value in options.items():
        dashed = name.replace("_", "-")
        flag = "--" + dashed
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(flag if value else "--" + "no-" + dashed)
        elif isinstance(value, (list, tuple)):
            texts = [_word(name, item) for item in value]
            like_flag = next((text for text in texts if text.startswith("--")), None)
            if like_flag is not None and len(texts) > 1:
                raise UserFault(f"{name}: a list cannot hold a value that begins with -- ({like_flag!r})", _EXIT_USER)
            words += [f"{flag}={like_flag}"] if like_flag is not None else [flag, *texts] if texts else [f"{flag}="]
        else:
            words.append(f"{flag}={_word(name, value)}")
    return words


def _word(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float, os.PathLike)):
        raise UserFault(f"{name}: expects text, a number, True or False, or a list of them, not {value!r}", _EXIT_USER)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def failure(code: int, line: str) -> TandemError:
    """The exception of an exit code, with the program's last line."""
    text = line.removeprefix("tandem: error: ") or f"tandem ended with exit code {code}"
    kind = {_EXIT_USER: UserFault, _EXIT_ENVIRONMENT: EnvironmentFault}.get(code, TandemError)
    return kind(text, code)


def pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """A process's end of a pipe that it was started with."""
    assert stream is not None
    return stream


def show(text: str, stream: TextIO | None) -> None:
    """Writes to a stream of this program, if it has that. A reader of another process's lines must not end because
    nobody can be shown them: unless the lines are read all the same, that process waits."""
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):  # a disk is full, a pipe has no reader, the stream is closed
        stream.write(text)
        stream.flush()


class ErrorLines:
    """Copies a process's stderr to ours, line by line, and keeps its last line."""

    def __init__(self, process: subprocess.Popen[bytes]):
        self._last = b""
        self._thread = threading.Thread(target=self._copy, args=(pipe(process.stderr).fileno(),), daemon=True)
        self._thread.start()

    def _copy(self, file: int) -> None:
        # os.read, not the buffered stream: a thread that waits in a buffered stream holds its lock, and an interpreter
        # that shuts down aborts on a lock that it cannot take.
        rest = b""
        while chunk := os.read(file, _CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._show(line + b"\n")
        if rest:
            self._show(rest)

    def _show(self, line: bytes) -> None:
        self._last = line
        show(line.decode("utf-8", "replace"), sys.stderr)

    def last(self) -> str:
        """The last line; waits until the process has closed its stderr."""
        if threading.current_thread() is not self._thread:  # where garbage is collected is not ours to choose
            self._thread.join()
        return self._last.decode("utf-8", "replace").strip()


def run(words: list[str], *, output: bool = False, watch: Callable[[], bool] | None = None) -> str:
    """Runs a verb to its end and returns its standard output, or "" where that goes to ours. Ctrl-C reaches the program
    as it does from a shell: it saves what it has and ends, and KeyboardInterrupt follows.

    watch: called in this thread about twenty times a second, and once more when the program has ended. When it returns
    True the program is asked to save and end (SIGTERM); when it raises, the same, and the exception is raised when the
    program has ended. After either it is not called again.
    """
    process = subprocess.Popen(
        [program_path(), *words],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if output else None,
        stderr=subprocess.PIPE,
    )
    with process:
        errors = ErrorLines(process)
        interrupted = False
        raised: BaseException | None = None
        while True:
            try:
                if process.stdout is not None:
                    text = process.stdout.read().decode()
                else:
                    text = ""
                    while watch is not None and process.poll() is None:
                        try:
                            asked = watch()
                        except Exception as error:
                            raised, asked = error, True
                        if asked:
                            watch = None
                            if not interrupted:  # a second signal would end the program at once
                                process.terminate()
                        else:
                            time.sleep(_WATCH_S)
                code = process.wait()
                break
            except KeyboardInterrupt:
                interrupted = True  # the terminal has sent it to the program too; a second one ends it at once
        line = errors.last()
    try:
        if watch is not None:
            watch()
    except Exception as error:
        raised = error
    if raised is not None:
        raise raised from (failure(code, line) if code != 0 else None)
    if interrupted:
        raise KeyboardInterrupt
    if code == _EXIT_UNSAVED and words[0] in ("train", "sft"):
        raise TandemError("the run was stopped before anything was saved; overwrite=True begins it again", code)
    if code in _EXIT_STOPPED:
        raise TandemError("the run was stopped by a signal; it is saved, and load=... resumes it", code)
    if code != 0:
        raise failure(code, line)
    return text


def version() -> str:
    """The program's version."""
    return run(["--version"], output=True).split()[-1]


def main() -> None:
    """The command `tandem` of an installed wheel: becomes the program."""
    try:
        program, variables = program_path(), environment()
    except TandemError as error:
        print(f"tandem: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    os.execve(program, ["tandem", *sys.argv[1:]], variables)
