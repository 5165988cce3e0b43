"""Rows of a script as data, rewards in the caller's interpreter, several rewards. Usage: rows_test.py FOLDER"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

from small_run import MODEL, PROMPTS, REPOSITORY, SMALL_RUN  # noqa: I001, the path of all that follows

import reward_functions
import tandem
from tandem._rows import with_files, write_rows

ROWS = [json.loads(line) for line in pathlib.Path(PROMPTS).read_text().splitlines()]


class Dataset:
    """What of datasets.Dataset counts: rows when it is iterated, and columns."""

    def __init__(self, rows):
        self._rows = rows
        self.column_names = list(rows[0])

    def __len__(self):
        return len(self._rows)

    def __iter__(self):
        return iter(self._rows)

    def __getitem__(self, index):
        return self._rows[index]


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def weights(self, run):
        return (run.hf_directory / "model.safetensors").read_bytes()


class RowsTest(Folder):
    def test_train_as_the_file_that_holds_them_and_resume(self):
        reward = reward_functions.by_length
        expected = tandem.train(SMALL_RUN, reward=reward, save=self.folder / "file")
        run = tandem.train(
            SMALL_RUN, reward=reward, prompt_data=ROWS, save=self.folder / "run", num_rollout=1, eval_interval=1,
            eval_prompt_data={"small": ROWS[:2]}, eval_max_response_len=2,
        )
        files = sorted(path.name.rpartition("-")[0] for path in (self.folder / "run-data").iterdir())
        self.assertEqual(files, ["eval_prompt_data_small", "prompt_data"])
        self.assertEqual(len(run.metrics("eval")), 2)
        # The same rows, whatever holds them.
        resumed = dict(reward=reward, save=run.directory, load=run.directory)
        again = tandem.train(SMALL_RUN, prompt_data=Dataset(ROWS), **resumed)
        self.assertEqual(self.weights(again), self.weights(expected))
        with self.assertRaises(tandem.UserFault) as raised:
            tandem.train(SMALL_RUN, prompt_data=ROWS[::-1], num_rollout=3, **resumed)
        self.assertIn("the file of --prompt-data", str(raised.exception))
        # From the shell, with the options of the run.
        tandem._program.run(["train", f"--config={run.directory}/config.toml", f"--load={run.directory}", "--dry-run"])

    def test_of_evaluations_leave_nothing(self):
        metrics = tandem.evaluate(
            hf_checkpoint=MODEL, eval_prompt_data={"small": iter(ROWS[:3])}, rollout_max_response_len=2, rm_type="f1",
            apply_chat_template=True, quiet=True,
        )
        self.assertIn("eval/small", metrics)
        tandem.plan(hf_checkpoint=MODEL, prompt_data=ROWS, rollout_batch_size=4)

    def test_give_one_file_for_one_content(self):
        first = write_rows("data", ROWS, self.folder / "deep" / "down")
        self.assertEqual(write_rows("data", Dataset(ROWS), self.folder / "deep" / "down"), first)
        self.assertEqual([json.loads(line) for line in first.read_text().splitlines()], ROWS)
        other = write_rows("data", [{"prompt": "\u00e4\u2028\n\"", "n": [1, None, {"a": 0.5}]}], first.parent)
        self.assertNotEqual(other, first)
        self.assertEqual(len(other.read_bytes().splitlines()), 1)
        self.assertEqual(sorted(first.parent.iterdir()), sorted([first, other]))

    def test_that_cannot_be_written_are_refused_with_their_place(self):
        class Array:
            def tolist(self):
                return [1, 2]

        self.assertIn(b'"a": [1, 2]', write_rows("data", [{"a": Array()}], self.folder).read_bytes())
        for rows, says in [
            ([], "data: there are no rows"),
            (["text"], "row 0 is str 'text', not a dict"),
            ([{"a": 1}, {"a": 1, "image": b"x"}], "row 1 cannot be written as JSON: column 'image': bytes is no text"),
            ([{"a": float("nan")}], "column 'a'"),
            ([{"a": "\ud800"}], "column 'a'"),
            ([{1: "a"}], "a column's name is no text"),
        ]:
            with self.subTest(says=says), self.assertRaises(tandem.UserFault) as raised:
                write_rows("data", rows, self.folder / "refused")
            self.assertIn(says, str(raised.exception))
            self.assertNotIn("\n", str(raised.exception))
        self.assertEqual(list((self.folder / "refused").iterdir()), [])
        (self.folder / "file").write_text("")
        with self.assertRaises(tandem.EnvironmentFault) as raised:
            write_rows("data", ROWS, self.folder / "file")
        self.assertIn(str(self.folder / "file"), str(raised.exception))

    def test_stand_where_paths_may(self):
        def write(name, rows):
            return f"<{name}:{len(list(rows))}>"

        row = {"prompt": "1"}
        for options, expected in [
            ({"prompt_data": "a.jsonl", "x": 1}, {"prompt_data": "a.jsonl", "x": 1}),
            ({"prompt_data": ["a", "b"]}, {"prompt_data": ["a", "b"]}),
            ({"prompt_data": [row, row]}, {"prompt_data": "<prompt_data:2>"}),
            ({"prompt_data": ["a", Dataset([row])]}, {"prompt_data": ["a", "<prompt_data:1>"]}),
            ({"prompt_data": (row for _ in range(3))}, {"prompt_data": "<prompt_data:3>"}),
            ({"eval_prompt_data": ["a", "a.jsonl", "b", [row]]},
             {"eval_prompt_data": ["a", "a.jsonl", "b", "<eval_prompt_data_b:1>"]}),
            ({"eval_prompt_data": {"a": Dataset([row]), "b": "b.jsonl"}},
             {"eval_prompt_data": ["a", "<eval_prompt_data_a:1>", "b", "b.jsonl"]}),
        ]:
            self.assertEqual(with_files(options, write), expected)
        for options, says in [
            ({"prompt_data": {"train": [row], "test": [row]}}, "is a dict of 'train', 'test'; give one of them"),
            ({"eval_prompt_data": [row]}, 'eval_prompt_data={"NAME": rows}'),
        ]:
            with self.assertRaises(tandem.UserFault) as raised:
                with_files(options, write)
            self.assertIn(says, str(raised.exception))


class RewardsTest(Folder):
    def test_a_list_is_a_weighted_sum(self):
        run = tandem.train(
            SMALL_RUN, reward=[reward_functions.by_length, reward_functions.constant], reward_weights=[1, -0.5],
            num_rollout=1, save=self.folder / "run",
        )
        record = run.metrics("rollout")[0]
        self.assertEqual(record["rollout/rewards/constant/mean"], 2.0)
        self.assertAlmostEqual(record["rollout/raw_reward"], record["rollout/rewards/by_length/mean"] - 1.0)

    def test_run_in_the_interpreter_of_the_script(self):
        # An environment of its own, with a package that no other has.
        environment = self.folder / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        packages = sysconfig.get_path("purelib", "venv", {"base": str(environment)})
        (pathlib.Path(packages) / "only_here.py").write_text("ANSWER = 3.0\n")
        script = self.folder / "script.py"
        script.write_text(
            "import only_here, tandem\n"
            "def reward(completions, **kwargs):\n    return [only_here.ANSWER] * len(completions)\n"
            "if __name__ == '__main__':\n"
            f"    run = tandem.train({SMALL_RUN!r}, reward=reward, num_rollout=1, save={str(self.folder / 'run')!r})\n"
            "    print(run.metrics('rollout')[0]['rollout/raw_reward'])\n"
        )
        done = subprocess.run([environment / "bin" / "python", script], capture_output=True, text=True, cwd=REPOSITORY)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[-1], "3.0")
        self.assertIn(f"{environment}/bin/python", (self.folder / "run/config.toml").read_text())
        # math needs a package there. Tandem's own interpreter, which has it, is that of this test.
        script.write_text(script.read_text().replace("reward=reward", "reward=reward, rm_type='math', overwrite=True"))
        done = subprocess.run([environment / "bin" / "python", script], capture_output=True, text=True, cwd=REPOSITORY)
        last = done.stderr.splitlines()[-1]
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("math-verify", last)
        self.assertIn("rewards run in the interpreter that runs this script", last)

    def test_the_interpreter_may_change_when_a_run_resumes(self):
        arguments = dict(reward=reward_functions.by_length, save=self.folder / "run")
        link = self.folder / "python"
        link.write_text(f"#!/bin/sh\nexec '{sys.executable}' \"$@\"\n")
        link.chmod(0o755)
        tandem.train(SMALL_RUN, num_rollout=1, rm_python=link, **arguments)
        run = tandem.train(SMALL_RUN, load=self.folder / "run", **arguments)
        self.assertEqual(len(run.metrics("rollout")), 2)


class WandbTest(Folder):
    def test_of_a_wheel_it_is_installed_by_pip(self):
        shutil.copytree("python/tandem_worker", self.folder / "tandem/python/tandem_worker")
        for place, says in [
            ("python", "`tools/setup.sh wandb` installs it"),
            (self.folder / "tandem/python", "`pip install 'tandem[wandb]'` installs it"),
        ]:
            done = subprocess.run(
                [sys.executable, "-S", "-c", "from tandem_worker import wandb_sink; wandb_sink.load_package()"],
                env=os.environ | {"PYTHONPATH": str(place)}, capture_output=True, text=True,
            )
            self.assertIn(says, done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
