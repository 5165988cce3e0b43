"""An OpenAI-style endpoint in front of the engine, for agents that a generate function runs: docs/AGENTS.md says what it
answers. It listens on loopback in the generate function's own process (generator.py), and what it asks the engine goes
the way of all that a generate function asks (engine_calls.py). A sample has a key of its own, which is valid while its
function runs."""

import asyncio
import hashlib
import json
import secrets
import sys
import time

from tandem_worker import tool_calls
from tandem_worker.agent_conversations import Conversations, form_of
from tandem_worker.agent_http import HOST, HttpError, Response, Server
from tandem_worker.agent_requests import ChatAsked, TextAsked, key_of, message_of
from tandem_worker.protocol import UserFault, one_line

MAX_WAITING = 64  # requests of one sample that are under way together
ROUTES = "GET /v1/models, POST /v1/chat/completions, POST /v1/completions"


class Endpoint:
    """The endpoint of a process: one server while samples are under way, and a client for each sample that wants one."""

    def __init__(self, template_arguments):
        self.template_arguments = template_arguments  # of --apply-chat-template-kwargs
        self._server = None
        self._clients = {}  # by the hash of their keys
        self._num_strangers = 0  # refused requests that no sample is to blame for, and that no sample has counted yet

    @property
    def is_open(self):
        return self._server is not None

    def open(self, loop):
        """Call it while the loop rests."""
        if self._server is None:
            self._server = Server(loop, self._admit, self._answer, self._refused)

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
        """Ends what the client has asked. Its key is no longer valid."""
        del self._clients[_hash(client.api_key)]
        for task in client.tasks:
            task.cancel()
        client.counts["refused"] += self._num_strangers
        self._num_strangers = 0

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

    async def _answer(self, client, request):
        if len(client.tasks) >= MAX_WAITING:
            raise HttpError(429, f"{MAX_WAITING} requests of this sample are under way", code="rate_limit_exceeded")
        task = asyncio.ensure_future(client.answer(request))
        client.tasks.add(task)
        try:
            return await task
        except (UserFault, ValueError) as error:  # of the template, of the engine
            raise HttpError(400, one_line(error)) from None
        except asyncio.CancelledError:
            raise ConnectionError("the sample has ended") from None
        finally:
            client.tasks.discard(task)


class Client:
    """The endpoint as a function has it for its sample: base_url, api_key, model, and the samples that come of it."""

    def __init__(self, endpoint, run, sample, base_url):
        self.base_url = base_url
        self.api_key = "tandem-" + secrets.token_urlsafe(24)
        self.model = "policy"
        self.counts = {"answers": 0, "restarts": 0, "untrained": 0, "refused": 0}
        self.tasks = set()  # of requests under way
        self._template_arguments = endpoint.template_arguments
        self._run, self._sample = run, sample
        self._conversations = Conversations(run.prompt, run.tokenizer, self._render)
        self._is_out_of_room = False
        self._num_calls = 0  # of tools

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
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"the body is no JSON: {one_line(error, 100)}") from None
        return await answers[request.path](body)

    async def _chat(self, body):
        asked = ChatAsked(body)
        begun = self._conversations.begin_chat(asked)
        completion = await self._sample_answer(begun, asked)
        text = self._text_of(completion, asked)
        content, calls = tool_calls.find(self._written(completion, asked)) if asked.tools else (text, [])
        message = {"role": "assistant", "content": (content or None) if calls else text}
        if calls:
            message["tool_calls"] = [self._call(call) for call in calls]
        keys = (*asked.keys, key_of(message_of(message, 0)))
        self._keep(begun, keys, form_of(asked), completion, asked)
        ended = "tool_calls" if calls and completion.finish_reason == "stop" else completion.finish_reason
        log_probs = None
        if asked.with_log_probs:
            tokens = [self._token_text(token) for token in completion.tokens]
            log_probs = {"refusal": None, "content": [
                {"token": token, "bytes": list(token.encode()), "logprob": log_prob, "top_logprobs": []}
                for token, log_prob in zip(tokens, completion.log_probs)
            ]}  # fmt: skip
        head = self._head("chatcmpl", "chat.completion", asked)
        usage = self._usage(begun, completion)
        if not asked.streams:
            choice = {"index": 0, "message": message, "logprobs": log_probs, "finish_reason": ended}
            return Response({**head, "choices": [choice], "usage": usage}, headers=_said(begun))
        head["object"] = "chat.completion.chunk"
        delta = dict(message)
        if calls:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
        first = {"index": 0, "delta": delta, "logprobs": log_probs, "finish_reason": None}
        last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": ended}
        return self._stream(head, [first, last], usage, asked, begun)

    async def _complete(self, body):
        asked = TextAsked(body)
        begun = self._conversations.begin_text(asked.prompt)
        completion = await self._sample_answer(begun, asked)
        text = self._text_of(completion, asked)
        self._keep(begun, None, None, completion, asked)
        log_probs = None
        if asked.with_log_probs:
            tokens, offsets, at = [self._token_text(token) for token in completion.tokens], [], 0
            for token in tokens:
                offsets.append(at)
                at += len(token)
            log_probs = {"tokens": tokens, "token_logprobs": list(completion.log_probs), "top_logprobs": None,
                         "text_offset": offsets}  # fmt: skip
        choice = {"index": 0, "text": text, "logprobs": log_probs, "finish_reason": completion.finish_reason}
        head, usage = self._head("cmpl", "text_completion", asked), self._usage(begun, completion)
        if asked.streams:
            return self._stream(head, [choice], usage, asked, begun)
        return Response({**head, "choices": [choice], "usage": usage}, headers=_said(begun))

    async def _sample_answer(self, begun, asked):
        room = self._run.max_context_tokens - len(begun.ids)
        if room <= 0:
            self._is_out_of_room = True
            raise HttpError(400, f"the conversation has {len(begun.ids)} tokens, and a sample may have "
                            f"{self._run.max_context_tokens} (--rollout-max-response-len)",
                            code="context_length_exceeded", parameter="messages")  # fmt: skip
        return await self._run.ask(begun.ids, asked.sampling)

    def _keep(self, begun, keys, form, completion, asked):
        of_run = self._run.sampling_params
        is_trained = all(asked.sampling.get(name, of_run[name]) == of_run[name]
                         for name in ("temperature", "top_p", "top_k", "min_p"))  # fmt: skip
        self._conversations.add(begun, keys, form, list(completion.tokens), is_trained, completion.finish_reason)
        self.counts["answers"] += 1
        self.counts["untrained"] += not is_trained
        if begun.why_new:
            self.counts["restarts"] += 1
            if self.counts["restarts"] == 1:
                print(f"sample {self._sample.index}: a request of the endpoint does not continue what was sampled, and "
                      f"begins another sequence: {begun.why_new}", file=sys.stderr)  # fmt: skip

    def _render(self, messages, tools, template_arguments, opens_answer):
        arguments = {**self._template_arguments, **template_arguments}
        arguments.pop("add_generation_prompt", None)
        return self._run.tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=False, add_generation_prompt=opens_answer, **arguments
        )

    def _text_of(self, completion, asked):
        return _cut(self._run.tokenizer.decode(completion.tokens, skip_special_tokens=True), asked.stops)

    def _written(self, completion, asked):
        """The answer with its special tokens, which may mark calls of tools, but without the one that ended it."""
        tokens = completion.tokens
        if completion.finish_reason == "stop" and not self._run.tokenizer.decode(tokens[-1:], skip_special_tokens=True):
            tokens = tokens[:-1]
        return _cut(self._run.tokenizer.decode(tokens), asked.stops)

    def _call(self, call):
        self._num_calls += 1  # an id of nine characters, as Mistral's template wants; the same ones in every run
        return {"id": f"call{self._num_calls:05}", "type": "function",
                "function": {"name": call.name, "arguments": call.arguments}}  # fmt: skip

    def _token_text(self, token):
        return self._run.tokenizer.decode([token])

    def _head(self, kind, named, asked):
        return {"id": f"{kind}-{self._sample.index}-{self.counts['answers']}", "object": named,
                "created": int(time.time()), "model": asked.model or self.model}  # fmt: skip

    @staticmethod
    def _usage(begun, completion):
        num_prompt, num_answer = len(begun.ids), len(completion.tokens)
        return {"prompt_tokens": num_prompt, "completion_tokens": num_answer, "total_tokens": num_prompt + num_answer}

    @staticmethod
    def _stream(head, choices, usage, asked, begun):
        events = [{**head, "choices": [choice]} for choice in choices]
        if asked.streams_usage:
            events.append({**head, "choices": [], "usage": usage})
        return Response(None, events, _said(begun))


def _cut(text, stops):
    """The text up to the first stop string, as OpenAI's answers have it; the tokens are kept as they were sampled."""
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return text[: min(found)] if found else text


def _said(begun):
    """Tells the client whether its request continued a conversation."""
    return {"Tandem-Conversation": "new" if begun.parent is None else "continued"}


def _hash(key):
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()
