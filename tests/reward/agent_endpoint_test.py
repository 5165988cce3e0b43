"""The endpoint for agents, over sockets: what is kept as token ids, what is refused, and what clients that attack it can
reach. A script stands in for the engine. Whole runs are in tests/cli/multi_turn_test.cc."""

import asyncio
import contextlib
import http.client
import json
import pathlib
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from unittest import mock

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
from tandem_worker import generator  # noqa: E402
from tandem_worker.agents import endpoint as agent_endpoint, http as agent_http, tool_calls  # noqa: E402
from tandem_worker.protocol import UserFault  # noqa: E402
from tandem_worker.user_functions import engine_calls, slime_sample  # noqa: E402

sys.path.insert(0, str(ROOT / "examples/agent"))
from make_data import TEMPLATE  # noqa: E402

TOOLS = [{"type": "function", "function": {"name": "add"}}]
PROMPT = "<|user|>hi<|assistant|>"
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "max_new_tokens": 100, "stop": [],
            "stop_token_ids": [], "ignore_eos": False, "skip_special_tokens": False}  # fmt: skip


def user(text):
    return {"role": "user", "content": text}


def tokenizer_of(model):
    from tandem_worker.user_functions.function_tokenizer import FunctionTokenizer

    return FunctionTokenizer(model)


# The environment of tools/setup.sh agents.
AGENTS_PYTHON = ROOT / ".venv-agents/bin/python"
PYDANTIC_AGENTS = """
import asyncio, sys
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

class Total(BaseModel):
    total: int

def add(a: int, b: int) -> int:
    return a + b

async def stream(agent):
    async with agent.run_stream("3+4=") as result:
        return "".join([text async for text in result.stream_text(delta=True)])

model = OpenAIChatModel("any", provider=OpenAIProvider(base_url=sys.argv[1], api_key=sys.argv[2]))
agent = Agent(model, tools=[add])
print(agent.run_sync("3+4=").output)
print(asyncio.run(stream(agent)))
print(Agent(model, output_type=Total).run_sync("5+5=").output.total)
"""


class Client:
    """What a function's agent does, in a thread."""

    def __init__(self, model):
        self.base_url = model.base_url
        self._host = model.base_url.split("/")[2]
        self.key = model.api_key

    def ask(self, body, path="/v1/chat/completions", key=None, method="POST", headers=None):
        """(status, answer, headers); body: an object, or bytes as they are."""
        connection = http.client.HTTPConnection(self._host, timeout=10)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Authorization": f"Bearer {self.key if key is None else key}", **(headers or {})}
        connection.request(method, path, content, given)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        is_json = answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(text) if is_json else text, answer.headers

    def ask_in_chunks(self, chunks):
        """The status of the answer to a chat request whose body has no length."""
        connection = http.client.HTTPConnection(self._host, timeout=10)
        headers = {"Authorization": f"Bearer {self.key}"}
        connection.request("POST", "/v1/chat/completions", chunks, headers, encode_chunked=True)
        status = connection.getresponse().status
        connection.close()
        return status

    def chat(self, messages, **more):
        status, answer, headers = self.ask({"model": "any", "messages": messages, **more})
        assert status == 200, answer
        return answer["choices"][0], headers["Tandem-Conversation"]

    def complete(self, prompt, **more):
        status, answer, headers = self.ask({"prompt": prompt, **more}, "/v1/completions")
        assert status == 200, answer
        return answer["choices"][0]["text"], headers["Tandem-Conversation"]

    def connect(self):
        host, _, port = self._host.partition(":")
        return socket.create_connection((host, int(port)), timeout=10)

    def send(self, messages, more_headers=""):
        """The socket of a chat request whose answer is not read yet."""
        body = json.dumps({"messages": messages}).encode()
        connection = self.connect()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer {self.key}\r\n{more_headers}"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return connection


def read_to_end(connection):
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def wait_until_closed(connection):
    """Until the other side takes nothing more."""
    give_up = time.monotonic() + 20
    try:
        while time.monotonic() < give_up:
            connection.sendall(b"x")
            time.sleep(0.01)
    except OSError:
        return
    raise AssertionError("the connection stays open")


class Engine:
    """What an act may do to the engine of its samples: hold its answers back, and give them in another order."""

    def __init__(self):
        self.asked = []  # texts
        self.is_held = False
        self.order = 1  # -1: the last of those that were held back is answered first

    def wait_until_asked(self, num_calls):
        give_up = time.monotonic() + 10
        while len(self.asked) < num_calls and time.monotonic() < give_up:
            time.sleep(0.005)
        assert len(self.asked) == num_calls, self.asked


class Endpoint(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        model = pathlib.Path(cls.folder.name) / "model"
        shutil.copytree(ROOT / "examples/arithmetic/checkpoint", model)
        (model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        cls.model = str(model)
        function = pathlib.Path(cls.folder.name) / "function.py"
        function.write_text("async def generate(args, sample, sampling_params):\n    return await work(sample)\n")
        cls.function = f"{function}:generate"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def make(self, acts, answers, num_samples=1, context=400, max_sequences=4, arguments=None, engine=None, failing=()):
        """Samples whose functions run `acts` (of a client and the number of the sample) in a thread and return what came
        of it; the engine says `answers` in turn. The messages of the samples that ended, and what the engine was asked.
        Only samples of `failing` fail."""
        engine = engine or Engine()
        worker = generator.Worker()
        limits = (20.0, True, max_sequences, max_sequences, False)
        worker.load(self.function, self.model, "metadata", arguments or {}, *limits)
        tokenizer = worker._tokenizer

        async def work(sample):
            from tandem.rollout import endpoint

            model = endpoint()
            await asyncio.get_running_loop().run_in_executor(None, acts, Client(model), sample.index)
            return model.samples()

        sys.modules["tandem_custom_reward"].work = work
        prompt = {"prompt": [user("hi")], "prompt_text": PROMPT, "prompt_tokens": tokenizer.encode(PROMPT)}
        begin = [
            {"run": i + 1, "sampling_params": SAMPLING, "max_context_tokens": context, "evaluation": False,
             "sample": {"group_id": 0, "sample_id": i, "label": None, "metadata": {}, **prompt}}
            for i in range(num_samples)
        ]  # fmt: skip
        replies, ended, asked = [], [], engine.asked
        give_up = time.monotonic() + 30
        while len(ended) < num_samples and time.monotonic() < give_up:
            now, replies = ([], replies) if engine.is_held else (replies[:: engine.order], [])
            turns = [worker.go_on(begin, now[:1], [], 0.01)]
            turns += [worker.go_on([], [reply], [], 0.01) for reply in now[1:]]
            turn = {name: [one for part in turns for one in part[name]] for name in ("asked", "ended")}
            begin = []
            for call in turn["asked"]:
                text = answers[len(asked) % len(answers)]
                asked.append(tokenizer.decode(call["input_ids"]))
                ids = tokenizer.encode(text)[: call["sampling_params"]["max_new_tokens"]]
                reason = "stop" if text.endswith("<|end|>") else "length"
                replies.append({"run": call["run"], "call": call["call"], "tokens": ids,
                                "log_probs": [-0.5] * len(ids), "finish_reason": reason})  # fmt: skip
            ended += turn["ended"]
        made = [one.get("failure") for one in ended if one["run"] - 1 not in failing]
        self.assertEqual(made, [None] * (num_samples - len(failing)))
        self.assertEqual(len(ended), num_samples)
        self.tokenizer = tokenizer
        return ended, asked

    def trained(self, message):
        """The texts of the whole response and of its trained tokens."""
        response = message["tokens"][len(message["tokens"]) - message["response_length"] :]
        kept = [token for token, mask in zip(response, message["loss_mask"]) if mask == "1"]
        return self.tokenizer.decode(response), self.tokenizer.decode(kept)

    def test_a_conversation_is_kept_as_it_was_sampled(self):
        written = '<tool_call>{"name":"add",  "arguments":{"a":1}}</tool_call><|end|>'  # other spaces than the template's

        def acts(client, _):
            choice, said = client.chat([user("sum")], tools=TOOLS)
            self.assertEqual((said, choice["finish_reason"]), ("new", "tool_calls"))
            (call,) = choice["message"]["tool_calls"]
            self.assertEqual(json.loads(call["function"]["arguments"]), {"a": 1})
            tool = {"role": "tool", "tool_call_id": call["id"], "content": "7"}
            choice, said = client.chat([user("sum"), choice["message"], tool], tools=TOOLS)
            self.assertEqual((said, choice["message"]["content"]), ("continued", "seven"))

        (message,), asked = self.make(acts, [written, "seven<|end|>"])
        whole = f"[add]<|user|>sum<|assistant|>{written}<|tool|>7<|assistant|>seven<|end|>"
        self.assertEqual(self.trained(message), (whole, written + "seven<|end|>"))
        self.assertEqual(asked[1], whole[: -len("seven<|end|>")])
        self.assertEqual((message["sequence_begins"], message["status"]), ([0], "completed"))
        self.assertEqual(message["endpoint"], {"answers": 2, "restarts": 0, "untrained": 0, "refused": 0})

    def test_a_top_k_of_0_is_the_run_s_own_where_that_is_all_tokens(self):
        def acts(client, _):
            client.chat([user("hi")], top_k=0)

        (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"], {"answers": 1, "restarts": 0, "untrained": 0, "refused": 0})

    def test_a_request_that_continues_nothing_is_a_sequence_of_its_own_and_counted(self):
        def acts(client, _):
            choice, _ = client.chat([user("hi")])
            other = {"role": "assistant", "content": choice["message"]["content"].upper()}
            self.assertEqual(client.chat([user("hi"), other, user("and?")])[1], "new")
            self.assertEqual(client.chat([user("hi"), choice["message"], user("go")])[1], "continued")
            self.assertEqual(client.chat([user("hi")], temperature=0.5)[1], "new")

        (message,), asked = self.make(acts, ["one<|end|>", "two<|end|>", "three", "four<|end|>"])
        self.assertEqual(asked[0], PROMPT)
        response, trained = self.trained(message)
        self.assertEqual(trained, "one<|end|>threetwo<|end|>")
        self.assertEqual(len(message["sequence_begins"]), 1)
        self.assertEqual(message["status"], "truncated")
        self.assertEqual(message["endpoint"], {"answers": 4, "restarts": 1, "untrained": 1, "refused": 0})

    def test_branches_train_their_common_beginning_once(self):
        def acts(client, _):
            choice, _ = client.chat([user("hi")])
            for word in ("a", "b"):
                self.assertEqual(client.chat([user("hi"), choice["message"], user(word)])[1], "continued")

        (message,), _ = self.make(acts, ["one<|end|>", "two<|end|>", "three<|end|>"])
        self.assertEqual(self.trained(message)[1], "one<|end|>two<|end|>three<|end|>")
        self.assertEqual(len(message["sequence_begins"]), 1, "the first continues the prompt")

    def test_the_conversation_that_continues_the_prompt_does_not_have_it_twice(self):
        def acts(client, _):
            client.chat([user("other")])
            client.chat([user("hi")])

        (message,), _ = self.make(acts, ["one<|end|>", "two<|end|>"])
        self.assertEqual(self.trained(message)[0], "two<|end|><|user|>other<|assistant|>one<|end|>")
        self.assertEqual(message["sequence_begins"], [4])

    def test_streams_stops_log_probs_and_texts(self):
        def acts(client, _):
            _, events, _ = client.ask({"messages": [user("hi")], "stream": True, "stop": "X",
                                       "stream_options": {"include_usage": True}})  # fmt: skip
            chunks = [json.loads(line[6:]) for line in events.split("\n\n")[:-2]]
            self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": "on"})
            self.assertEqual(chunks[1]["choices"][0]["finish_reason"], "stop")
            self.assertEqual(chunks[2]["usage"]["completion_tokens"], 5)
            self.assertTrue(events.endswith("data: [DONE]\n\n"))
            choice, _ = client.chat([user("hi")], logprobs=True, max_tokens=2, seed=3)
            self.assertEqual([one["token"] for one in choice["logprobs"]["content"]], ["t", "w"])
            _, answer, _ = client.ask({"prompt": PROMPT, "logprobs": 0}, "/v1/completions")
            self.assertEqual(answer["choices"][0]["text"], "three")
            _, answer, _ = client.ask({"prompt": PROMPT + "three<|end|>!"}, "/v1/completions")
            self.assertEqual(answer["usage"]["prompt_tokens"], 11)
            self.assertEqual(client.ask(b"", "/v1/models", method="GET")[1]["data"][0]["id"], "policy")

        (message,), asked = self.make(acts, ["onXe<|end|>", "two<|end|>", "three<|end|>", "four<|end|>"])
        self.assertEqual(asked[3], PROMPT + "three<|end|>!")

    @unittest.skipUnless(AGENTS_PYTHON.exists(), "tools/setup.sh agents installs the library")
    def test_agents_of_pydantic_ai_run_as_they_are(self):
        """With a tool, streamed, and with an output of a type, which the library asks for as a call that it requires."""
        said = []

        def acts(client, _):
            words = [AGENTS_PYTHON, "-c", PYDANTIC_AGENTS, client.base_url, client.key]
            said.append(subprocess.run(words, capture_output=True, text=True, timeout=60))

        call = '<tool_call>{"name":"add","arguments":{"a":3,"b":4}}</tool_call><|end|>'
        total = '<tool_call>{"name":"final_result","arguments":{"total":10}}</tool_call><|end|>'
        answers = [call, "seven<|end|>", call, "it is 7<|end|>", "ten<|end|>", total]
        (message,), asked = self.make(acts, answers, context=4000)
        self.assertEqual(said[0].returncode, 0, said[0].stderr[-2000:])
        self.assertEqual(said[0].stdout.splitlines(), ["seven", "it is 7", "10"])
        self.assertEqual(asked[1], f"[add]<|user|>3+4=<|assistant|>{call}<|tool|>7<|assistant|>")
        counts = message["endpoint"]
        self.assertEqual((counts["answers"], counts["restarts"], counts["refused"]), (6, 0, 0))

    def test_a_text_goes_on_with_the_answer_that_was_returned(self):
        """The client has neither the special token nor the stop string that ended an answer; what was sampled is kept."""

        def acts(client, _):
            first, said = client.complete(PROMPT)
            self.assertEqual((first, said), ("one", "new"))
            second, said = client.complete(PROMPT + "one<|user|>more<|assistant|>", stop=["Obs:"])
            self.assertEqual((second, said), ("act ", "continued"))
            text = PROMPT + "one<|user|>more<|assistant|>act "
            self.assertEqual(client.complete(text + "Obs: 7"), ("three", "continued"))
            self.assertEqual(client.complete(text + "Obs: 7three and", max_tokens=2), ("fo", "continued"))
            self.assertEqual(client.complete(text + "Obs: 7three andfo"), ("ur", "continued"))

        answers = ["one<|end|>", "act Obs:", "three<|end|>", "four<|end|>", "ur<|end|>"]
        (message,), asked = self.make(acts, answers)
        whole = PROMPT + "one<|end|><|user|>more<|assistant|>act Obs: 7three<|end|> andfour<|end|>"
        self.assertEqual(self.trained(message), (whole[len(PROMPT) :], "one<|end|>act Obs:three<|end|>four<|end|>"))
        self.assertEqual(asked, [whole[: whole.index(end)] for end in ("one", "act", "three", "four", "ur<|end|>")])
        self.assertEqual(message["endpoint"], {"answers": 5, "restarts": 0, "untrained": 0, "refused": 0})

    def test_a_text_that_goes_on_with_another_answer_is_a_restart(self):
        def acts(client, _):
            client.complete(PROMPT)
            client.complete(PROMPT)  # the same question again is none
            client.complete(PROMPT + "ONE and")
            client.complete(PROMPT + "one")  # nothing comes after what ended the answer
            client.complete(self.tokenizer.encode(PROMPT + "one more"))
            client.complete("other")

        self.tokenizer = tokenizer_of(self.model)
        (message,), asked = self.make(acts, ["one<|end|>"], max_sequences=6)
        self.assertEqual(message["endpoint"], {"answers": 6, "restarts": 3, "untrained": 0, "refused": 0})
        self.assertEqual(asked[2:], [PROMPT + "ONE and", PROMPT + "one", PROMPT + "one more", "other"])

    def test_samples_are_in_the_order_of_their_requests(self):
        engine = Engine()

        def acts(client, _):
            engine.is_held, engine.order = True, -1
            waiting = []
            for i, text in enumerate(("first", "second", "third")):
                waiting.append(client.send([user(text)]))
                engine.wait_until_asked(i + 1)
            engine.is_held = False
            for connection in waiting:
                connection.recv(1 << 16)
                connection.close()

        (message,), _ = self.make(acts, ["one<|end|>", "two<|end|>", "three<|end|>"], engine=engine)
        self.assertEqual(self.trained(message)[1], "one<|end|>two<|end|>three<|end|>")

    def test_answers_of_clients_that_have_gone_are_not_kept(self):
        engine = Engine()

        def acts(client, _):
            engine.is_held = True
            gone, half, away = (client.send([user(text)]) for text in ("gone", "half", "away"))
            engine.wait_until_asked(3)
            gone.close()
            half.shutdown(socket.SHUT_WR)
            self.assertEqual(half.recv(10), b"", "the endpoint has seen it")
            half.close()
            status, answer, _ = client.ask({"messages": [user("hi")]})
            self.assertEqual((status, answer["error"]["code"]), (429, "rate_limit_exceeded"), "the engine answers them")
            away.close()
            engine.is_held = False
            while (status := client.ask({"messages": [user("hi")]})[0]) == 429:
                time.sleep(0.005)
            self.assertEqual(status, 200)

        with mock.patch.object(agent_endpoint, "MAX_WAITING", 3):
            (message,), asked = self.make(acts, ["one<|end|>"], engine=engine)
        self.assertEqual(len(asked), 4)
        self.assertEqual(self.trained(message), ("one<|end|>", "one<|end|>"))
        self.assertGreaterEqual(message["endpoint"]["refused"], 4)

    def test_a_connection_that_stays_open_does_not_outlive_the_samples(self):
        waiting = []

        def acts(client, _):
            waiting.append(client.send([user("hi")]))
            self.assertIn(b"200 OK", waiting[0].recv(1 << 16))

        self.make(acts, ["one<|end|>"])
        self.assertEqual(waiting[0].recv(1), b"")
        waiting[0].close()

    def test_an_answer_that_cannot_be_written_is_not_kept(self):
        write = agent_http.Server._write

        async def fail(server, writer, status, content, *rest):
            if b"gone" in content:
                raise ConnectionResetError("the client has gone")
            await write(server, writer, status, content, *rest)

        def acts(client, _):
            with self.assertRaises(http.client.RemoteDisconnected):
                client.chat([user("hi")])
            self.assertEqual(client.chat([user("hi")])[1], "new")

        with mock.patch.object(agent_http.Server, "_write", fail):
            (message,), _ = self.make(acts, ["gone<|end|>", "two<|end|>"])
        self.assertEqual(self.trained(message), ("two<|end|>", "two<|end|>"))
        self.assertEqual(message["endpoint"], {"answers": 2, "restarts": 0, "untrained": 0, "refused": 1})

    def test_half_a_character_breaks_nothing(self):
        """JSON can name it, and no text has it."""
        written = '<tool_call>{"name":"add","arguments":{"a":"\\ud83d"}}</tool_call><|end|>'
        bodies = [{"messages": [user("\ud83d")]}, {"prompt": "\ud83d"}, {"messages": [user("hi")], "stop": "\ud83d"},
                  {"messages": [user("hi")], "tools": [{"function": {"name": "\ud83d"}}]}]  # fmt: skip

        def acts(client, _):
            for body in bodies:
                path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
                status, answer, _ = client.ask(body, path)
                self.assertEqual(status, 400, body)
                self.assertIn("half a character", answer["error"]["message"])
            choice, _ = client.chat([user("sum")], tools=TOOLS)
            (call,) = choice["message"]["tool_calls"]
            self.assertEqual(json.loads(call["function"]["arguments"]), {"a": "\ud83d"})
            tool = {"role": "tool", "tool_call_id": call["id"], "content": "7"}
            self.assertEqual(client.chat([user("sum"), choice["message"], tool], tools=TOOLS)[1], "continued")
            other = client.chat([user("so"), choice["message"], tool], tools=TOOLS)[1]
            self.assertEqual(other, "new", "its messages are rendered")

        (message,), asked = self.make(acts, [written, "seven<|end|>", "eight<|end|>"])
        self.assertIn('{"a": "?"}', asked[2])
        self.assertEqual(message["endpoint"], {"answers": 3, "restarts": 1, "untrained": 0, "refused": len(bodies)})

    def test_an_error_of_its_own_is_answered_with_500(self):
        def acts(client, _):
            with mock.patch.object(tool_calls, "find", side_effect=RuntimeError("no such luck")):
                status, answer, _ = client.ask({"messages": [user("hi")], "tools": TOOLS})
            self.assertEqual((status, answer["error"]["type"]), (500, "server_error"))
            self.assertIn("RuntimeError: no such luck", answer["error"]["message"])
            client.chat([user("hi")], tools=TOOLS)

        (message,), _ = self.make(acts, ["one<|end|>", "two<|end|>"])
        self.assertEqual(self.trained(message)[1], "two<|end|>")
        self.assertEqual(message["endpoint"], {"answers": 1, "restarts": 0, "untrained": 0, "refused": 1})

    def test_what_requests_say_themselves_does_not_come_from_the_run_s_template_arguments(self):
        given = {"apply-chat-template-kwargs": json.dumps({"tools": TOOLS, "add_generation_prompt": False})}

        def acts(client, _):
            client.chat([user("hi")])

        _, asked = self.make(acts, ["one<|end|>"], arguments=given)
        self.assertEqual(asked, [PROMPT])

    def test_sampling_parameters_are_bounded_in_bytes(self):
        def acts(client, _):
            for more in ({"stop": "x" * 100000}, {"stop_token_ids": list(range(30000))}, {"stop": ["é" * 3000] * 16}):
                status, answer, _ = client.ask({"messages": [user("hi")], **more})
                self.assertEqual(status, 400, more)
                self.assertIn("may have 65536", answer["error"]["message"])
            self.assertEqual(client.ask({"messages": [user("hi")], "stop": ["x"] * 17})[0], 400)
            client.chat([user("hi")], stop=["é" * 2000] * 16, stop_token_ids=[1] * 300)

        (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"], {"answers": 1, "restarts": 0, "untrained": 0, "refused": 4})

    def test_numbers_beyond_the_program_s_are_cut(self):
        merged, seen = engine_calls.Run._merged, []

        def watched(run, given):
            seen.append(merged(run, given))
            return seen[-1]

        def acts(client, _):
            for number in (1 << 63, 1 << 64, 10**300):
                self.assertEqual(client.chat([user("hi")], max_tokens=number)[0]["message"]["content"], "one")
            client.chat([user("hi")], top_k=1e300)

        with mock.patch.object(engine_calls.Run, "_merged", watched):
            self.make(acts, ["one<|end|>"])
        most = (1 << 63) - 1
        self.assertEqual([(one["max_new_tokens"], one["top_k"]) for one in seen], [(most, -1)] * 3 + [(100, most)])

    def test_log_probs_have_the_bytes_of_tokens_that_are_part_of_a_character(self):
        def acts(client, _):
            choice, _ = client.chat([user("hi")], logprobs=True)
            tokens = choice["logprobs"]["content"]
            self.assertEqual([token["token"] for token in tokens], ["a", *["\ufffd"] * 4, "<|end|>"])
            self.assertEqual([token["bytes"] for token in tokens[1:5]], [[byte] for byte in "😀".encode()])
            self.assertEqual(bytes(tokens[5]["bytes"]), b"<|end|>")

        self.make(acts, ["a😀<|end|>"])

    def test_what_it_cannot_do_is_refused_in_openais_form(self):
        bodies = [
            ({}, "messages"), ({"messages": [{"role": "robot"}]}, "messages"), ({"n": 2}, "n"), ({"beams": 4}, "beams"),
            ({"tool_choice": {"type": "function"}}, "tool_choice"), ({"top_logprobs": 3}, "top_logprobs"),
            ({"response_format": {"type": "json_object"}}, "response_format"), ({"temperature": "hot"}, "temperature"),
            ({"temperature": 10**400}, "temperature"),
            *[({"chat_template_kwargs": {name: []}}, "chat_template_kwargs") for name in
              ("tools", "messages", "conversation", "tokenize", "add_generation_prompt", "self")],
            ({"model": ["any"]}, "model"), ({"max_tokens": 0}, "max_tokens"), ({"stop": [1]}, "stop"), ({"tools": [{}]}, "tools"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ]  # fmt: skip

        def acts(client, _):
            for body, parameter in bodies:
                status, answer, _ = client.ask({"messages": [user("hi")], **body} if body else body)
                self.assertEqual((status, answer["error"]["param"]), (400, parameter), body)
            for body in (b"{", b"[" * 100000, b"\xff", b"[]"):
                self.assertEqual(client.ask(body)[0], 400)
            self.assertEqual(client.ask({}, "/v1/embeddings")[0], 404)
            status, answer, _ = client.ask({"messages": [user("x" * 500)]})
            self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))
            client.chat([user("hi")])

        (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"]["refused"], len(bodies) + 6)
        self.assertEqual(message["status"], "truncated")

    def test_attacks_reach_nothing_and_are_counted(self):
        keys = {}
        both = threading.Barrier(2)

        def acts(client, index):
            keys[index] = client.key
            both.wait()
            if index == 1:
                client.chat([user("hi")])
                both.wait()
                return
            hi = {"messages": [user("hi")]}
            for key in ("", "tandem-", client.key + "x", "é"):
                self.assertEqual(client.ask(hi, key=key.encode().decode("latin-1"))[0], 401)
            self.assertEqual(client.ask(b"", headers={"Content-Length": str(agent_http.MAX_BODY_BYTES + 1)})[0], 413)
            self.assertEqual(client.ask(b"", headers={"Content-Length": "1e3"})[0], 400)
            self.assertEqual(client.ask(b"", headers={"X": "y" * (agent_http.MAX_HEAD_BYTES + 1)})[0], 431)
            self.assertEqual(client.ask(b"", headers={"Transfer-Encoding": "chunked"})[0], 411)
            self.assertEqual(client.ask(b"{", headers={"Content-Length": "9"})[0], 408, "the body never ends")
            both.wait()
            client.chat([user("hi")])  # an honest request goes on

        with mock.patch.object(agent_http, "REQUEST_SECONDS", 0.3):
            ended, _ = self.make(acts, ["one<|end|>"], num_samples=2)
        self.assertNotEqual(keys[0], keys[1])
        self.assertEqual(sum(message["endpoint"]["answers"] for message in ended), 2)
        self.assertEqual(sum(message["endpoint"]["refused"] for message in ended), 9)

    def test_clients_that_are_still_sending_see_why_they_are_refused(self):
        """An answer is sent before the body is read. A connection that was then closed was reset under the client."""
        large = bytes(agent_http.MAX_BODY_BYTES + (1 << 20))

        def acts(client, _):
            self.assertEqual(client.ask(large)[0], 413)
            self.assertEqual(client.ask(bytes(1 << 20), key="wrong")[0], 401)
            chunks = (bytes(1 << 16) for _ in range(64))
            self.assertEqual(client.ask_in_chunks(chunks), 411)
            request = urllib.request.Request(client.base_url + "/chat/completions", large)
            request.add_header("Authorization", f"Bearer {client.key}")
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=10)
            self.assertEqual(refused.exception.code, 413)
            refused.exception.close()
            client.chat([user("hi")])

        (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"], {"answers": 1, "restarts": 0, "untrained": 0, "refused": 4})

    def test_what_is_dropped_of_a_refused_request_is_bounded_in_bytes_and_seconds(self):
        def acts(client, _):
            with client.connect() as quiet:  # neither sends more nor closes
                with mock.patch.object(agent_http, "DROP_SECONDS", 0.3):
                    quiet.sendall(b"POST / HTTP/1.1\r\nAuthorization: Bearer wrong\r\nContent-Length: 9\r\n\r\n")
                    self.assertTrue(read_to_end(quiet).startswith(b"HTTP/1.1 401"))
                    wait_until_closed(quiet)
            with client.connect() as endless, self.assertRaises(OSError):
                endless.sendall(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(300):
                    endless.sendall(bytes(1 << 20))
            client.chat([user("hi")])

        with mock.patch.multiple(agent_http, DROP_SECONDS=600, MAX_DROPPED_BYTES=1 << 22):
            (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"], {"answers": 1, "restarts": 0, "untrained": 0, "refused": 2})

    def hold_all_connections(self, client):
        held = [client.send([user("hi")]) for _ in range(2)]
        self.assertEqual([connection.recv(12) for connection in held], [b"HTTP/1.1 200"] * 2)
        return held

    def two_connections(self):
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return mock.patch.multiple(agent_http, RESERVED_DESCRIPTORS=open_files - 4, DROP_SECONDS=600)

    def make_with_two_connections(self, acts):
        with self.two_connections():
            (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"]["answers"], 2)
        return message["endpoint"]["refused"]

    def test_a_client_that_is_one_too_many_sees_why_and_may_come_again(self):
        def acts(client, _):
            held = self.hold_all_connections(client)
            self.assertEqual(client.ask(bytes(1 << 20))[0], 503)
            for connection in held:
                connection.close()
            while client.ask(b"", "/v1/models", method="GET")[0] == 503:
                time.sleep(0.01)

        self.assertGreaterEqual(self.make_with_two_connections(acts), 1)

    def test_connections_are_bounded_also_while_the_rest_of_requests_is_dropped(self):
        def acts(client, _):
            held = self.hold_all_connections(client)
            turned_away = [client.connect() for _ in range(agent_http.MAX_TURNED_AWAY)]
            for connection in turned_away:
                self.assertEqual(connection.recv(12), b"HTTP/1.1 503")
            with client.connect() as further:  # is closed at once, not only after DROP_SECONDS
                self.assertIn(b"503", read_to_end(further))
                wait_until_closed(further)
            for connection in held + turned_away:
                connection.close()

        self.assertEqual(self.make_with_two_connections(acts), agent_http.MAX_TURNED_AWAY + 1)

    def test_connections_without_a_key_make_room_for_one_with_a_key(self):
        def acts(client, _):
            with contextlib.ExitStack() as attack:
                for _ in range(5):
                    attack.enter_context(client.connect())  # never sends a byte
                    attack.enter_context(client.connect()).sendall(b"POST /v1/chat")
                    attack.enter_context(client.connect()).sendall(b"GET /v1/models HTTP/1.1\r\n\r\n")  # is refused
                for _ in range(2):
                    client.chat([user("hi")])

        self.assertGreaterEqual(self.make_with_two_connections(acts), 14)

    def test_connections_of_a_sample_that_has_ended_make_room(self):
        held = []
        are_held = threading.Event()

        def acts(client, index):
            if index == 0:
                held.extend(self.hold_all_connections(client))
                are_held.set()
                return
            are_held.wait(10)
            give_up = time.monotonic() + 10
            while client.ask(b"", "/v1/models", method="GET")[0] == 503 and time.monotonic() < give_up:
                time.sleep(0.01)  # the first sample has not ended yet
            client.chat([user("hi")])

        with self.two_connections():
            ended, _ = self.make(acts, ["one<|end|>"], num_samples=2)
        for connection in held:
            connection.close()
        self.assertEqual([message["endpoint"]["answers"] for message in ended], [2, 1])

    def test_a_connection_has_a_limited_time_for_its_first_byte_and_then_rests_as_long_as_it_likes(self):
        def acts(client, _):
            with client.send([user("hi")]) as of_agent, client.connect() as silent:
                self.assertIn(b"HTTP/1.1 200", of_agent.recv(1 << 16))
                self.assertEqual(silent.recv(1), b"")
                time.sleep(0.4)
                of_agent.sendall(f"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer {client.key}\r\n\r\n".encode())
                self.assertIn(b"HTTP/1.1 200", of_agent.recv(1 << 16))

        with mock.patch.object(agent_http, "REQUEST_SECONDS", 0.3):
            (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"], {"answers": 1, "restarts": 0, "untrained": 0, "refused": 0})

    def test_requests_are_counted_where_the_function_fails(self):
        def acts(client, _):
            client.chat([user("hi")])
            self.assertEqual(client.ask({}, key="wrong")[0], 401)
            self.assertEqual(client.ask(b"{")[0], 400)
            raise ValueError("no sample")

        (message,), _ = self.make(acts, ["one<|end|>"], failing=(0,))
        self.assertIn("no sample", message["failure"])
        self.assertEqual(message["endpoint"], {"answers": 1, "restarts": 0, "untrained": 0, "refused": 2})

    def test_refusals_that_no_sample_is_to_blame_for_wait_for_the_next_sample_that_ends(self):
        endpoint = agent_endpoint.Endpoint({})
        endpoint._server = mock.Mock(port=1)
        endpoint._refused(None)
        endpoint.end(endpoint.client(mock.Mock(), mock.Mock()))  # is cancelled: nobody is told of it
        self.assertEqual([endpoint.take_counts(None)["refused"] for _ in range(2)], [1, 0])

    def test_headers_may_be_repeated_unless_they_decide_what_the_request_is(self):
        deciding = ("Host: a", "Content-Length: 45", "Transfer-Encoding: identity", "Authorization: Bearer a",
                    "Content-Type: application/json")  # fmt: skip

        def answer_to(client, headers):
            with client.send([user("hi")], "".join(f"{header}\r\n" for header in headers)) as connection:
                return connection.recv(1 << 16).decode()

        def acts(client, _):
            answer = answer_to(client, ["Accept: application/json", "accept: */*", "X-Trace: 1", "X-Trace: 2"])
            self.assertIn("200 OK", answer)
            self.assertIn("Connection: keep-alive", answer)
            self.assertIn("Connection: close", answer_to(client, ["Connection: keep-alive", "Connection: Close"]))
            for header in deciding:
                name = header.partition(":")[0].lower()
                self.assertIn(f"the header {name} is there twice; send it once", answer_to(client, [header, header]))

        (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"], {"answers": 2, "restarts": 0, "untrained": 0, "refused": len(deciding)})

    def test_requests_under_way_are_bounded(self):
        def acts(client, _):
            statuses = []
            threads = [threading.Thread(target=lambda: statuses.append(client.ask({"messages": [user("hi")]})[0]))
                       for _ in range(6)]  # fmt: skip
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertLessEqual(set(statuses), {200, 429})

        with mock.patch.object(agent_endpoint, "MAX_WAITING", 0):
            with self.assertRaisesRegex(AssertionError, "returned no sample"):
                self.make(acts, ["one<|end|>"])
        self.make(acts, ["one<|end|>"], max_sequences=6)


class ScalarOf:
    """An integer of a library, as a list of NumPy's or PyTorch's scalars holds it."""

    def __init__(self, value, dtype):
        self._value, self.dtype = value, dtype

    def __index__(self):
        return self._value


class EngineCalls(unittest.TestCase):
    """What functions may give to the engine and to samples, and where they may await it."""

    def setUp(self):
        prompt = mock.Mock(prefix=[])
        self.run_of_sample = engine_calls.Run(1, SAMPLING, 100, None, prompt)
        self.run_of_sample.on_ask = lambda: None

    def asked(self, ids, sampling_params=None):
        """The message that a call makes for the program."""

        async def begin():
            self.run_of_sample.enter()
            call = asyncio.ensure_future(engine_calls.generate(ids, sampling_params))
            await asyncio.wait([call], timeout=0.01)
            if call.done():
                call.result()
            call.cancel()

        asyncio.run(begin())
        return self.run_of_sample.asked.pop()

    def test_token_ids_are_integers(self):
        ids = [1, 6, (1 << 31) - 1]
        for given in (ids, tuple(ids), iter(ids), numpy.array(ids), list(numpy.array(ids)), list(numpy.uint32(ids)),
                      [ScalarOf(id, "torch.int64") for id in ids]):  # fmt: skip
            message = self.asked(given)
            self.assertEqual(message["input_ids"], ids)
            self.assertEqual({type(id) for id in message["input_ids"]}, {int})
        for given, taken in ((numpy.array([3, 4]), [3, 4]), ([], []), (None, [])):
            message = self.asked([1], {"stop_token_ids": given})
            self.assertEqual(message["sampling_params"]["stop_token_ids"], taken)

    def test_what_is_no_token_id_is_refused(self):
        wrong = [[1.5], [2.0], ["16"], [True], [None], [-1], [1 << 31], [[5]], {"input_ids": [5]}, numpy.array([1.0]),
                 list(numpy.array([1.0])), [numpy.True_], numpy.array([True]), [ScalarOf(1, "torch.bool")]]  # fmt: skip
        for given in wrong:
            with self.assertRaisesRegex(ValueError, "^input_ids holds .*, which is no token id; ", msg=given):
                self.asked(given)
            with self.assertRaisesRegex(ValueError, "^append_response_tokens: tokens holds .*no token id", msg=given):
                slime_sample.Sample().append_response_tokens(tokens=given)
            with self.assertRaisesRegex(ValueError, "^sampling_params: stop_token_ids holds .*no token id", msg=given):
                self.asked([1], {"stop_token_ids": given})
        encode = r"is a text; encode it with tokenizer\(\).encode\(text\)$"
        for text in ("16", b"16", ""):
            with self.assertRaisesRegex(ValueError, "^input_ids " + encode):
                self.asked(text)
            with self.assertRaisesRegex(ValueError, "^append_response_tokens: tokens " + encode):
                slime_sample.Sample().append_response_tokens(tokens=text)
        with self.assertRaisesRegex(ValueError, "^input_ids is a NoneType; give a list of token ids$"):
            self.asked(None)

    def test_an_unknown_parameter_is_refused_with_those_that_are_known(self):
        known = "temperature, top_p, top_k, min_p, max_new_tokens, stop, stop_token_ids, ignore_eos"
        with self.assertRaisesRegex(ValueError, f"beams=4 is not known; a call may set {known}, skip_special_tokens$"):
            self.asked([1], {"beams": 4})

    def test_a_call_from_another_event_loop_raises_at_once(self):
        async def function():
            self.run_of_sample.enter()
            with self.assertRaisesRegex(RuntimeError, "another event loop .* asyncio.run_coroutine_threadsafe"):
                await asyncio.to_thread(lambda: asyncio.run(asyncio.wait_for(engine_calls.generate([1]), 5)))
            self.assertEqual(self.run_of_sample.asked, [])
            loop = asyncio.get_running_loop()

            def ask():
                return asyncio.run_coroutine_threadsafe(engine_calls.generate([1]), loop).result(10)

            def answer():
                self.run_of_sample.take_answer({"call": 1, "tokens": [2], "log_probs": [-1.0], "finish_reason": "stop"})

            self.run_of_sample.on_ask = lambda: loop.call_soon(answer)
            self.run_of_sample.tokenizer = mock.Mock(decode=lambda tokens, skip_special_tokens: "two")
            return await asyncio.to_thread(ask)

        self.assertEqual(asyncio.run(asyncio.wait_for(function(), 10)).tokens, [2])

    def test_a_generate_function_with_a_yield_is_called_a_generator(self):
        async def generate(args, sample, sampling_params):
            yield sample

        class Generate:
            async def __call__(self, args, sample, sampling_params):
                yield sample

        for made in (generate, Generate()):
            worker = generator.Worker()
            worker._function = made
            with self.assertRaisesRegex(UserFault, "f: has a yield, which makes it a generator; let it return its"):
                worker._check("agent.py:f")


class ToolCalls(unittest.TestCase):
    def test_are_found_in_the_forms_of_families(self):
        call = tool_calls.ToolCall("add", '{"a": 1}')
        for text in ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
                     '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]',
                     '<|python_tag|>{"name": "add", "parameters": {"a": 1}}',
                     '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}'):  # fmt: skip
            self.assertEqual(tool_calls.find(text), ("", [call]), text)
        half = '{"name": "add", "parameters": {"a": "\\ud83d"}}'
        self.assertEqual(tool_calls.find(half)[1][0].arguments, '{"a": "\\ud83d"}')
        two = '{"name": "add", "arguments": {"a": 1}}</tool_call>'
        self.assertEqual(tool_calls.find(f"so <tool_call>{two}<tool_call>{two}"), ("so", [call, call]))
        for text in ("<tool_call>add(1)</tool_call>", '{"name": "\\ud83d", "parameters": {}}', '{"name": 3, "parameters": {}}', '{"a": 1}', "{", "",
                     f"<tool_call>{two}<tool_call>x</tool_call>", '[TOOL_CALLS]{"name": "add"}'):  # fmt: skip
            self.assertEqual(tool_calls.find(text), (text, []))


if __name__ == "__main__":
    unittest.main()
