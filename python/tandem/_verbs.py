"""Verbs of the program as functions: each takes the flags of `tandem VERB --help` with underscores for dashes."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping

from tandem._program import UserFault, flags_of, run

Config = Mapping[str, object] | str | os.PathLike | None
_EXIT_USER = 2


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory, as `--save` names it."""

    directory: pathlib.Path

    @property
    def hf_directory(self) -> pathlib.Path:
        """The newest exported weights, a Hugging Face directory that transformers and `tandem.Engine` load."""
        return self.directory / "hf" / "latest"

    def metrics(self, kind: str | None = None) -> Iterator[dict]:
        """The records of metrics.jsonl in the order in which they were written: all, or those of one kind ("rollout",
        "train" or "eval", whose records have "rollout/step" and so on). A line that is cut short, because the run was killed or still writes, is left out."""
        with open(self.directory / "metrics.jsonl", encoding="utf-8") as lines:
            for line in lines:
                if not line.endswith("\n"):
                    return
                record = json.loads(line)
                if kind is None or f"{kind}/step" in record:
                    yield record


def train(config: Config = None, *, reward: Callable | None = None, **flags: object) -> Run:
    """`tandem train`: returns when the run has ended, and raises what ended it otherwise.

    config: flags by name, or the path of a TOML file; `flags` beat it. reward: a function as docs/REWARDS.md describes
    them, defined at the top level of a file: the grader processes import that file, so what a script does beside
    defining it belongs under `if __name__ == "__main__":`.

        run = tandem.train(colocate=True, hf_checkpoint="Qwen3-0.6B", prompt_data="train.jsonl", reward=reward,
                           rollout_batch_size=32, num_rollout=200, save="runs/x")
    """
    words = _words("train", config, flags | _reward_flags(reward))
    directory = _run_directory(words)
    run(words)
    return Run(directory)


def sft(config: Config = None, **flags: object) -> Run:
    """`tandem sft`: supervised training; config and flags as for train()."""
    words = _words("sft", config, flags)
    directory = _run_directory(words)
    run(words)
    return Run(directory)


def evaluate(config: Config = None, *, reward: Callable | None = None, **flags: object) -> dict[str, float]:
    """`tandem eval`: the metrics of a checkpoint on data sets, by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "metrics.json"
        run(_words("eval", config, {"output": path} | flags | _reward_flags(reward)))
        return json.loads(path.read_text(encoding="utf-8"))


def export(config: Config = None, **flags: object) -> None:
    """`tandem export`: a run's exported weights, or another checkpoint, as a plain Hugging Face directory."""
    run(_words("export", config, flags))


def plan(config: Config = None, **flags: object) -> dict:
    """`tandem plan`: the bytes that train() would take, by tag and phase. Raises UserFault where they do not fit."""
    return json.loads(run(_words("plan", config, {"json": True} | flags), output=True))


def _words(verb: str, config: Config, flags: Mapping[str, object]) -> list[str]:
    if config is None or isinstance(config, Mapping):
        return [verb, *flags_of({**(config or {}), **flags})]
    return [verb, f"--config={os.fspath(config)}", *flags_of(dict(flags))]


def _run_directory(words: list[str]) -> pathlib.Path:
    """The directory that --save or --load names, on the command line or in the configuration file."""
    text = run([*words, "--print-config"], output=True)
    for name in ("save", "load"):
        for line in text.splitlines():
            if line.startswith(f"{name} = "):
                # A TOML basic string as the program writes it is a JSON string too.
                path = json.loads(line.removeprefix(f"{name} = "))
                if path:
                    return pathlib.Path(path).expanduser()
    raise UserFault("save: is required: the directory of the run", _EXIT_USER)


def _reward_flags(reward: Callable | None) -> dict[str, object]:
    if reward is None:
        return {}
    name = getattr(reward, "__qualname__", "")
    try:
        file = inspect.getsourcefile(reward)
    except TypeError:
        file = None
    if file is None or not os.path.isfile(file) or not name.isidentifier():
        raise UserFault(
            f"reward: {name or reward!r} is not a function at the top level of a file, and the grader processes import "
            'it from there; write it into a file, or give custom_rm_path="FILE.py:function"',
            _EXIT_USER,
        )
    return {"custom_rm_path": f"{os.path.abspath(file)}:{name}"}
