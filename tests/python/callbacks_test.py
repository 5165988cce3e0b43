"""Callbacks of a run: which records they are given, and what they do to it. Usage: callbacks_test.py FOLDER"""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

from small_run import PROMPTS, SMALL_RUN  # noqa: I001, the path of all that follows

import tandem
from tandem._records import Follower

LONG_RUN = SMALL_RUN | dict(num_rollout=1000, rm_type="f1", rollout_max_response_len=2)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class CallbacksTest(Folder):
    def test_get_each_record_once_and_of_a_resumed_run_the_new_ones(self):
        seen = []
        callbacks = dict(on_rollout=seen.append, on_step=seen.append, on_eval=seen.append)
        arguments = SMALL_RUN | dict(
            rm_type="f1", save=self.folder / "run", eval_prompt_data={"small": PROMPTS + "@[0:2]"}, eval_interval=1,
            eval_max_response_len=2,
        )
        run = tandem.train(arguments, **callbacks)
        self.assertEqual(seen, run.metrics())
        self.assertEqual([len(run.metrics(kind)) for kind in ("rollout", "train", "eval")], [2, 2, 3])
        seen.clear()
        # In place, from an earlier checkpoint than the last: what came after it is cut away and written anew.
        tandem.train(arguments, load=run.directory, num_rollout=3, save_interval=1, **callbacks)
        self.assertEqual([record.get("rollout/step") for record in seen if "rollout/step" in record], [2])
        seen.clear()
        tandem.train(arguments, load=run.directory, ckpt_step=2, num_rollout=4, **callbacks)
        self.assertEqual([record.get("rollout/step") for record in seen if "rollout/step" in record], [2, 3])
        self.assertEqual(seen, run.metrics()[-len(seen):])
        # Over an old run, everything is new.
        seen.clear()
        tandem.train(arguments, overwrite=True, num_rollout=1, on_rollout=seen.append)
        self.assertEqual(seen, run.metrics("rollout"))
        self.assertEqual(len(seen), 1)

    def test_stop_ends_the_run_saved(self):
        steps = []

        def stop(record):
            steps.append(record["rollout/step"])
            return "stop" if len(steps) == 2 else None

        run = tandem.train(LONG_RUN, save=self.folder / "run", on_rollout=stop)
        self.assertEqual(steps, [0, 1])
        finished = len(run.metrics("rollout"))
        self.assertLess(finished, 900)
        self.assertEqual((run.directory / "checkpoints/latest").read_text(), f"step_{finished:06}\n")
        self.assertTrue((run.hf_directory / "model.safetensors").is_file())
        # Where several ranks train too.
        run = tandem.train(
            LONG_RUN, save=self.folder / "ranks", actor_num_gpus_per_node=2, on_step=lambda record: "stop"
        )
        finished = len(run.metrics("rollout"))
        self.assertLess(finished, 900)
        self.assertEqual((run.directory / "checkpoints/latest").read_text(), f"step_{finished:06}\n")

    def test_an_exception_is_raised_after_the_run_was_saved(self):
        def fail(record):
            raise LookupError(f"at {record['train/step']}")

        for callback, error, says in [
            (fail, LookupError, "at 0"),
            (lambda record: True, TypeError, 'returned True: return "stop" to end the run, or None'),
        ]:
            with self.subTest(says=says):
                with self.assertRaises(error) as raised:
                    tandem.train(LONG_RUN, save=self.folder / "run", overwrite=True, on_step=callback)
                self.assertIn(says, str(raised.exception))
                self.assertIsNone(raised.exception.__cause__)
                self.assertRegex((self.folder / "run/checkpoints/latest").read_text(), "step_0")

    def test_what_cannot_be_called_is_refused_before_a_run_is_replaced(self):
        save = self.folder / "run"
        save.mkdir()
        (save / "config.toml").write_text("num-rollout = 3\n")
        arguments = SMALL_RUN | dict(rm_type="f1", save=save, overwrite=True)
        for verb, callbacks, says in [
            (tandem.train, dict(on_step=5), "on_step: expects a function of one record, not 5"),
            (tandem.train, dict(on_eval=lambda: None), "on_eval: .* cannot be called with one record: too many positional arguments"),
            (tandem.train, dict(on_rollout=lambda a, b: None), "on_rollout: .*: missing a required argument: 'b'"),
            (tandem.train, dict(on_steps=print), "on_steps: train has no such callback; it has on_rollout, on_step, on_eval"),
            (tandem.train, dict(on_save_error="sotp"), "--on-save-error: 'sotp' .*"),
            (tandem.sft, dict(on_rollout=print), "on_rollout: sft has no such callback; it has on_step, on_eval"),
        ]:
            with self.subTest(says=says):
                with self.assertRaisesRegex(tandem.UserFault, f"^{says}$"):
                    verb(arguments, **callbacks)
        self.assertEqual([path.name for path in save.iterdir()], ["config.toml"])

    def test_of_sft_too(self):
        data = self.folder / "data.jsonl"
        data.write_text('{"prompt": "1 + 1 =", "response": " 2"}\n' * 4)
        seen = []
        run = tandem.sft(
            hf_checkpoint=SMALL_RUN["hf_checkpoint"], prompt_data=data, global_batch_size=2, num_epoch=1, lr=1e-3,
            use_tensorboard=False, save=self.folder / "run", quiet=True, on_step=seen.append,
        )
        self.assertEqual(seen, run.metrics("train"))
        self.assertEqual(len(seen), 2)

    def test_of_evaluations_without_data_say_that_they_do_nothing(self):
        data = self.folder / "data.jsonl"
        data.write_text('{"prompt": "1 + 1 =", "response": " 2"}\n' * 4)
        flags = dict(
            hf_checkpoint=SMALL_RUN["hf_checkpoint"], prompt_data=data, global_batch_size=2, num_epoch=1, dry_run=True,
            use_tensorboard=False, save=self.folder / "run", quiet=True, on_eval=print,
        )
        for more, says in [
            ({}, "tandem: warning: on_eval: does nothing without eval_prompt_data\n"),
            (dict(eval_prompt_data={"small": data}, eval_interval=1), ""),
        ]:
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                tandem.sft(**flags, **more)
            self.assertEqual(errors.getvalue(), says)


class FollowerTest(Folder):
    """Without a program: files as a run leaves them, at moments that a test of a whole run meets by chance alone."""

    def write(self, name, text):
        with open(self.folder / name, "a", encoding="utf-8") as file:
            file.write(text)

    def begin(self):
        (self.folder / "config.new").write_text("")
        (self.folder / "config.new").rename(self.folder / "config.toml")

    def test_waits_until_old_records_are_cut_away(self):
        old = ['{"rollout/step":0,"x":1}\n', '{"rollout/step":1,"x":2}\n']
        self.write("config.toml", "")
        self.write("metrics.jsonl", "".join(old))
        checkpoint = self.folder / "checkpoints/step_000001"
        checkpoint.mkdir(parents=True)
        (checkpoint / "state.json").write_text(json.dumps({"file_bytes": {"metrics.jsonl": len(old[0])}}))
        seen = []
        follower = Follower(self.folder, {"rollout": seen.append}, checkpoint)
        self.assertFalse(follower())
        self.assertEqual(seen, [])
        (self.folder / "metrics.jsonl").write_text(old[0])
        self.assertFalse(follower())
        self.begin()
        # More than was cut away, and half a record.
        self.write("metrics.jsonl", '{"rollout/step":1,"x":"nan"}\n{"train/step":1}\n')
        self.write("metrics.jsonl", '{"rollout/step":2,"x":"-inf"}\n{"ro')
        self.assertFalse(follower())
        self.assertEqual([record["rollout/step"] for record in seen], [1, 2])
        self.assertNotEqual(seen[0]["x"], seen[0]["x"])
        self.assertEqual(seen[1]["x"], float("-inf"))
        self.write("metrics.jsonl", 'llout/step":3}\n')
        self.assertFalse(follower())
        self.assertEqual(seen[2], {"rollout/step": 3})

    def test_takes_no_record_of_a_run_that_is_being_removed(self):
        self.write("config.toml", "")
        self.write("metrics.jsonl", '{"rollout/step":0,"x":1}\n')
        seen = []
        follower = Follower(self.folder, {"rollout": seen.append}, None)
        (self.folder / "config.toml").unlink()  # a run that overwrites this one may remove it first
        self.assertFalse(follower())
        (self.folder / "metrics.jsonl").unlink()
        self.begin()
        self.write("metrics.jsonl", '{"rollout/step":0,"x":2}\n')
        self.assertFalse(follower())
        self.assertEqual(seen, [{"rollout/step": 0, "x": 2}])

    def test_an_interrupted_callback_loses_no_record(self):
        seen = []

        def interrupted_once(record):
            seen.append(record["rollout/step"])
            if len(seen) == 1:
                raise KeyboardInterrupt

        follower = Follower(self.folder, {"rollout": interrupted_once}, None)
        self.begin()
        self.write("metrics.jsonl", '{"rollout/step":0}\n{"rollout/step":1}\n')
        self.assertRaises(KeyboardInterrupt, follower)
        self.assertFalse(follower())
        self.assertEqual(seen, [0, 1])

    def test_gives_no_record_after_the_one_that_stops(self):
        seen = []
        follower = Follower(self.folder, {"rollout": lambda record: seen.append(record) or "stop"}, None)
        self.begin()
        self.write("metrics.jsonl", '{"rollout/step":0}\n{"rollout/step":1}\n')
        self.assertTrue(follower())
        self.assertEqual(seen, [{"rollout/step": 0}])


if __name__ == "__main__":
    unittest.main()
