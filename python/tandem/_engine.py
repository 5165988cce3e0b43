"""A checkpoint that answers: `tandem engine` in a process of its own, with the weights read once."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, overload

from tandem._program import ErrorLines, UserFault, environment, failure, flags_of, pipe, program_path

Message = Mapping[str, Any]
Prompt = str | Sequence[Message] | Mapping[str, Sequence[int]]  # a text, a list of messages, or {"tokens": [ids]}
_EXIT_USER = 2
# The arguments of Engine.generate() that are flags of the program, which has other names for them.
_FLAGS = {
    "n": "n_samples_per_prompt",
    "temperature": "rollout_temperature",
    "top_p": "rollout_top_p",
    "top_k": "rollout_top_k",
    "min_p": "rollout_min_p",
    "max_tokens": "rollout_max_response_len",
    "stop": "rollout_stop",
    "stop_token_ids": "rollout_stop_token_ids",
    "ignore_eos": "ignore_eos",
    "seed": "rollout_seed",
}
_ARGUMENTS = {flag: argument for argument, flag in _FLAGS.items()}
_FLAG = re.compile(r"--(?:no-)?([a-z][a-z0-9-]*)|^([a-z_]+)(?=:)")
_PLACE = re.compile(r"\bstandard input:[0-9:]+ ")  # of a line that the caller did not write
_END_S = 10.0  # until an engine that does not end by itself is killed


@dataclasses.dataclass(frozen=True)
class Completion:
    """One sampled answer. `log_probs` are the policy's, one a token, at the temperature of sampling; they equal those that
    the trainer computes, bit for bit. `sampled_log_probs` is there where top-p, top-k or min-p cut the distribution."""

    text: str
    finish_reason: str  # "stop" or "length"
    tokens: list[int]
    log_probs: list[float]
    sampled_log_probs: list[float] | None = None


@dataclasses.dataclass(frozen=True)
class Completions(Sequence[Completion]):
    """The completions of one prompt, in sample order, and the prompt as the model saw it."""

    prompt: str
    prompt_tokens: list[int]
    completions: list[Completion]

    @overload
    def __getitem__(self, index: int) -> Completion: ...
    @overload
    def __getitem__(self, index: slice) -> list[Completion]: ...
    def __getitem__(self, index: int | slice) -> Completion | list[Completion]:
        return self.completions[index]

    def __len__(self) -> int:
        return len(self.completions)


class Engine:
    """Reads a Hugging Face checkpoint once and samples from it until it is closed.

        with tandem.Engine("Qwen3-0.6B", device="cuda") as engine:
            for group in engine.generate(["1 + 1 =", "2 + 2 ="], n=4, temperature=0.7, max_tokens=64):
                print([completion.text for completion in group])

    `flags` are those of `tandem engine --help`, with underscores: device, dtype, kv_cache_bytes, num_threads, ... An engine
    serves one caller at a time.
    """

    def __init__(self, hf_checkpoint: str | os.PathLike[str], **flags: object):
        words = ["engine", *flags_of({"hf_checkpoint": hf_checkpoint, **flags})]
        # A process group of its own: Ctrl-C is this program's business, and close() ends the engine.
        self._process = subprocess.Popen(
            [program_path(), *words],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._requests, self._answers = pipe(self._process.stdin), pipe(self._process.stdout)
        self._errors = ErrorLines(self._process)
        # Not __del__: this is called while the interpreter is whole, also at the end of a script.
        self._end = weakref.finalize(self, _end_process, self._process, self._errors)
        self._next_id = 0
        ready = self._read()
        self.context_tokens: int = ready["context_tokens"]
        self.vocab_size: int = ready["vocab_size"]

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        n: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        max_tokens: int | None = None,
        stop: list[str] | None = None,
        stop_token_ids: list[int] | None = None,
        ignore_eos: bool | None = None,
        seed: int | None = None,
    ) -> list[Completions]:
        """n completions of each prompt, in the order of the prompts.

        A prompt is a text, a list of messages (rendered by the chat template) or {"tokens": [ids]}. What is not given is as
        the engine's flags say. The same prompts, sampling and seed give the same completions, whatever was asked before:
        another seed gives others. A single text is a list of one. UserFault for what cannot be sampled; the engine goes on
        after it.
        """
        if isinstance(prompts, (str, Mapping)):
            prompts = [prompts]
        values = (n, temperature, top_p, top_k, min_p, max_tokens, stop, stop_token_ids, ignore_eos, seed)
        try:
            answer = self._ask({"prompts": list(prompts), "flags": flags_of(dict(zip(_FLAGS.values(), values)))})
        except UserFault as fault:
            raise UserFault(_in_arguments(str(fault)), fault.exit_code) from None
        return [
            Completions(
                prompt=prompt["text"],
                prompt_tokens=prompt["tokens"],
                completions=[Completion(**completion) for completion in prompt["completions"]],
            )
            for prompt in answer["prompts"]
        ]

    def close(self) -> None:
        """Ends the process. Again: nothing. An engine that nobody closes is closed when it is no longer used, or when
        the script ends."""
        self._end()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._answers.closed:
            raise ValueError("the engine is closed")
        self._next_id += 1
        request["id"] = self._next_id
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
            answer = self._read()
        except BrokenPipeError:
            raise self._lost() from None
        except KeyboardInterrupt:
            self._process.kill()  # an answer that nobody reads would be taken for the next one's
            raise
        if "error" in answer:
            raise UserFault(answer["error"], _EXIT_USER)
        return answer

    def _read(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            raise self._lost()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _lost(self) -> Exception:
        code = self._process.wait()
        return failure(code, self._errors.last())

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _in_arguments(text: str) -> str:
    """What the program says of a request, about the arguments of generate() in the place of its flags."""

    def argument(found: re.Match[str]) -> str:
        return _ARGUMENTS.get((found[1] or found[2]).replace("-", "_"), found[0])

    return _FLAG.sub(argument, _PLACE.sub("", text))


def _end_process(process: subprocess.Popen[bytes], errors: ErrorLines) -> None:
    """Ends an engine that has answered all it was asked: it ends by itself when its input does."""
    try:
        pipe(process.stdin).close()
    except BrokenPipeError:
        pass  # it died with a request that it had not read
    try:
        process.wait(timeout=_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    errors.last()  # has read all of stderr
    pipe(process.stdout).close()
    pipe(process.stderr).close()
