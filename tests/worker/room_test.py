"""What a worker's place is like: the limit of processes of a room, of which the kernel refuses one below 8 ids for each
core, so that it depends on the machine; the scratch folder of a worker without a sandbox."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PYTHON = str(pathlib.Path(__file__).resolve().parents[2] / "python")
sys.path.insert(0, PYTHON)
from tandem_worker.sandbox import room  # noqa: E402


class LargestProcessId(unittest.TestCase):
    def test_leaves_room_for_the_processes_on_a_small_machine(self):
        for cores in ("0\n", "0-1\n", "0-44\n"):
            self.assertEqual(room.largest_process_id(64, cores), 364, cores)

    def test_is_what_the_kernel_takes_at_least_on_a_large_one(self):
        for cores, least in {"0-63\n": 512, "0-45\n": 368, "0-63,128-191\n": 1024, "0,2,4-97\n": 768}.items():
            self.assertEqual(room.largest_process_id(64, cores), least, cores)


# What keeper.py does with a warm parent and its forks where there is no sandbox.
WITHOUT_SANDBOX = """
import json, os, sys, tempfile
from tandem_worker.sandbox import keeper, sandbox
limits = {"memory_bytes": 1 << 30, "file_bytes": 1 << 20, "open_files": 64, "processes": 64}
confinement = sandbox.Confinement(False, False, False, json.loads(sys.argv[1]), limits, 2, 1 << 20, True)
confinement.prepare()
if os.fork() == 0:
    confinement.enter_sandbox()
    for join in (lambda: None, lambda: (keeper.lodge(confinement, None), confinement.confine_fork())):
        join()
        with tempfile.NamedTemporaryFile(delete=False) as file:
            print(json.dumps([os.environ.get("TMPDIR"), file.name]), flush=True)
    os._exit(0)
os.wait()
confinement.remove_folder()
"""


class WithoutSandbox(unittest.TestCase):
    def run_in(self, writable, tmpdir):
        words = [sys.executable, "-B", "-c", WITHOUT_SANDBOX, json.dumps(writable)]
        environment = {**os.environ, "PYTHONPATH": PYTHON, "TMPDIR": tmpdir}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=60)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_each_process_has_a_scratch_folder_that_goes_with_the_run(self):
        with tempfile.TemporaryDirectory() as parent:
            folder = os.path.join(parent, "graders")
            os.mkdir(folder)
            said = self.run_in([folder], parent)
            self.assertEqual(len({scratch for scratch, _ in said}), 2, "one of the warm parent and one of its fork")
            for scratch, file in said:
                self.assertEqual(os.path.dirname(scratch), folder)
                self.assertEqual(os.path.dirname(file), scratch)
            self.assertEqual(os.listdir(parent), [], "the folder is removed with what is in it")

    def test_there_is_none_where_the_program_names_no_folder(self):
        with tempfile.TemporaryDirectory() as parent:
            self.assertEqual([scratch for scratch, _ in self.run_in(None, parent)], [parent] * 2)


if __name__ == "__main__":
    unittest.main()
