"""The endpoint for agents, over sockets: what is kept as token ids, what is refused, and what clients that attack it can
reach. A script stands in for the engine. Whole runs are in tests/cli/multi_turn_test.cc."""

import asyncio
import http.client
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
from tandem_worker import agent_endpoint, agent_http, generator, tool_calls  # noqa: E402

sys.path.insert(0, str(ROOT / "examples/agent"))
from make_data import TEMPLATE  # noqa: E402

TOOLS = [{"type": "function", "function": {"name": "add"}}]
PROMPT = "<|user|>hi<|assistant|>"
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "max_new_tokens": 100, "stop": [],
            "stop_token_ids": [], "ignore_eos": False, "skip_special_tokens": False}  # fmt: skip


def user(text):
    return {"role": "user", "content": text}


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

    def chat(self, messages, **more):
        status, answer, headers = self.ask({"model": "any", "messages": messages, **more})
        assert status == 200, answer
        return answer["choices"][0], headers["Tandem-Conversation"]


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

    def make(self, acts, answers, num_samples=1, context=400, max_sequences=4):
        """Samples whose functions run `acts` (of a client and the number of the sample) in a thread and return what came
        of it; the engine says `answers` in turn. The messages of the samples that ended, and what the engine was asked."""
        worker = generator.Worker()
        worker.load(self.function, self.model, "metadata", {}, 20.0, True, max_sequences, max_sequences, False)
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
        replies, ended, asked = [], [], []
        give_up = time.monotonic() + 30
        while len(ended) < num_samples and time.monotonic() < give_up:
            turn = worker.go_on(begin, replies, [], 0.01)
            begin, replies = [], []
            for call in turn["asked"]:
                text = answers[len(asked) % len(answers)]
                asked.append(tokenizer.decode(call["input_ids"]))
                ids = tokenizer.encode(text)[: call["sampling_params"]["max_new_tokens"]]
                reason = "stop" if text.endswith("<|end|>") else "length"
                replies.append({"run": call["run"], "call": call["call"], "tokens": ids,
                                "log_probs": [-0.5] * len(ids), "finish_reason": reason})  # fmt: skip
            ended += turn["ended"]
        self.assertEqual([one.get("failure") for one in ended], [None] * num_samples)
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

    def test_what_it_cannot_do_is_refused_in_openais_form(self):
        bodies = [
            ({}, "messages"), ({"messages": [{"role": "robot"}]}, "messages"), ({"n": 2}, "n"), ({"beams": 4}, "beams"),
            ({"tool_choice": {"type": "function"}}, "tool_choice"), ({"top_logprobs": 3}, "top_logprobs"),
            ({"response_format": {"type": "json_object"}}, "response_format"), ({"temperature": "hot"}, "temperature"),
            ({"temperature": 10**400}, "temperature"),
            ({"max_tokens": 0}, "max_tokens"), ({"stop": [1]}, "stop"), ({"tools": [{}]}, "tools"),
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


class ToolCalls(unittest.TestCase):
    def test_are_found_in_the_forms_of_families(self):
        call = tool_calls.ToolCall("add", '{"a": 1}')
        for text in ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
                     '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]',
                     '<|python_tag|>{"name": "add", "parameters": {"a": 1}}',
                     '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}'):  # fmt: skip
            self.assertEqual(tool_calls.find(text), ("", [call]), text)
        two = '{"name": "add", "arguments": {"a": 1}}</tool_call>'
        self.assertEqual(tool_calls.find(f"so <tool_call>{two}<tool_call>{two}"), ("so", [call, call]))
        for text in ("<tool_call>add(1)</tool_call>", '{"name": 3, "parameters": {}}', '{"a": 1}', "{", "",
                     f"<tool_call>{two}<tool_call>x</tool_call>", '[TOOL_CALLS]{"name": "add"}'):  # fmt: skip
            self.assertEqual(tool_calls.find(text), (text, []))


if __name__ == "__main__":
    unittest.main()
