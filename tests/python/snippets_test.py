"""Scripts as users run them, each in a process of its own: the snippets of docs/PYTHON.md, and scripts that leave an
engine open. Usage: snippets_test.py FOLDER_OF_THE_PROGRAM"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from small_run import REPOSITORY

PAGE = pathlib.Path("docs/PYTHON.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
# What takes long on the page, and in its place what takes seconds. Each has to be on the page.
SHORTER = {
    "num_rollout=200": "num_rollout=2",
    "num_rollout=20,": "num_rollout=2,",
    "rollout_batch_size=32": "rollout_batch_size=4",
    "rollout_batch_size=16": "rollout_batch_size=4",
    "n_samples_per_prompt=8": "n_samples_per_prompt=4",
    "max_tokens=64": "max_tokens=4",
    'save="': 'rollout_max_response_len=4, eval_max_response_len=4, save="',
}


def run_script(text, folder, messages=False):
    """The finished process of a script in that folder, where Qwen3-0.6B is the checkpoint of the arithmetic example, and
    prompts are texts, or lists of messages."""
    folder = pathlib.Path(folder)
    if not (folder / "Qwen3-0.6B").exists():
        (folder / "Qwen3-0.6B").symlink_to(pathlib.Path(REPOSITORY) / "examples/arithmetic/checkpoint")
        for name in ("train", "test"):
            prompts = [f"{a}+{a}=" for a in range(10, 18)]
            if messages:
                prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
            rows = [{"prompt": prompt, "label": str(2 * a)} for a, prompt in zip(range(10, 18), prompts)]
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "script.py").write_text(text)
    return subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=280
    )


class SnippetsTest(unittest.TestCase):
    def test_each_of_the_page_runs(self):
        self.assertGreaterEqual(len(SNIPPETS), 5)
        for words in SHORTER:
            self.assertTrue(any(words in snippet for snippet in SNIPPETS), f"{words} is on the page no more")
        for snippet in SNIPPETS:
            text = snippet
            for words, shorter in SHORTER.items():
                text = text.replace(words, shorter)
            for messages in (False, True) if ".jsonl" in text else (False,):
                with self.subTest(snippet=text, messages=messages), tempfile.TemporaryDirectory() as folder:
                    done = run_script(text, folder, messages)
                    self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
                    self.assertNotIn("Traceback", done.stderr)


class OpenEngineTest(unittest.TestCase):
    MAKE = 'import tandem\nengine = tandem.Engine("Qwen3-0.6B", rollout_max_context_len=32)\n'
    ASK = 'print(engine.generate("1+1=", max_tokens=2)[0].prompt)\n'

    def test_a_script_may_leave_it_open(self):
        for rest, code in [
            ("", 0),
            (self.ASK, 0),
            (self.ASK + "raise ValueError('of the script')\n", 1),
            (self.ASK + "raise SystemExit(5)\n", 5),
            (self.ASK + "engine.keep = engine\n", 0),  # garbage that refers to itself
            ("def ask():\n    " + self.ASK + "import threading\nthreading.Thread(target=ask).start()\n", 0),
            (self.ASK + "print('last', engine._process.pid, flush=True)\ndel engine\n", 0),
        ]:
            with self.subTest(rest=rest), tempfile.TemporaryDirectory() as folder:
                done = run_script(self.MAKE + rest, folder)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertNotIn("Fatal", done.stderr)
                self.assertEqual("of the script" in done.stderr, "of the script" in rest)

    def test_no_process_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run_script(self.MAKE + "print(engine._process.pid)\n", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertFalse(os.path.exists(f"/proc/{int(done.stdout)}"))


if __name__ == "__main__":
    unittest.main()
