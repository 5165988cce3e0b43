"""The endpoint for agents, over sockets: what is kept as token ids, and what requests ask for. Whole runs are in
tests/cli/multi_turn_test.cc."""

import json
import subprocess
import unittest
from unittest import mock

from endpoint_fixture import PROMPT, ROOT, TOOLS, EndpointTest, Engine, tokenizer_of, user
from tandem_worker.agents import tool_calls
from tandem_worker.user_functions import engine_calls

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


class Conversations(EndpointTest):
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


if __name__ == "__main__":
    unittest.main()
