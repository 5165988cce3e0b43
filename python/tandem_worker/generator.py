"""Generator worker: makes samples with the user's function of --custom-generate-function-path, in slime's dialect:

    async def generate(args, sample, sampling_params[, evaluation]) -> sample

Many samples are under way at once, in one event loop. What their functions ask the engine goes to the program with a
reply, and the answers come with a later request (user_functions/engine_calls.py). docs/SAMPLING.md says what a function
is given and may give back. With --custom-generate-endpoint agents ask the engine over HTTP, in the same loop
(agents/endpoint.py)."""

import asyncio
import inspect
import json
import os
import socket
import sys
import traceback
import types
from typing import NamedTuple

from tandem_worker import protocol
from tandem_worker.agents.endpoint import NO_COUNTS, Endpoint
from tandem_worker.agents.http import HOST
from tandem_worker.outcomes import DeadlinePassed, Failed, WrongType, describe, json_within
from tandem_worker.protocol import MachineFault, UserFault, one_line, with_article
from tandem_worker.user_functions import engine_calls, hints, slime_generation, slime_sample
from tandem_worker.user_functions.line_metadata import own_metadata
from tandem_worker.user_functions.overlap import Overlap
from tandem_worker.user_functions.reward_file import load_function

FLAG = "--custom-generate-function-path"
MAX_TRACE_CHARACTERS = 10000  # the end, which says most
MAX_LEFT_CHARACTERS = 1 << 16  # of metadata, and of other attributes, that a function leaves in the sample, as JSON


class Turns(Overlap):
    """Keys are engine_calls.Run."""

    def waited_s(self, run):
        return run.waited_s

    def late_text(self, deadline_s):
        return f"took longer than {deadline_s:g} s besides waiting for the engine (--custom-generate-timeout)"


class Worker:
    _function = None
    _loop = None
    _woken = None

    def load(self, function, model_directory, metadata_key, arguments, timeout_s, endpoint, max_sequences,
             max_further_sequences, sandboxed):  # fmt: skip
        self._timeout_s = timeout_s
        self._sandboxed = sandboxed
        self._bounds = SequenceBounds(max_sequences, max_further_sequences)
        self._endpoint = None
        if endpoint:
            check_loopback()
            self._endpoint = Endpoint(json.loads(arguments.get("apply-chat-template-kwargs") or "{}"))
        self._metadata_key = metadata_key
        self._runs = {}
        if self._function is not None:  # a worker whose warm parent has done it
            return True
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # many processes are at work already
        try:
            from tandem_worker.user_functions.function_tokenizer import FunctionTokenizer  # which alone needs packages
        except ImportError as error:
            raise MachineFault(f"{FLAG} needs the packages tokenizers and jinja2: {one_line(error)}") from None
        slime_generation.GenerateState.tokenizer = self._tokenizer = FunctionTokenizer(model_directory)
        self._path = os.path.abspath(function.rpartition(":")[0])
        self._function = load_function(function, sandboxed, FLAG)
        self._check(function)
        given = {name.replace("-", "_"): value for name, value in arguments.items()}
        self._arguments = {**slime_generation.ARGUMENTS, **given}
        return True

    def _check(self, spec):
        called = self._function
        if any(inspect.isasyncgenfunction(one) for one in (called, getattr(called, "__call__", None))):
            raise UserFault(f"{FLAG} {spec}: has a yield, which makes it a generator; let it return its sample instead")
        is_async = inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(getattr(called, "__call__", None))
        if not is_async:
            raise UserFault(f"{FLAG} {spec}: is no async function; write async def fn(args, sample, sampling_params)")
        try:
            signature = inspect.signature(called)
            self._takes_evaluation = "evaluation" in signature.parameters
            signature.bind(None, None, None, **({"evaluation": False} if self._takes_evaluation else {}))
        except TypeError:
            raise UserFault(
                f"{FLAG} {spec}: cannot be called with (args, sample, sampling_params); write "
                "async def fn(args, sample, sampling_params)"
            ) from None
        except ValueError:
            raise UserFault(f"{FLAG} {spec}: Python cannot tell its parameters; wrap it in an async def") from None

    def go_on(self, begin, answers, cancelled, wait_s):
        """Takes in samples, answers of the engine and runs to end; goes on until a function asks the engine, one ends, or
        wait_s have passed."""
        if self._loop is None:  # not before the fork: a loop cannot be shared with the process that it came from
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
            self._turns = Turns(self._loop)
        if self._endpoint is not None:
            self._endpoint.open(self._loop)
        self._woken = self._loop.create_future()
        for number in cancelled:
            if (run := self._runs.pop(number, None)) is not None:
                self._turns.cancel(run)
                self._end_client(run)
        for answer in answers:
            if (run := self._runs.get(answer["run"])) is not None:
                run.take_answer(answer)
        for entry in begin:
            self._begin(entry)
        if any(run.asked for run in self._runs.values()):  # the last reply had no room for all
            self._woken.set_result(None)
        ended = [self._ended(run, end) for run, end in self._turns.go_on(wait_s, self._woken)]
        if not self._woken.done():
            self._woken.cancel()
        asked, room = [], engine_calls.MAX_IDS
        for run in self._runs.values():
            taken = run.take_asked(room)
            room -= sum(len(message["input_ids"]) for message in taken)
            asked += taken
        if self._endpoint is not None and not self._runs:
            self._endpoint.close()
        # An agent may ask over a socket at any time, so with an endpoint it is never certain that all wait for the engine.
        all_wait = self._endpoint is None and all(run.waits and not run.asked for run in self._runs.values())
        return {"asked": asked, "ended": ended, "all_wait": all_wait}

    def _wake(self):
        # Wakes after all tasks that are ready now, which may ask as well.
        self._loop.call_soon(lambda woken: woken.done() or woken.set_result(None), self._woken)

    def _begin(self, entry):
        request = entry["sample"]
        sample = sample_to_make(request, self._metadata_key)
        prompt = engine_calls.Prompt(sample.prompt, request["prompt_tokens"], self._tokenizer)
        run = engine_calls.Run(
            entry["run"], entry["sampling_params"], entry["max_context_tokens"], self._tokenizer, prompt, self._endpoint
        )
        run.on_ask = self._wake
        run.sample = sample
        arguments = types.SimpleNamespace(**{**self._arguments, "rollout_max_context_len": entry["max_context_tokens"]})
        keywords = {"evaluation": entry["evaluation"]} if self._takes_evaluation else {}

        def start():
            run.enter()
            parameters = slime_generation.given_parameters(run.sampling_params)
            return self._function(arguments, run.sample, parameters, **keywords)

        self._runs[run.number] = run
        self._turns.begin(run, start, request["sample_id"], self._timeout_s)

    def _end_client(self, run):
        if run.client is not None:
            self._endpoint.end(run.client)

    def _ended(self, run, end):
        del self._runs[run.number]
        self._end_client(run)
        counts = NO_COUNTS if self._endpoint is None else self._endpoint.take_counts(run.client)
        result = {"run": run.number, "endpoint": counts}
        failed = {"hung": False, "out_of_memory": False}
        try:
            return {**result, **made(end(), run, self._bounds)}
        except MemoryError as error:
            failed["out_of_memory"] = True
            reason = describe(error, self._path) + hints.hint_of(error, self._sandboxed)
        except DeadlinePassed as error:
            failed["hung"] = True
            reason = str(error)
        except Failed as error:
            reason = str(error)
        except BaseException as error:  # sys.exit() in a function ends a sample, not the process
            print(traceback.format_exc()[-MAX_TRACE_CHARACTERS:], file=sys.stderr)
            reason = describe(error, self._path) + hints.hint_of(error, self._sandboxed)
        return {**result, **failed, "failure": one_line(reason) or "the function failed"}


def sample_to_make(request, metadata_key):
    """The sample as the function is given it. Its tokens are those of the prompt."""
    return slime_sample.Sample(
        group_index=request["group_id"],
        index=request["sample_id"],
        rollout_id=request["sample_id"],
        prompt=request["prompt_text"] or request["prompt"],
        tokens=list(request["prompt_tokens"]),
        label=request["label"],
        metadata=own_metadata(request, metadata_key),
        session_id=str(request["sample_id"]),
    )


class SequenceBounds(NamedTuple):
    """How many sequences a sample may be made of: all, and those that do not continue its prompt."""

    all: int
    further: int


def check_loopback():
    try:
        with socket.socket() as tried:
            tried.bind((HOST, 0))
    except OSError as error:
        raise MachineFault(
            f"--custom-generate-endpoint needs a loopback of its own in the sandbox, and there is none: {error.strerror}; "
            "let the machine give user and network namespaces, or give --rm-sandbox off, which opens the machine's own"
        ) from None


def made(returned, run, bounds):
    """What the function returned, as a message; WrongType for what no sample is made of. The tokens of a list of samples
    are those of one sample, in sequences; metadata and attributes are those of the first, and the status is aborted or
    truncated where any of them is."""
    samples = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    if not samples:
        raise WrongType("the function returned no sample; return one at least, with a token that the model gave")
    if len(samples) > bounds.all:
        raise WrongType(f"the function returned {len(samples)} samples, and --custom-generate-max-sequences {bounds.all} "
                        "is the most; raise it, or return one with all turns in it")
    parts = [part_of(sample, run) for sample in samples]
    # The first that continues the prompt goes to the front: the others have the prompt again, if they begin with it.
    first = next((part for part in parts if continues(part, run)), None)
    parts.sort(key=lambda part: part is not first)
    tokens, mask, begins, length = list(run.prompt.tokens), "", [], 0
    for i, part in enumerate(parts):
        is_further = i > 0 or not continues(part, run)
        if is_further and bounds.further == 0:  # the program says what is wrong with it
            return message_of(part.tokens, part.length, part.mask, [], part.status, samples[0])
        if is_further:
            begins.append(length)
        own = part.tokens if is_further else part.tokens[len(part.tokens) - part.length :]
        tokens += own
        length += len(own)
        mask += "0" * (len(own) - part.length) + ("1" * part.length if part.mask is None else part.mask)
    if len(tokens) > engine_calls.MAX_IDS:
        raise WrongType(f"the function returned {len(tokens)} tokens, and a sample may have {engine_calls.MAX_IDS}")
    statuses = [part.status for part in parts]
    worst = [status for status in ("aborted", "truncated") if status in statuses]
    return message_of(tokens, length, mask, begins, worst[0] if worst else statuses[-1], samples[0])


def continues(part, run):
    return part.tokens[: len(part.tokens) - part.length] == run.prompt.tokens


def message_of(tokens, length, mask, begins, status, sample):
    own = {field for field in slime_sample.Sample.__dataclass_fields__}
    attributes = {k: v for k, v in vars(sample).items() if k not in own and is_plain(v)}
    if begins:
        attributes["sequence_begins"] = begins
    return {
        "tokens": tokens,
        "response_length": length,
        "loss_mask": mask,
        "sequence_begins": begins,
        "status": status,
        "metadata": left(dict(sample.metadata or {}), "sample.metadata"),
        "attributes": left(attributes, "the sample"),
    }


class Part(NamedTuple):
    tokens: list
    length: int  # of the response
    mask: str  # None: all 1
    status: str


def part_of(sample, run):
    if not hasattr(sample, "tokens") or not hasattr(sample, "response_length"):
        raise WrongType(f"the function returned {with_article(type(sample).__name__)}; return the sample it was given")
    status = getattr(sample.status, "value", sample.status)  # of any enumeration
    if status == slime_sample.Status.FAILED.value:
        raise WrongType("the function set sample.status to FAILED")
    if status == slime_sample.Status.PENDING.value:
        status = ""
    elif status not in [known.value for known in slime_sample.Status]:
        raise WrongType(f"sample.status is {status!r:.40}; write COMPLETED, TRUNCATED, ABORTED or FAILED")
    tokens = whole_numbers(sample.tokens, "sample.tokens")
    length = sample.response_length
    if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= len(tokens):
        raise WrongType(f"sample.response_length is {length!r:.40}, of {len(tokens)} tokens; write the number of tokens "
                        "behind the prompt")
    mask = None if sample.loss_mask is None else slime_sample.mask_text(sample.loss_mask, length)
    return Part(with_text_prefix(tokens, length, mask, run), length, mask, status)


def with_text_prefix(tokens, length, mask, run):
    """The tokens of a sample, with the text prefix of the prompt put back where the function, as slime's do, encoded the
    prompt without BOS. What the engine sampled behind other tokens than these is refused where it is trained on."""
    prompt = run.prompt
    if prompt.prefix and run.left_prefix_out and (mask is None or "1" in mask):
        bos = run.tokenizer.decode(prompt.prefix)
        raise WrongType(
            f"the engine was asked without {bos}, which the tokenizer writes before texts (BOS) and the prompt begins "
            "with; begin calls with sample.tokens, or give --no-add-special-tokens"
        )
    begins_bare = prompt.prefix and tokens[: len(tokens) - length] == prompt.bare
    return prompt.prefix + tokens if begins_bare else tokens


def whole_numbers(values, what):
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, (list, tuple)):
        raise WrongType(f"{what} is {with_article(type(values).__name__)}; write a list of token ids")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise WrongType(f"{what} holds {value!r:.40}; write token ids")
    return list(values)


def is_plain(value):
    """What JSON has; other attributes are the function's own business."""
    if isinstance(value, (list, tuple)):
        return all(is_plain(one) for one in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(one) for key, one in value.items())
    return value is None or isinstance(value, (bool, int, float, str))


def left(values, where):
    """What the function left for the reward, as JSON gives it back."""
    return json.loads(json_within(values, where, MAX_LEFT_CHARACTERS))


def main():
    worker = Worker()
    protocol.serve({"load": worker.load, "go_on": worker.go_on}, forks="tandem_worker.generator")


if __name__ == "__main__":
    main()
