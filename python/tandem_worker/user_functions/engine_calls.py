"""What a generate function asks the engine: token ids in, token ids and log-probs out. A question goes to the program
with the next reply of this process, and its answer comes with a later request (generator.py); no socket is opened."""

import asyncio
import contextvars
import json
import operator
import time
from typing import NamedTuple

from tandem_worker.protocol import is_finite_number, one_line, with_article

_CURRENT = contextvars.ContextVar("the sample that a task works for")

# Parameters that a call may set; others of the run stay as they are.
NUMBERS = ("temperature", "top_p", "top_k", "min_p", "max_new_tokens")
LISTS = ("stop", "stop_token_ids")
SWITCHES = ("ignore_eos",)
MOST = (1 << 63) - 1  # the largest whole number that the program reads; no sample has so many tokens
# The most token ids of one call or sample, and of all calls in one reply: a reply has 256 MiB at most (protocol.py), and
# an id as text up to 12 bytes. No model's context is so long.
MAX_IDS = 8 << 20
MAX_SAMPLING_BYTES = 64 << 10  # of a call's parameters as JSON; src/reward/generate_messages.cc takes four times as many
# Sampling parameters of other engines that Tandem has no choice in: each with the values that ask for what Tandem does
# anyway. Any other value is refused.
WITHOUT_EFFECT = {
    "skip_special_tokens": (True, False, None),  # of the answer's text
    "no_stop_trim": (True, None),
    "spaces_between_special_tokens": (False, None),
    "include_stop_str_in_output": (True, None),
    "n": (1, None),
    "min_new_tokens": (0, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "repetition_penalty": (1, None),
}


class Completion(NamedTuple):
    """What the engine sampled. log_probs: one a token, of the policy at the temperature of the call."""

    tokens: list
    log_probs: list
    finish_reason: str  # "stop", or "length" when max_new_tokens or the room for the sample ran out
    text: str


class Prompt:
    """A sample's prompt. prefix: what the tokenizer writes before texts, such as BOS, where the prompt begins with it."""

    def __init__(self, text, tokens, tokenizer):
        self.text = text if isinstance(text, str) else ""  # "" for messages that nothing has rendered
        self.tokens = list(tokens)
        self._tokenizer = tokenizer
        prefix = list(tokenizer.text_prefix)
        self.prefix = prefix if begins_with(self.tokens, prefix) else []
        self.bare = self.tokens[len(self.prefix) :]

    def encode(self, text):
        """Another text as the prompt is encoded: behind the prefix, and behind the prompt's own ids where it begins with
        the prompt, even if a token of the whole text would reach over the prompt's end."""
        ids = self._tokenizer.encode(text)
        if not begins_with(ids, self.prefix):
            ids = self.prefix + ids
        if self.text and text.startswith(self.text) and not begins_with(ids, self.tokens):
            ids = self.tokens + self._tokenizer.encode(text[len(self.text) :])
        return ids


def begins_with(ids, beginning):
    return ids[: len(beginning)] == beginning


class Run:
    """A sample under way in this process: what it asks, and how long it waits for answers."""

    def __init__(self, number, sampling_params, max_context_tokens, tokenizer, prompt, endpoint=None):
        self.number = number
        self.endpoint = endpoint  # agents.endpoint.Endpoint, where --custom-generate-endpoint is given
        self.client = None  # agents.endpoint.Client, once the function has asked for it
        self.sampling_params = sampling_params  # of the run, every one of them
        self.max_context_tokens = max_context_tokens
        self.tokenizer = tokenizer
        self.prompt = prompt
        self._begun_with_prefix = set()  # False: a call began with the prompt less its text prefix; True: with all of it
        self._loop = None  # the event loop of the function
        self.asked = []  # not sent yet
        self._answers = {}  # call -> future
        self._last_call = 0
        self._waited_s = 0.0
        self._waits_since = 0.0
        self.on_ask = None

    def enter(self):
        """Makes the task that calls this, and those that it starts, work for the sample."""
        _CURRENT.set(self)
        self._loop = asyncio.get_running_loop()

    @property
    def waits(self):
        return bool(self._answers)

    def take_asked(self, max_ids):
        """The calls that go out with the next reply, whose ids are at most max_ids; others stay for the one after it."""
        taken = []
        while self.asked and len(self.asked[0]["input_ids"]) <= max_ids:
            max_ids -= len(self.asked[0]["input_ids"])
            taken.append(self.asked.pop(0))
        return taken

    @property
    def num_abandoned(self):
        """Calls that nobody waits for any more, and that the engine has not answered yet: it cannot be told to stop."""
        return sum(future.cancelled() for future in self._answers.values())

    @property
    def waited_s(self):
        return self._waited_s + (time.monotonic() - self._waits_since if self._answers else 0.0)

    @property
    def left_prefix_out(self):
        """Every call that began with the prompt left out its text prefix."""
        return self._begun_with_prefix == {False}

    async def ask(self, input_ids, sampling_params):
        if asyncio.get_running_loop() is not self._loop:  # answers would never reach it
            raise RuntimeError(
                "the engine was asked in another event loop than the function's own; await the call in that one, from "
                "a thread with asyncio.run_coroutine_threadsafe(generate(...), loop).result(), where loop is what "
                "asyncio.get_running_loop() gives in the function"
            )
        ids = token_ids(input_ids, "input_ids")
        message = {"run": self.number, "input_ids": ids, "sampling_params": self._merged(sampling_params)}
        if self.prompt.prefix:
            for whole in (True, False):
                if begins_with(message["input_ids"], self.prompt.tokens if whole else self.prompt.bare):
                    self._begun_with_prefix.add(whole)
        self._last_call += 1
        number = message["call"] = self._last_call
        if not self._answers:
            self._waits_since = time.monotonic()
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        self.asked.append(message)
        self.on_ask()
        answer = await future
        if "error" in answer:
            raise ValueError(answer["error"])
        skip = (sampling_params or {}).get("skip_special_tokens", self.sampling_params["skip_special_tokens"])
        text = self.tokenizer.decode(answer["tokens"], skip_special_tokens=bool(skip))
        return Completion(answer["tokens"], answer["log_probs"], answer["finish_reason"], text)

    def take_answer(self, answer):
        future = self._answers.pop(answer["call"], None)
        if future is None:
            return
        if not self._answers:
            self._waited_s += time.monotonic() - self._waits_since
        if not future.done():  # the task that waited may have been cancelled
            future.set_result(answer)

    def _merged(self, given):
        merged = {name: self.sampling_params[name] for name in (*NUMBERS, *LISTS, *SWITCHES)}
        for name, value in (given or {}).items():
            if name in NUMBERS or name in SWITCHES:
                if value is None:
                    continue
                kind = bool if name in SWITCHES else int if name in ("top_k", "max_new_tokens") else float
                if isinstance(value, bool) != (kind is bool) or not is_finite_number(value):
                    raise ValueError(f"sampling_params: {name} is {value!r:.40}; give a {kind.__name__}")
                merged[name] = max(-MOST, min(int(value), MOST)) if kind is int else kind(value)
            elif name == "stop":
                merged[name] = [value] if isinstance(value, str) else [str(text) for text in value or ()]
            elif name == "stop_token_ids":
                merged[name] = [] if value is None else token_ids(value, "sampling_params: stop_token_ids")
            elif value not in WITHOUT_EFFECT.get(name, ()):
                raise ValueError(
                    f"sampling_params: {name}={value!r:.40} is not known; a call may set "
                    + ", ".join((*NUMBERS, *LISTS, *SWITCHES, "skip_special_tokens"))
                )
        try:
            num_bytes = len(json.dumps(merged, ensure_ascii=False).encode())
        except UnicodeEncodeError:
            raise ValueError("sampling_params: a stop string has half a character in it (a lone surrogate)") from None
        if num_bytes > MAX_SAMPLING_BYTES:
            raise ValueError(f"sampling_params: they have {num_bytes} bytes as JSON, and may have {MAX_SAMPLING_BYTES}; "
                             "give fewer or shorter stop strings and stop_token_ids")
        return merged


def token_ids(values, what):
    """What a function gave as token ids, as a list of int; `what` names it in the ValueError for anything else."""
    if isinstance(values, (str, bytes)):
        raise ValueError(f"{what} is a text; encode it with tokenizer().encode(text)")
    if hasattr(values, "tolist"):  # an array or a tensor
        values = values.tolist()
    try:
        values = list(values)
    except TypeError:
        raise ValueError(f"{what} is {with_article(type(values).__name__)}; give a list of token ids") from None
    if len(values) > MAX_IDS:
        raise ValueError(f"{what} holds {len(values)} token ids, and may hold {MAX_IDS}; give no more than a model reads")
    ids = [value if type(value) is int else _integer(value) for value in values]
    for value, number in zip(values, ids):
        if not 0 <= number < 1 << 31:
            remedy = "encode texts with tokenizer().encode(text)" if isinstance(value, str) else "give integers from 0"
            raise ValueError(f"{what} holds {value!r:.40}, which is no token id; {remedy}")
    return ids


def _integer(value):
    """The int that an integer of NumPy or PyTorch stands for; -1 for a bool and for what is no integer."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        return -1
    try:
        return operator.index(value)
    except TypeError:
        return -1


def current():
    """The sample that the calling task works for."""
    try:
        return _CURRENT.get()
    except LookupError:
        raise RuntimeError(
            "the engine is there for tasks of a function of --custom-generate-function-path while it runs, and for "
            "nobody else"
        ) from None


async def generate(input_ids, sampling_params=None):
    return await current().ask(input_ids, sampling_params)


def endpoint():
    """The endpoint of the sample that the calling task works for: agents.endpoint.Client."""
    run = current()
    if run.endpoint is None:
        raise RuntimeError("tandem.rollout.endpoint(): give --custom-generate-endpoint, which opens it")
    if run.client is None:
        run.client = run.endpoint.client(run, run.sample)
    return run.client


async def post(url, payload, max_retries=0, headers=None, action="post"):
    """What slime's function of this name gets from SGLang's /generate: a dict with "text", "output_ids" and "meta_info".
    The log-probs are pairs (log_prob, token). Other addresses raise: no socket is opened."""
    path = str(url).partition("://")[2].partition("/")[2].partition("?")[0].strip("/")
    if path != "generate":
        raise RuntimeError(f"post to {one_line(url, 100)}: only .../generate is there, which asks Tandem's engine; ask "
                           "other services with a client of your own (--rm-sandbox off lets it open sockets)")
    if payload.get("image_data"):
        raise ValueError("post: image_data is not supported")
    run = current()
    ids = payload.get("input_ids")
    if ids is None:
        ids = run.prompt.encode(payload["text"])
    completion = await run.ask(ids, payload.get("sampling_params"))
    return {
        "text": completion.text,
        "output_ids": completion.tokens,
        "meta_info": {
            "output_token_logprobs": list(zip(completion.log_probs, completion.tokens)),
            "finish_reason": {"type": completion.finish_reason},
            "prompt_tokens": len(ids),
            "completion_tokens": len(completion.tokens),
        },
    }


async def get(url, *args, **kwargs):
    raise RuntimeError(f"get {one_line(url, 100)}: nothing answers; post to .../generate asks Tandem's engine")
