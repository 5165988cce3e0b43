"""An OpenAI-style endpoint in front of the engine, for agents that a generate function runs: docs/AGENTS.md says what it
answers. It listens on loopback in the generate function's own process (generator.py), and what it asks the engine goes
the way of all that a generate function asks (user_functions/engine_calls.py). A sample has a key of its own, which is
valid while its function runs."""

import asyncio
import hashlib
import json
import secrets
import sys
import time
import traceback

from tandem_worker.agents import tool_calls
from tandem_worker.agents.conversations import Conversations, form_of
from tandem_worker.agents.http import HOST, HttpError, Response, Server
from tandem_worker.agents.requests import OWN_TEMPLATE_ARGUMENTS, ChatAsked, TextAsked, key_of, message_of
from tandem_worker.protocol import UserFault, one_line

MAX_WAITING = 64  # requests of one sample that are under way together, with those that the engine answers to nobody
MAX_TRACE_CHARACTERS = 10000  # the end, which says most
NO_COUNTS = {"answers": 0, "restarts": 0, "untrained": 0, "refused": 0}  # of a sample's requests
ROUTES = "GET /v1/models, POST /v1/chat/completions, POST /v1/completions"


class Endpoint:
    """The endpoint of a process: one server while samples are under way, and a client for each sample that wants one."""

    def __init__(self, template_arguments):
        # The run's arguments for the chat template, without the ones that the endpoint sets for each request.
        self.template_arguments = {
            name: value for name, value in template_arguments.items() if name not in OWN_TEMPLATE_ARGUMENTS
        }
        self._server = None
        self._clients = {}  # by the hash of their keys
        self._num_strangers = 0  # refused requests that no sample is to blame for, and that no sample has counted yet

    @property
    def is_open(self):
        return self._server is not None

    def open(self, loop):
        """Call it while the loop rests."""
        if self._server is None:
            self._server = Server(loop, self._admit, self._answer, self._refused, self._lost)

    def close(self):
        """Call it while the loop rests."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def client(self, run, sample):
        client = Client(self, run, sample, f"http://{HOST}:{self._server.port}/v1")
        self._clients[_hash(client.api_key)] = client
        return client

    def end(self, client):
        """Ends what the client has asked. Its key is no longer valid, and its connections are nobody's."""
        del self._clients[_hash(client.api_key)]
        for task in client.tasks:
            task.cancel()
        self._server.forget(client)

    def take_counts(self, client):
        """The counts of a sample that has ended (client: None where it had none), with the refusals that no sample is to
        blame for, which are counted by that."""
        counts = dict(NO_COUNTS if client is None else client.counts)
        counts["refused"] += self._num_strangers
        self._num_strangers = 0
        return counts

    def _admit(self, headers):
        kind, _, key = headers.get("authorization", "").partition(" ")
        client = self._clients.get(_hash(key.strip())) if kind.lower() == "bearer" else None
        if client is None:
            raise HttpError(401, "the key is not that of a sample that is being made; give the api_key of "
                            "tandem.rollout.endpoint()", code="invalid_api_key")  # fmt: skip
        return client

    def _refused(self, client):
        if client is None:
            self._num_strangers += 1
        else:
            client.counts["refused"] += 1

    def _lost(self, client, response):
        client.lose(None if response is None else response.turn)

    async def _answer(self, client, request):
        if client.num_under_way >= MAX_WAITING:
            raise HttpError(429, f"{MAX_WAITING} requests of this sample are running", code="rate_limit_exceeded")
        task = asyncio.ensure_future(client.answer(request))
        client.tasks.add(task)
        try:
            return await task
        except (HttpError, KeyboardInterrupt, SystemExit):
            raise
        except (UserFault, ValueError) as error:  # of the template, of the engine
            raise HttpError(400, one_line(error)) from None
        except asyncio.CancelledError:
            raise ConnectionError("the sample has ended, or the client has gone") from None
        except BaseException as error:  # a panic of the tokenizer's Rust code is no Exception
            client.say_once("a request of the endpoint failed", traceback.format_exc()[-MAX_TRACE_CHARACTERS:])
            raise HttpError(500, f"the endpoint failed: {type(error).__name__}: {one_line(error, 200)}") from None
        finally:
            client.tasks.discard(task)


class Client:
    """The endpoint as a function has it for its sample: base_url, api_key, model, and the samples that come of it."""

    def __init__(self, endpoint, run, sample, base_url):
        self.base_url = base_url
        self.api_key = "tandem-" + secrets.token_urlsafe(24)
        self.model = "policy"
        self.counts = dict(NO_COUNTS)
        self.tasks = set()  # of requests under way
        self._template_arguments = endpoint.template_arguments
        self._run, self._sample = run, sample
        self._conversations = Conversations(run.prompt, run.tokenizer, self._render)
        self._is_out_of_room = False
        self._num_calls = 0  # of tools
        self._said = set()

    @property
    def num_under_way(self):
        return len(self.tasks) + self._run.num_abandoned

    def lose(self, turn):
        """A client has gone before it had its answer. turn: what is kept of that, or None."""
        self.counts["refused"] += 1
        if turn is not None:
            self._conversations.drop(turn)
        self.say_once("a client closed its connection to the endpoint before it had its answer, which is not trained on")

    def say_once(self, what, more=""):
        """Says in the process's output what happened first to a request of the sample."""
        if what not in self._said:
            self._said.add(what)
            print(f"sample {self._sample.index}: {what}{': ' if more else ''}{more}", file=sys.stderr)

    def samples(self):
        """A sample for each conversation with an answer to train on, to be returned by the function."""
        samples = self._conversations.samples(self._sample)
        if self._is_out_of_room and samples:
            samples[-1].status = samples[-1].Status.TRUNCATED
        return samples

    async def answer(self, request):
        if (request.method, request.path) == ("GET", "/v1/models"):
            model = {"id": self.model, "object": "model", "created": 0, "owned_by": "tandem"}
            return Response({"object": "list", "data": [model]})
        answers = {"/v1/chat/completions": self._chat, "/v1/completions": self._complete}
        if request.path not in answers:
            raise HttpError(404, f"nothing answers {request.path:.60}; there are {ROUTES}")
        if request.method != "POST":
            raise HttpError(405, f"{request.path} takes POST")
        try:
            body = json.loads(request.body)
            json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise HttpError(400, "the body has half a character in it (a lone surrogate), which is no text") from None
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"the body is no JSON: {one_line(error, 100)}") from None
        return await answers[request.path](body)

    async def _chat(self, body):
        asked = ChatAsked(body)
        begun = self._conversations.begin_chat(asked)
        completion = await self._sample_answer(begun, asked)
        text, _ = _cut(self._run.tokenizer.decode(completion.tokens, skip_special_tokens=True), asked.stops)
        content, calls = tool_calls.find(self._written(completion, asked)) if asked.tools else (text, [])
        message = {"role": "assistant", "content": (content or None) if calls else text}
        if calls:
            message["tool_calls"] = [self._call(call) for call in calls]
        keys = (*asked.keys, key_of(message_of(message, 0)))
        ended = "tool_calls" if calls and completion.finish_reason == "stop" else completion.finish_reason
        log_probs = None
        if asked.with_log_probs:
            tokens = [self._run.tokenizer.bytes_of_id(token) for token in completion.tokens]
            log_probs = {"refusal": None, "content": [
                {"token": _shown(token), "bytes": list(token), "logprob": log_prob, "top_logprobs": []}
                for token, log_prob in zip(tokens, completion.log_probs)
            ]}  # fmt: skip
        turn = self._keep(begun, keys, form_of(asked), completion, asked)
        head = self._head("chatcmpl", "chat.completion", asked)
        usage = self._usage(begun, completion)
        if not asked.streams:
            choice = {"index": 0, "message": message, "logprobs": log_probs, "finish_reason": ended}
            return Response({**head, "choices": [choice], "usage": usage}, headers=_said(begun), turn=turn)
        head["object"] = "chat.completion.chunk"
        delta = dict(message)
        if calls:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
        first = {"index": 0, "delta": delta, "logprobs": log_probs, "finish_reason": None}
        last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": ended}
        return self._stream(head, [first, last], usage, asked, begun, turn)

    async def _complete(self, body):
        asked = TextAsked(body)
        begun = self._conversations.begin_text(asked.prompt)
        completion = await self._sample_answer(begun, asked)
        text, stop = _cut(self._run.tokenizer.decode(completion.tokens, skip_special_tokens=True), asked.stops)
        log_probs = None
        if asked.with_log_probs:
            tokens = [_shown(self._run.tokenizer.bytes_of_id(token)) for token in completion.tokens]
            offsets, at = [], 0
            for token in tokens:
                offsets.append(at)
                at += len(token)
            log_probs = {"tokens": tokens, "token_logprobs": list(completion.log_probs), "top_logprobs": None,
                         "text_offset": offsets}  # fmt: skip
        choice = {"index": 0, "text": text, "logprobs": log_probs, "finish_reason": completion.finish_reason}
        written = [self._run.tokenizer.decode(completion.tokens), *([text + stop] if stop else [])]
        turn = self._keep(begun, None, None, completion, asked, shown=text, written=tuple(written))
        head, usage = self._head("cmpl", "text_completion", asked), self._usage(begun, completion)
        if asked.streams:
            return self._stream(head, [choice], usage, asked, begun, turn)
        return Response({**head, "choices": [choice], "usage": usage}, headers=_said(begun), turn=turn)

    async def _sample_answer(self, begun, asked):
        room = self._run.max_context_tokens - len(begun.ids)
        if room <= 0:
            self._is_out_of_room = True
            raise HttpError(400, f"the conversation has {len(begun.ids)} tokens, and a sample may have "
                            f"{self._run.max_context_tokens} (--rollout-max-response-len)",
                            code="context_length_exceeded", parameter="messages")  # fmt: skip
        return await self._run.ask(begun.ids, asked.sampling)

    def _keep(self, begun, keys, form, completion, asked, **texts):
        of_run = self._run.sampling_params
        is_trained = all(asked.sampling.get(name, of_run[name]) == of_run[name]
                         for name in ("temperature", "top_p", "top_k", "min_p"))  # fmt: skip
        self.counts["answers"] += 1
        self.counts["untrained"] += not is_trained
        if begun.why_new:
            self.counts["restarts"] += 1
            self.say_once("a request of the endpoint does not continue what was sampled, and begins another sequence",
                          begun.why_new)  # fmt: skip
        answer = list(completion.tokens)
        return self._conversations.add(begun, keys, form, answer, is_trained, completion.finish_reason, **texts)

    def _render(self, messages, tools, template_arguments, opens_answer):
        return self._run.tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=False, add_generation_prompt=opens_answer,
            **{**self._template_arguments, **template_arguments},
        )  # fmt: skip

    def _written(self, completion, asked):
        """The answer with its special tokens, which may mark calls of tools, but without the one that ended it."""
        tokens = completion.tokens
        if completion.finish_reason == "stop" and not self._run.tokenizer.decode(tokens[-1:], skip_special_tokens=True):
            tokens = tokens[:-1]
        return _cut(self._run.tokenizer.decode(tokens), asked.stops)[0]

    def _call(self, call):
        self._num_calls += 1  # an id of nine characters, as Mistral's template wants; the same ones in every run
        return {"id": f"call{self._num_calls:05}", "type": "function",
                "function": {"name": call.name, "arguments": call.arguments}}  # fmt: skip

    def _head(self, kind, named, asked):
        return {"id": f"{kind}-{self._sample.index}-{self.counts['answers']}", "object": named,
                "created": int(time.time()), "model": asked.model or self.model}  # fmt: skip

    @staticmethod
    def _usage(begun, completion):
        num_prompt, num_answer = len(begun.ids), len(completion.tokens)
        return {"prompt_tokens": num_prompt, "completion_tokens": num_answer, "total_tokens": num_prompt + num_answer}

    @staticmethod
    def _stream(head, choices, usage, asked, begun, turn):
        events = [{**head, "choices": [choice]} for choice in choices]
        if asked.streams_usage:
            events.append({**head, "choices": [], "usage": usage})
        return Response(None, events, _said(begun), turn)


def _cut(text, stops):
    """The text up to the first stop string, as OpenAI's answers have it, and that string ("": none is in it). The tokens
    are kept as they were sampled."""
    at, stop = min(((text.find(stop), stop) for stop in stops if stop in text), default=(len(text), ""))
    return text[:at], stop


def _shown(token_bytes):
    """A token of log-probs as text, which shows part of a character as U+FFFD."""
    return token_bytes.decode("utf-8", "replace")


def _said(begun):
    """Tells the client whether its request continued a conversation."""
    return {"Tandem-Conversation": "new" if begun.parent is None else "continued"}


def _hash(key):
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()
