"""The Python API as a user calls it, against the program that was built. Usage: api_test.py FOLDER_OF_THE_PROGRAM"""

import json
import os
import pathlib
import re
import signal
import tempfile
import threading
import unittest

from small_run import MODEL, PROMPTS, SMALL_RUN  # noqa: I001, the path of all that follows

import reward_functions
import tandem


def tokenizer_of(process):
    """The process of the tokenizer that an engine has started: the last of those that forked each other."""
    ancestors = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            found = ancestors_of(int(entry.name))
        except OSError:  # it has ended
            continue
        if b"tandem_worker.tokenizer" in words and process in found:
            ancestors[int(entry.name)] = found
    return next(pid for pid in ancestors if not any(pid in of_another for of_another in ancestors.values()))


def ancestors_of(process):
    found = []
    while process > 1:
        status = pathlib.Path(f"/proc/{process}/stat").read_text()
        process = int(status.rpartition(")")[2].split()[1])
        found.append(process)
    return found


class EngineTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = tandem.Engine(MODEL, rollout_max_context_len=96, max_request_bytes=100_000, quiet=True)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def tokens(self, prompts="1 + 1 =", **sampling):
        sampling = {"max_tokens": 6, "ignore_eos": True} | sampling
        return [[c.tokens for c in group] for group in self.engine.generate(prompts, **sampling)]

    def test_says_what_it_can(self):
        self.assertEqual(self.engine.context_tokens, 96)
        self.assertGreater(self.engine.vocab_size, 100)

    def test_takes_texts_messages_and_tokens(self):
        chat = [{"role": "user", "content": "1 + 1 ="}]
        groups = self.engine.generate(["1 + 1 =", chat, {"tokens": [5, 6, 7]}], n=2, max_tokens=4, ignore_eos=True)
        self.assertEqual([len(group) for group in groups], [2, 2, 2])
        self.assertEqual(groups[0].prompt, "1 + 1 =")
        self.assertIn("1 + 1 =", groups[1].prompt)
        self.assertNotEqual(groups[1].prompt, groups[0].prompt)
        self.assertEqual(groups[2].prompt_tokens, [5, 6, 7])
        for completion in (c for group in groups for c in group):
            self.assertEqual(completion.finish_reason, "length")
            self.assertEqual(len(completion.tokens), 4)
            self.assertEqual(len(completion.log_probs), 4)
            self.assertIsNone(completion.sampled_log_probs)
            self.assertTrue(all(value <= 0 for value in completion.log_probs))
        # A prompt's tokens are another way to say it.
        again = self.engine.generate({"tokens": groups[0].prompt_tokens}, n=2, max_tokens=4, ignore_eos=True)
        self.assertEqual([c.tokens for c in again[0]], [c.tokens for c in groups[0]])

    def test_a_request_is_a_value(self):
        first = self.tokens(n=3)
        self.tokens(["something else", "and more"], n=2, seed=9)
        self.assertEqual(self.tokens(n=3), first)
        self.assertNotEqual(self.tokens(n=3, seed=1), first)

    def test_gives_what_the_verb_generate_gives(self):
        with tempfile.TemporaryDirectory() as folder:
            data, output = pathlib.Path(folder) / "data.jsonl", pathlib.Path(folder) / "out.jsonl"
            prompts = ["1 + 1 =", "2 + 2 =", "10 - 3 ="]
            data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
            tandem._program.run(
                ["generate", *tandem._program.flags_of({
                    "hf_checkpoint": MODEL, "prompt_data": data, "output": output, "n_samples_per_prompt": 2,
                    "rollout_max_response_len": 6, "rollout_seed": 7, "quiet": True,
                })]
            )
            expected = [json.loads(line)["completions"] for line in output.read_text().splitlines()]
        groups = self.engine.generate(prompts, n=2, max_tokens=6, seed=7)
        for group, completions in zip(groups, expected, strict=True):
            self.assertEqual([c.tokens for c in group], [c["tokens"] for c in completions])
            self.assertEqual([c.log_probs for c in group], [c["log_probs"] for c in completions])
            self.assertEqual([c.text for c in group], [c["text"] for c in completions])

    def test_every_argument_of_sampling_does_something(self):
        free = self.tokens(n=4, max_tokens=12)
        greedy = self.tokens(n=4, max_tokens=12, temperature=0)
        self.assertEqual(greedy[0], [greedy[0][0]] * 4)
        self.assertNotEqual(free[0][0], free[0][1])
        for one_choice in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
            groups = self.engine.generate("1 + 1 =", n=2, max_tokens=12, ignore_eos=True, **one_choice)
            self.assertEqual([c.tokens for c in groups[0]], greedy[0][:2], one_choice)
            self.assertEqual(groups[0][0].sampled_log_probs, [0.0] * 12)
        self.assertEqual(len(self.tokens(max_tokens=3)[0][0]), 3)
        # Ends at a token or a text that it would have written.
        ended = self.engine.generate("1 + 1 =", max_tokens=12, temperature=0, stop_token_ids=[greedy[0][0][2]])[0][0]
        self.assertEqual((ended.tokens, ended.finish_reason), (greedy[0][0][: greedy[0][0].index(greedy[0][0][2]) + 1],
                                                               "stop"))
        whole = self.engine.generate("1 + 1 =", n=16, max_tokens=12, ignore_eos=True)[0]
        index, word = next((i, m[0]) for i, c in enumerate(whole) if (m := re.search(r"(?<=.)[a-z]{2}", c.text)))
        cut = self.engine.generate("1 + 1 =", n=16, max_tokens=12, ignore_eos=True, stop=[word])[0][index]
        self.assertEqual(cut.finish_reason, "stop")
        self.assertIn(word, cut.text)
        self.assertTrue(whole[index].text.startswith(cut.text) and len(cut.text) < len(whole[index].text))

    def test_refuses_in_a_sentence_and_goes_on(self):
        before = self.tokens()
        for prompts, sampling, says in [
            ("1", {"temperature": -1.0}, "temperature: must be 0 or at least 1e-04, not -1.0"),
            ("1", {"top_p": 0.0}, "top_p: must be greater than 0, not 0.0"),
            ("1", {"n": 0}, "n: must be at least 1, not 0"),
            ("1", {"temperature": {}}, "temperature: expects text, a number"),
            ("1", {"stop": [""]}, "stop: an empty text"),
            ("1", {"top_p": 0.0, "min_p": 7.0}, "; min_p: must be at most 1"),
            ("1", {"stop_token_ids": [10**6]}, "stop_token_ids 1000000: the model has no such token"),
            (["1", "2"], {"n": 10**9}, "a request may have 16384 completions, and this one asks for 1000000000 for each of 2 prompts"),
            ("x" * 200_000, {}, "bytes; a request may have 100000"),
            ([], {}, "prompts: expects a list of one prompt"),
            ([5], {}, "prompts[0]: expects a text"),
            (["1", {"tokens": [10**6]}], {}, "prompts[1]: 1000000 is no token id"),
            ({"tokens": []}, {}, "prompts[0]: has no tokens"),
            ({"text": "1"}, {}, "prompts[0]: expects a text"),
            ([[{"role": "user"}]], {}, "prompts[0]: message 1 has no text"),
            (["1", {"tokens": [5] * 96}], {}, "96"),
        ]:
            with self.subTest(says=says):
                with self.assertRaises(tandem.UserFault) as raised:
                    self.engine.generate(prompts, **sampling)
                self.assertIn(says, str(raised.exception))
                self.assertNotIn("\n", str(raised.exception))
                self.assertNotRegex(str(raised.exception), "--rollout|--n-samples|standard input")
        self.assertEqual(self.tokens(), before)


class EngineLifeTest(unittest.TestCase):
    def test_a_wrong_directory_or_flag_is_the_users(self):
        for arguments, says in [
            (dict(hf_checkpoint="no/such/folder"), "no/such/folder"),
            (dict(hf_checkpoint=MODEL, no_such_flag=1), "--no-such-flag"),
            (dict(hf_checkpoint=MODEL, device="tpu"), "--device tpu"),
        ]:
            with self.subTest(says=says):
                with self.assertRaises(tandem.UserFault) as raised:
                    tandem.Engine(**arguments)
                self.assertIn(says, str(raised.exception))
                self.assertEqual(raised.exception.exit_code, 2)

    def test_a_prompt_too_long_for_the_context_is_refused_before_the_tokenizer_sees_it(self):
        with tandem.Engine(MODEL, rollout_max_context_len=32, quiet=True) as engine:
            good = engine.generate("1 + 1 =", max_tokens=4, temperature=0)[0][0].tokens
            tokenizer = tokenizer_of(engine._process.pid)
            text = "1 + 1 = " * (2 << 20)
            for prompt, num_bytes in [(text, "16777216"), ([{"role": "user", "content": text[:100_000]}], r"100\d+")]:
                with self.assertRaises(tandem.UserFault) as raised:
                    engine.generate([prompt])
                self.assertRegex(str(raised.exception), rf"prompts\[0\]: the text has {num_bytes} bytes, and the context of 32 ")
                self.assertEqual(engine.generate("1 + 1 =", max_tokens=4, temperature=0)[0][0].tokens, good)
            self.assertEqual(tokenizer_of(engine._process.pid), tokenizer)

    def test_a_lost_tokenizer_costs_one_request(self):
        with tandem.Engine(MODEL, rollout_max_context_len=32, quiet=True) as engine:
            good = engine.generate("1 + 1 =", max_tokens=4, temperature=0)[0][0].tokens
            tokenizer = tokenizer_of(engine._process.pid)
            os.kill(tokenizer, signal.SIGSTOP)  # so that it is in the call when it dies
            threading.Timer(1.0, os.kill, (tokenizer, signal.SIGKILL)).start()
            with self.assertRaises(tandem.UserFault) as raised:
                engine.generate("1 + 1 =", max_tokens=4, temperature=0)
            self.assertRegex(str(raised.exception), "the tokenizer was lost while the request was answered: .*signal 9")
            self.assertEqual(engine.generate("1 + 1 =", max_tokens=4, temperature=0)[0][0].tokens, good)
            self.assertNotEqual(tokenizer_of(engine._process.pid), tokenizer)

    def test_closed_or_killed_it_says_so(self):
        with tandem.Engine(MODEL, rollout_max_context_len=32, quiet=True) as engine:
            process = engine._process
            self.assertIsNone(process.poll())
        self.assertEqual(process.returncode, 0)
        with self.assertRaises(ValueError):
            engine.generate("1")
        engine.close()
        engine = tandem.Engine(MODEL, rollout_max_context_len=32, quiet=True)
        os.kill(engine._process.pid, signal.SIGKILL)
        with self.assertRaises(tandem.TandemError) as raised:
            engine.generate("1")
        self.assertIn("-9", str(raised.exception))


class VerbsTest(unittest.TestCase):
    def test_trains_with_a_function_and_reads_the_run(self):
        with tempfile.TemporaryDirectory() as folder:
            run = tandem.train(SMALL_RUN, reward=reward_functions.by_length, save=f"{folder}/run")
            rewards = [record["rollout/raw_reward"] for record in run.metrics("rollout")]
            self.assertEqual(len(rewards), 2)
            self.assertTrue(all(0 <= reward <= 4 for reward in rewards))
            self.assertEqual(len(run.metrics("train")), 2)
            self.assertEqual(len(run.metrics()), 4)
            with self.assertRaisesRegex(tandem.UserFault, "^metrics: 'foo' is no kind of record; give one of rollout, "):
                run.metrics("foo")
            self.assertEqual([r["train/train_rollout_logprob_abs_diff"] for r in run.metrics("train")], [0.0, 0.0])

            # The same from a file, and the weights are such as the engine reads.
            config = pathlib.Path(folder) / "run.toml"
            config.write_text((run.directory / "config.toml").read_text().replace(f"{folder}/run", f"{folder}/again"))
            again = tandem.train(config)
            self.assertEqual(again.directory, pathlib.Path(folder) / "again")
            weights = [(r.hf_directory / "model.safetensors").read_bytes() for r in (run, again)]
            self.assertEqual(weights[0], weights[1])

            tandem.export(run=run.directory, output=f"{folder}/plain", dtype="bfloat16", quiet=True)
            self.assertTrue((pathlib.Path(folder) / "plain" / "model.safetensors").is_file())
            metrics = tandem.evaluate(
                hf_checkpoint=f"{folder}/plain", eval_prompt_data=["small", PROMPTS + "@[0:8]"], rollout_max_response_len=4,
                apply_chat_template=True, reward=reward_functions.by_length, quiet=True,
            )
            self.assertIn("eval/small", metrics)

    def test_supervised(self):
        with tempfile.TemporaryDirectory() as folder:
            data = pathlib.Path(folder) / "data.jsonl"
            data.write_text('{"prompt": "1 + 1 =", "response": " 2"}\n' * 4)
            run = tandem.sft(hf_checkpoint=MODEL, prompt_data=data, global_batch_size=2, num_epoch=1, lr=1e-3,
                             use_tensorboard=False, save=f"{folder}/run", quiet=True)
            self.assertEqual(len(run.metrics("train")), 2)

    def test_plans(self):
        plan = tandem.plan(hf_checkpoint=MODEL, rollout_batch_size=4)
        self.assertGreater(json.dumps(plan).count("weights"), 0)

    def test_faults_are_exceptions(self):
        with tempfile.TemporaryDirectory() as folder:
            for arguments, says in [
                (dict(reward=lambda completions: [0.0]), "top level of a file"),
                (dict(reward=reward_functions.make_nested()), "top level of a file"),
                (dict(reward=len), "top level of a file"),
                (dict(reward=[reward_functions.by_length, reward_functions.make_nested()]), "top level of a file"),
                (dict(reward=[]), "the list is empty"),
                (dict(reward="math"), "rm_type='math' names a built-in reward"),
                (dict(reward=5), "5 is not a function"),
                (dict(rm_type="math", eps_clip=-1.0), "--eps-clip"),
                (dict(rm_type="math", no_such_flag=True), "--no-such-flag"),
                (dict(rm_type={"a": 1}), "rm_type: expects text"),
            ]:
                with self.subTest(says=says):
                    with self.assertRaises(tandem.UserFault) as raised:
                        tandem.train(SMALL_RUN, save=f"{folder}/run", **arguments)
                    self.assertIn(says, str(raised.exception))
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [])
            with self.assertRaises(tandem.UserFault) as raised:
                tandem.train(SMALL_RUN | dict(rm_type="math"))
            self.assertIn("save", str(raised.exception))


class FlagsTest(unittest.TestCase):
    def test_are_typed_as_a_shell_would(self):
        self.assertEqual(
            tandem._program.flags_of(
                {"a_b": 1, "c": True, "d": False, "e": None, "f": ["--x"], "g": ["x", "y"], "h": [], "l": [""], "i": "--v", "j": 1e-6,
                 "k": pathlib.Path("p")}
            ),
            ["--a-b=1", "--c", "--no-d", "--f=--x", "--g", "x", "y", "--h=", "--l", "", "--i=--v", "--j=1e-06", "--k=p"],
        )

    def test_pins_are_those_of_the_requirements(self):
        pins = {}
        for name in ("requirements-torch.txt", "requirements.txt"):
            for line in pathlib.Path(name).read_text().splitlines():
                if match := re.match(r"([A-Za-z0-9_.-]+)==([^;\s]+)", line):
                    pins.setdefault(match[1].lower().replace("_", "-"), set()).add(match[2])
        project = pathlib.Path("pyproject.toml").read_text()
        listed = re.search(r"^dependencies = \[(.*?)^\]", project, re.DOTALL | re.MULTILINE)[1]
        dependencies = re.findall(r'"([A-Za-z0-9_.-]+)(?:\[.*\])?(==|~=|>=)(.+)"', listed)
        self.assertEqual(len(dependencies), listed.count("\n") - 1)
        for name, operator, version in dependencies:
            of_name = pins[name.lower().replace("_", "-")]
            same = any(pin == version or operator == "~=" and pin.startswith(version + ".") for pin in of_name)
            self.assertTrue(same, f"{name}{operator}{version} in pyproject.toml, {of_name} in the requirements")
        version = tandem.version()
        for name in ("pyproject.toml", "packaging/cuda/pyproject.toml"):
            self.assertIn(f'\nversion = "{version}"\n', pathlib.Path(name).read_text())


if __name__ == "__main__":
    unittest.main()
