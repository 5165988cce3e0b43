"""Verbs of the program as functions: each takes the flags of `tandem VERB --help` with underscores for dashes."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from tandem._program import UserFault, flags_of, run
from tandem._records import KINDS, Callback, Follower, Record, callbacks_by_kind, kind_of, records_of
from tandem._rewards import Reward, interpreter_flags, reward_flags, with_interpreter_hint
from tandem._rows import with_files, write_rows

Config = Mapping[str, object] | str | os.PathLike[str] | None
_EXIT_USER = 2


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory, as `--save` names it."""

    directory: pathlib.Path

    @property
    def hf_directory(self) -> pathlib.Path:
        """The newest exported weights, a Hugging Face directory that transformers and `tandem.Engine` load."""
        return self.directory / "hf" / "latest"

    def metrics(self, kind: str | None = None) -> list[Record]:
        """The records of metrics.jsonl in the order in which they were written: all, or those of one kind ("rollout",
        "train" or "eval", whose records have "rollout/step" and so on). A line that is cut short, because the run was
        killed or still writes, is left out."""
        if kind is not None and kind not in KINDS:
            raise UserFault(f"metrics: {kind!r} is no kind of record; give one of {', '.join(KINDS)}", _EXIT_USER)
        text = (self.directory / "metrics.jsonl").read_bytes()
        records = records_of(text[: text.rfind(b"\n") + 1])
        return [record for record in records if kind is None or kind_of(record) == kind]


def train(
    config: Config = None,
    *,
    reward: Reward | Sequence[Reward] | None = None,
    on_rollout: Callback | None = None,
    on_step: Callback | None = None,
    on_eval: Callback | None = None,
    **flags: object,
) -> Run:
    """`tandem train`: returns when the run has ended, and raises what ended it otherwise.

    config: flags by name, or the path of a TOML file; `flags` beat it. prompt_data: a path, or rows (a list of dicts, a
    datasets.Dataset). reward: a function as docs/REWARDS.md describes them, or a list of functions, which
    reward_weights=[...] weighs. Each is defined at the top level of a file: the grader processes import that file, so
    what a script does beside defining it belongs under `if __name__ == "__main__":`.

    on_rollout, on_step, on_eval: called in this thread with each record that the run writes to metrics.jsonl, soon
    after it is written; the run does not wait. One that returns "stop" ends the run, which is saved; one that raises
    does too, and its exception is raised when the run has ended.

        run = tandem.train(colocate=True, hf_checkpoint="Qwen3-0.6B", prompt_data="train.jsonl", reward=reward,
                           rollout_batch_size=32, num_rollout=200, save="runs/x")
    """
    callbacks = {"on_rollout": on_rollout, "on_step": on_step, "on_eval": on_eval}
    return _write_run("train", config, {**flags, **reward_flags(reward)}, callbacks)


def sft(
    config: Config = None, *, on_step: Callback | None = None, on_eval: Callback | None = None, **flags: object
) -> Run:
    """`tandem sft`: supervised training; config, callbacks and flags as for train()."""
    return _write_run("sft", config, flags, {"on_step": on_step, "on_eval": on_eval})


def evaluate(
    config: Config = None, *, reward: Reward | Sequence[Reward] | None = None, **flags: object
) -> dict[str, float]:
    """`tandem eval`: the metrics of a checkpoint on data sets, by name. eval_prompt_data: {"NAME": path or rows}."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "metrics.json"
        call = _Call("eval", config, {"output": path, **flags, **reward_flags(reward)})
        call.run(pathlib.Path(folder))
        metrics: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
        return metrics


def export(config: Config = None, **flags: object) -> None:
    """`tandem export`: a run's exported weights, or another checkpoint, as a plain Hugging Face directory."""
    run(_words("export", *_parts(config, flags)))


def plan(config: Config = None, **flags: object) -> dict[str, Any]:
    """`tandem plan`: the bytes that train() would take, by tag and phase. Raises UserFault where they do not fit."""
    file, options = _parts(config, {"json": True, **flags})
    with tempfile.TemporaryDirectory() as folder:
        options = with_files(options, lambda name, rows: write_rows(name, rows, pathlib.Path(folder)))
        answer: dict[str, Any] = json.loads(run(_words("plan", file, options), output=True))
        return answer


class _Call:
    """A verb with its options; `settings` are all of them by the names of the flags, those of a file too."""

    def __init__(self, verb: str, config: Config, flags: Mapping[str, object]):
        self._verb = verb
        self._file, self._options = _parts(config, flags)
        # The names of files do not matter here, and rows are written when it is known where.
        words = _words(verb, self._file, with_files(self._options, lambda name, rows: pathlib.Path(name)))
        self.settings = _settings(run([*words, "--print-config"], output=True))

    def run(self, folder: pathlib.Path, follower: Follower | None = None) -> None:
        """Runs it; rows are written into the folder."""
        options = with_files(self._options, lambda name, rows: write_rows(name, rows, folder))
        interpreter = interpreter_flags(self.settings)
        try:
            run(_words(self._verb, self._file, options | interpreter), watch=follower)
        except UserFault as fault:
            if interpreter and str(fault).startswith(f"--rm-python {interpreter['rm_python']}:"):
                raise with_interpreter_hint(fault) from None
            raise


def _write_run(verb: str, config: Config, flags: Mapping[str, object], callbacks: Mapping[str, Callback | None]) -> Run:
    called = callbacks_by_kind(verb, callbacks, flags)
    call = _Call(verb, config, flags)
    save = call.settings.get("save") or call.settings.get("load")
    if not save:
        raise UserFault("save: is required: the directory of the run", _EXIT_USER)
    if callbacks["on_eval"] is not None and not (
        call.settings.get("eval-prompt-data") or call.settings.get("eval-config")
    ):
        print("tandem: warning: on_eval: does nothing without eval_prompt_data", file=sys.stderr, flush=True)
    directory = pathlib.Path(str(save)).expanduser()
    follower = Follower(directory, called, _checkpoint(directory, call.settings)) if called else None
    call.run(pathlib.Path(os.path.abspath(directory) + "-data"), follower)
    return Run(directory)


def _checkpoint(directory: pathlib.Path, settings: Mapping[str, object]) -> pathlib.Path | None:
    """The checkpoint in `directory` from which the run resumes there; None where it does not."""
    load = settings.get("load")
    if not load or not os.path.isdir(directory) or not os.path.isdir(os.path.expanduser(str(load))):
        return None
    if not os.path.samefile(directory, os.path.expanduser(str(load))):
        return None
    checkpoints = directory / "checkpoints"
    if "ckpt-step" in settings:
        return checkpoints / f"step_{settings['ckpt-step']:06}"
    try:
        return checkpoints / (checkpoints / "latest").read_text(encoding="utf-8").strip()
    except OSError:  # a run that was killed after its first checkpoint, or has none
        steps = [path for path in checkpoints.glob("step_*") if path.name.removeprefix("step_").isdigit()]
        return max(steps, key=lambda path: int(path.name.removeprefix("step_")), default=None)


def _parts(config: Config, flags: Mapping[str, object]) -> tuple[str | None, dict[str, object]]:
    """The configuration file, and the options that beat it."""
    if config is None or isinstance(config, Mapping):
        return None, {**(config or {}), **flags}
    return os.fspath(config), dict(flags)


def _words(verb: str, file: str | None, options: dict[str, object]) -> list[str]:
    return [verb, *([] if file is None else [f"--config={file}"]), *flags_of(options)]


def _settings(text: str) -> dict[str, object]:
    """The options of --print-config that are set. Values of TOML as the program writes them are JSON too."""
    settings: dict[str, object] = {}
    for line in text.splitlines():
        name, equals, value = line.partition(" = ")
        if equals and not name.startswith("#"):
            try:
                settings[name] = json.loads(value)
            except ValueError:
                pass  # a number that JSON does not have
    return settings
