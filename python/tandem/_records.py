"""The records of metrics.jsonl: all that a run has written, and each as it is written, for callbacks."""

from __future__ import annotations

import inspect
import json
import os
import pathlib
from collections.abc import Callable, Mapping

from tandem._program import UserFault

Record = dict[str, float]
Callback = Callable[[Record], object]
KINDS = ("rollout", "train", "eval")  # each record has KIND/step
_KIND_OF_ARGUMENT = {"on_rollout": "rollout", "on_step": "train", "on_eval": "eval"}
_STOP = "stop"
_EXIT_USER = 2


def kind_of(record: Record) -> str:
    return next((kind for kind in KINDS if f"{kind}/step" in record), "")


def records_of(text: bytes) -> list[Record]:
    """The records of whole lines. Numbers that are not finite, which JSON cannot hold, are written as the texts "nan",
    "inf" and "-inf"; here they are numbers again."""
    return [
        {name: float(value) if isinstance(value, str) else value for name, value in json.loads(line).items()}
        for line in text.splitlines()
    ]


def callbacks_by_kind(
    verb: str, callbacks: Mapping[str, Callback | None], flags: Mapping[str, object]
) -> dict[str, Callback]:
    """The callbacks that are given, by the kind of their records. UserFault, before anything is started, for one that a
    record cannot be given to, and for a flag that would be a callback of another verb."""
    for name, value in flags.items():
        if name in _KIND_OF_ARGUMENT or (name.startswith("on_") and callable(value)):
            raise UserFault(f"{name}: {verb} has no such callback; it has {', '.join(callbacks)}", _EXIT_USER)
    for name, callback in callbacks.items():
        if callback is not None:
            _check_callback(name, callback)
    return {_KIND_OF_ARGUMENT[name]: callback for name, callback in callbacks.items() if callback is not None}


def _check_callback(name: str, callback: object) -> None:
    if not callable(callback):
        raise UserFault(f"{name}: expects a function of one record, not {callback!r}", _EXIT_USER)
    try:
        signature = inspect.signature(callback)
    except (TypeError, ValueError):
        return  # it is written in C, and does not say what it takes
    try:
        signature.bind({})
    except TypeError as error:
        raise UserFault(f"{name}: {callback!r} cannot be called with one record: {error}", _EXIT_USER) from None


class Follower:
    """Gives each record that a run adds to metrics.jsonl to the callback of its kind, in the order of the file.

    Made before the run starts. `callbacks`: by kind. `resumes`: the checkpoint in `directory` that the run resumes
    from, whose records are there already; None where it begins a file of its own.
    """

    def __init__(self, directory: pathlib.Path, callbacks: dict[str, Callback], resumes: pathlib.Path | None):
        self._callbacks = callbacks
        self._file = directory / "metrics.jsonl"
        # A run replaces its config.toml after it has cut metrics.jsonl back to the checkpoint, or removed that of an
        # earlier run, and before its first record. While it removes an earlier run there is no config.toml, and the old
        # records may still be there.
        self._config = directory / "config.toml"
        self._config_before = self._config_identity()
        self._offset = _bytes_at(resumes) if resumes is not None else 0
        self._has_begun = False

    def __call__(self) -> bool:
        """Calls the callbacks for what is new; True when one of them says "stop", and then for no record after it."""
        self._has_begun = self._has_begun or self._config_identity() not in (None, self._config_before)
        if not self._has_begun or not self._file.exists():
            return False
        with open(self._file, "rb") as file:
            file.seek(self._offset)
            lines = file.read().split(b"\n")
        for line in lines[:-1]:  # the last is empty, or half a record
            self._offset += len(line) + 1
            if self._call(*records_of(line)):
                return True
        return False

    def _call(self, record: Record) -> bool:
        kind = kind_of(record)
        if kind not in self._callbacks:
            return False
        answer = self._callbacks[kind](record)
        if answer is not None and answer != _STOP:
            raise TypeError(
                f'the callback of {kind} records returned {answer!r}: return "stop" to end the run, or None'
            )
        return answer == _STOP

    def _config_identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._config)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns


def _bytes_at(checkpoint: pathlib.Path) -> int:
    """How long metrics.jsonl was when the checkpoint was written; 0 where it is not there, which the run refuses."""
    try:
        state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
        return int(state["file_bytes"].get("metrics.jsonl", 0))
    except (OSError, ValueError, KeyError):
        return 0
