"""Data that a script holds (lists of dicts, Hugging Face datasets) as the JSONL files that the program reads."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import TypeGuard

from tandem._program import EnvironmentFault, UserFault

_EXIT_USER, _EXIT_ENVIRONMENT = 2, 3
_DIGEST_DIGITS = 16
# Takes the name of an option and its rows, returns the file that holds them.
WriteRows = Callable[[str, Iterable[object]], pathlib.Path]


def with_files(options: Mapping[str, object], write: WriteRows) -> dict[str, object]:
    """The options with a file in the place of rows. `prompt_data` is a path, a list of paths or rows;
    `eval_prompt_data` a list of names and sources, or a dict of them."""
    result = dict(options)
    if "prompt_data" in result:
        result["prompt_data"] = _source("prompt_data", result["prompt_data"], write)
    sets = result.get("eval_prompt_data")
    if _are_rows(sets):
        raise UserFault('eval_prompt_data: a data set needs a name: eval_prompt_data={"NAME": rows}', _EXIT_USER)
    if isinstance(sets, Mapping):
        sets = [item for name_and_source in sets.items() for item in name_and_source]
    if isinstance(sets, (list, tuple)):
        names = ["", *sets[:-1]]  # of each item, that before it
        result["eval_prompt_data"] = [
            _source(f"eval_prompt_data_{name}", item, write) for name, item in zip(names, sets)
        ]
    return result


def _source(name: str, value: object, write: WriteRows) -> object:
    if isinstance(value, Mapping):
        keys = ", ".join(map(repr, value))
        raise UserFault(f"{name}: is a dict of {keys}; give one of them, or a list of dicts", _EXIT_USER)
    if _are_rows(value):
        return write(name, value)
    return [_source(name, item, write) for item in value] if isinstance(value, (list, tuple)) else value


def _are_rows(value: object) -> TypeGuard[Iterable[object]]:
    if value is None or isinstance(value, (str, bytes, os.PathLike, Mapping)):
        return False
    if isinstance(value, (list, tuple)):
        return not value or isinstance(value[0], Mapping)
    return hasattr(value, "__iter__") or hasattr(value, "__getitem__")


def write_rows(name: str, rows: Iterable[object], folder: pathlib.Path) -> pathlib.Path:
    """Writes FOLDER/NAME-DIGEST.jsonl, one row a line, and returns its path. The same rows give the same file, and
    other rows another one, so a run that resumes finds what it began with."""
    digest = hashlib.sha256()
    count = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{name}.tmp-", delete=False) as file:
            try:
                for row in rows:
                    line = _line(name, count, row)
                    digest.update(line)
                    file.write(line)
                    count += 1
                if count == 0:
                    raise UserFault(f"{name}: there are no rows", _EXIT_USER)
                path = folder / f"{name}-{digest.hexdigest()[:_DIGEST_DIGITS]}.jsonl"
                os.fchmod(file.fileno(), 0o644)  # as other files of a run, not for this user alone
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise EnvironmentFault(f"{name}: cannot write into {folder}: {error.strerror or error}", _EXIT_ENVIRONMENT)
    return path


def _line(name: str, index: int, row: object) -> bytes:
    if not isinstance(row, Mapping):
        raise UserFault(
            f"{name}: row {index} is {type(row).__name__} {str(row)[:40]!r}, not a dict; a DataFrame gives dicts as "
            "frame.to_dict('records')",
            _EXIT_USER,
        )
    try:
        return _json(row)
    except (TypeError, ValueError) as error:
        problem = str(error)
    for column, value in row.items():
        try:
            _json({column: value})
        except (TypeError, ValueError) as error:
            problem = f"column {column!r}: {error}"
            break
    raise UserFault(f"{name}: row {index} cannot be written as JSON: {problem}; leave it out", _EXIT_USER)


def _json(row: Mapping[str, object]) -> bytes:
    """One line. ValueError and TypeError: a value that JSON does not have."""
    if not all(isinstance(key, str) for key in row):
        raise TypeError("a column's name is no text")
    return json.dumps(dict(row), ensure_ascii=False, allow_nan=False, default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    to_list = getattr(value, "tolist", None)  # numbers and arrays of numpy and torch
    if to_list is None:
        raise TypeError(f"{type(value).__name__} is no text, number, list or dict")
    return to_list()
