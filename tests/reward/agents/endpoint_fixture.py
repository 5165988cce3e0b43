"""What tests of the endpoint for agents share: samples whose functions are clients in a thread, and a script that stands in
for the engine."""

import asyncio
import http.client
import json
import pathlib
import shutil
import socket
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "python"))
from tandem_worker import generator  # noqa: E402

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


class EndpointTest(unittest.TestCase):
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
