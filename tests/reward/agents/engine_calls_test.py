"""What functions may give to the engine and to samples, and the calls of tools that are found in answers."""

import asyncio
import unittest
from unittest import mock

import numpy
from endpoint_fixture import SAMPLING
from tandem_worker import generator
from tandem_worker.agents import tool_calls
from tandem_worker.protocol import UserFault
from tandem_worker.user_functions import engine_calls, slime_sample


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
