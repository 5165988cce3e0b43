"""python -m tandem.ray on a cluster of raylets of this machine: a head without devices, as on Kubernetes, and nodes of two
"devices" each. Needs tools/setup.sh ray; says NOT TRIED without."""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

REPOSITORY = pathlib.Path.cwd()
PROGRAM_FOLDER = os.path.abspath(sys.argv.pop(1))
RAY_FOLDER = REPOSITORY / ".venv-ray" / "bin"
PATIENCE_S = 120
STOPPED = 0  # as of every run that SIGTERM ends and that is saved

REWARD = """
import os, time
def reward(prompts, completions, **kwargs):
    time.sleep({seconds})
    print("the reward sees", os.environ.get("WORD_OF_THE_TEST"))
    return [float(i % 2) for i in range(len(completions))]
"""


def environment(**more):
    own = {"PATH": PROGRAM_FOLDER + os.pathsep + os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "python"),
           "RAY_USAGE_STATS_ENABLED": "0", "OMP_WAIT_POLICY": "passive"}  # fmt: skip
    return {**os.environ, **own, **more}


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def own_address():
    """As other machines see this one: a second node cannot join a head at 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]


def processes(*words):
    """Numbers of the processes whose command line has all words."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            text = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if all(word in text for word in words) and (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.append(int(folder.name))
    return found


def parent_of(process):
    return int(pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def descendants(root):
    parents = {}
    for folder in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parents[int(folder.name)] = parent_of(int(folder.name))
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


class Node:
    """A raylet, and a head's other processes, in a process group of its own."""

    def __init__(self, folder, *words):
        self.log = open(pathlib.Path(folder) / f"node-{free_port()}.log", "w")
        self.process = subprocess.Popen(
            [RAY_FOLDER / "ray", "start", "--block", "--disable-usage-stats", *words],
            env=environment(), stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip

    def kill(self):
        """As a power cut would: all of its processes at once."""
        for process in [*descendants(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()
        self.log.close()


class Cluster:
    def __init__(self, folder):
        self.folder, self.address, self.dashboard = folder, f"{own_address()}:{free_port()}", free_port()
        host, port = self.address.split(":")
        self.nodes = [Node(folder, "--head", "--node-ip-address", host, "--port", port, "--num-cpus", "0", "--temp-dir",
                           str(folder), "--dashboard-port", str(self.dashboard))]  # fmt: skip

    def add(self, devices):
        self.nodes.append(Node(self.folder, "--address", self.address, "--num-cpus", str(devices)))
        return self.nodes[-1]

    def wait_for(self, count):
        status = f"import ray; ray.init('{self.address}', log_to_driver=False, logging_level='error'); print('nodes', sum(n['Alive'] for n in ray.nodes()))"
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            out = subprocess.run([RAY_FOLDER / "python", "-c", status], env=environment(), capture_output=True, text=True)
            if f"nodes {count}" in out.stdout:
                return
        raise AssertionError(f"no {count} nodes: {out.stdout} {out.stderr[-2000:]}")

    def kill(self):
        for node in reversed(self.nodes):
            node.kill()


class Job:
    """`python -m tandem.ray` and all that it prints."""

    def __init__(self, cluster, words, save, **variables):
        self.save, self.path = save, pathlib.Path(f"{save}.txt")
        self.file = open(self.path, "w")
        self.process = subprocess.Popen([RAY_FOLDER / "python", "-m", "tandem.ray", *words], stdout=self.file,
                                        env=environment(RAY_ADDRESS=cluster.address, **variables), stderr=self.file)  # fmt: skip

    def text(self):
        return self.path.read_text()

    def wait_for(self, pattern):
        end = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.text()):
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"no {pattern!r} in:\n{self.text()}")
            time.sleep(0.05)

    def code(self):
        code = self.process.wait(timeout=PATIENCE_S)
        self.file.close()
        return code

    def weights(self):
        (path,) = pathlib.Path(self.save).glob("hf/latest/*.safetensors")
        return hashlib.sha256(path.read_bytes()).hexdigest()


class OnRay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="tr-", dir="/tmp"))  # sockets have short names
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        for name, seconds in {"quick": 0.0, "slow": 0.3}.items():
            (cls.folder / f"{name}.py").write_text(REWARD.format(seconds=seconds))
        cls.cluster = Cluster(cls.folder)
        cls.addClassCleanup(cls.cluster.kill)
        for count in range(2):  # one after the other: two that start at once choose the same ports
            cls.cluster.wait_for(1 + count)
            cls.cluster.add(2)
        cls.cluster.wait_for(3)
        cls.expected = {}

    def words(self, name, *more, num_rollout=3, reward="quick"):
        save = self.folder / name
        return save, [
            "train", "--hf-checkpoint", "tests/golden/models/qwen3-tied", "--prompt-data",
            "tests/golden/prompts/math_small.jsonl", "--rollout-batch-size", "2", "--n-samples-per-prompt", "4",
            "--rollout-max-response-len", "6", "--apply-chat-template", "--lr", "1e-3", "--no-use-tensorboard",
            "--sample-dump-interval", "0", "--num-threads", "1", "--num-rollout", str(num_rollout), "--custom-rm-path",
            f"{self.folder}/{reward}.py:reward", "--save", str(save), *more]  # fmt: skip

    APART = ("--actor-num-nodes", "2", "--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "2")

    def start(self, name, *more, options=(), variables={}, **of_run):
        save, words = self.words(name, *more, **of_run)
        return Job(self.cluster, [*options, *words], save, **variables)

    def expect(self, num_rollout):
        """The SHA-256 of the same run as processes of one launch, without Ray."""
        if num_rollout not in self.expected:
            save, words = self.words(f"plain-{num_rollout}", num_rollout=num_rollout)
            more = ["--actor-num-gpus-per-node", "2", "--rollout-num-gpus", "2"]
            subprocess.run(["tandem", *words, *more], env=environment(), check=True, capture_output=True)
            self.expected[num_rollout] = Job.weights(type("Plain", (), {"save": save}))
        return self.expected[num_rollout]

    def assert_nothing_is_left(self, job):
        end = time.monotonic() + 15
        while processes("tandem", "train", str(job.save)) and time.monotonic() < end:
            time.sleep(0.1)
        self.assertEqual(processes("tandem", "train", str(job.save)), [], job.text())

    def test_trains_what_a_launch_without_ray_trains(self):
        job = self.start("same", *self.APART)
        self.assertEqual(job.code(), 0, job.text())
        self.assertEqual(job.weights(), self.expect(3))
        self.assertRegex(job.text(), r"(?m)^\[host 0 [0-9.]+\] rollout 3/3 ")
        self.assertRegex(job.text(), r"(?m)^\[engine [01] [0-9.]+\] samples for the run ")
        self.assert_nothing_is_left(job)

    def test_colocated_ranks_need_no_engines(self):
        job = self.start("together", "--colocate", "--actor-num-nodes", "2", "--actor-num-gpus-per-node", "2")
        self.assertEqual(job.code(), 0, job.text())
        self.assertEqual(job.weights(), self.expect(3))

    def test_trains_on_preferences_as_tandem_sft_does_without_ray(self):
        pairs = self.folder / "pairs.jsonl"
        pairs.write_text('{"prompt": "1+1=", "chosen": "2", "rejected": "3"}\n{"prompt": "1+2=", "chosen": "3", "rejected": "2"}\n')
        words = ["sft", "--hf-checkpoint", "tests/golden/models/qwen3-tied", "--prompt-data", str(pairs),
                 "--preference-loss", "sigmoid", "--global-batch-size", "2", "--num-rollout", "3", "--lr", "1e-3",
                 "--no-use-tensorboard", "--num-threads", "1"]  # fmt: skip
        save, plain = self.folder / "preferences", self.folder / "plain-preferences"
        two = ["--actor-num-gpus-per-node", "1", "--actor-num-nodes", "2", "--save", str(save)]
        job = Job(self.cluster, [*words, *two], save)
        self.assertEqual(job.code(), 0, job.text())
        self.assertRegex(job.text(), r"(?m)^\[host [01] [0-9.]+\] .*3/3")
        subprocess.run(["tandem", *words, "--save", str(plain)], env=environment(), check=True, capture_output=True)
        self.assertEqual(job.weights(), Job.weights(type("Plain", (), {"save": plain})))

    def test_a_killed_rank_is_the_run_s_end_with_its_code_and_words(self):
        job = self.start("rank", *self.APART, num_rollout=500, reward="slow")
        job.wait_for("rollout 2/")
        (rank, *_) = [p for p in processes("tandem train ", str(job.save)) if self.is_rank(p, joins=False)]
        os.kill(rank, signal.SIGKILL)
        self.assertEqual(job.code(), 3, job.text())
        self.assertRegex(job.text(),
                         r"(?m)^tandem: error: host \d \S+ ended with code 3: rank \d of 2 \(.*\) was killed by signal 9")
        self.assert_nothing_is_left(job)

    @staticmethod
    def is_rank(process, joins):
        words = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        return words[:2] == [b"tandem", b"train"] and any(word.startswith(b"--rollout-join-address") for word in words) == joins

    def test_a_killed_actor_is_restarted_from_the_checkpoint(self):
        job = self.start("actor", *self.APART, "--save-interval", "2", options=("--max-restarts", "1"), num_rollout=12,
                         reward="slow")  # fmt: skip
        job.wait_for("rollout 5/")
        (launcher,) = processes("launch", "--node-rank 1", str(job.save))
        os.kill(parent_of(launcher), signal.SIGKILL)
        self.assertEqual(job.code(), 0, job.text())
        self.assertEqual(job.weights(), self.expect(12))
        self.assertIn("restart 1 of 1", job.text())
        self.assertEqual(job.text().count("] rollout 1/12 "), 1)
        self.assert_nothing_is_left(job)

    def test_a_killed_engine_is_replaced_while_the_run_goes_on(self):
        job = self.start("engine", *self.APART, num_rollout=100, reward="slow")
        job.wait_for("rollout 3/")
        (engine, *_) = [p for p in processes("tandem train ", str(job.save)) if self.is_rank(p, joins=True)]
        os.kill(engine, signal.SIGKILL)
        self.assertEqual(job.code(), 0, job.text())
        self.assertEqual(job.weights(), self.expect(100))
        self.assertRegex(job.text(), r"tandem.ray: warning: engine \d .*; the run continues, and another one joins it")
        self.assertGreaterEqual(job.text().count("samples for the run"), 3)
        self.assertNotIn("restart", job.text())

    def test_a_lost_machine_is_replaced_by_a_spare_one(self):
        lost = self.cluster.add(2)
        self.cluster.wait_for(4)
        job = self.start("node", "--colocate", "--actor-num-nodes", "3", "--actor-num-gpus-per-node", "2",
                         "--save-interval", "1", options=("--max-restarts", "1", "--wait-minutes", "2"), num_rollout=8,
                         reward="slow")  # fmt: skip
        job.wait_for("rollout 3/")
        lost.kill()
        self.cluster.nodes.remove(lost)
        job.wait_for("restart 1 of 1")
        spare = self.cluster.add(2)
        self.assertEqual(job.code(), 0, job.text())
        self.assertEqual(job.weights(), self.expect(8))
        spare.kill()
        self.cluster.nodes.remove(spare)
        self.cluster.wait_for(3)

    def test_too_few_devices_are_said_and_not_waited_for(self):
        begin = time.monotonic()
        job = self.start("many", "--colocate", "--actor-num-nodes", "1", "--actor-num-gpus-per-node", "3")
        self.assertEqual(job.code(), 3, job.text())
        self.assertEqual(job.text().splitlines()[-1],
                         "tandem: error: the run needs 3 CPU in shares of [3], each on one machine; the cluster's machines "
                         "have [0, 2, 2] (waited for --wait-minutes 0)")  # fmt: skip
        self.assertLess(time.monotonic() - begin, 60)

    def test_npus_are_asked_for_by_their_own_name(self):
        job = self.start("npus", "--colocate", "--actor-num-gpus-per-node", "2", "--device", "npu", "--unchecked-ranks")
        self.assertEqual(job.code(), 3, job.text())
        self.assertEqual(job.text().splitlines()[-1],
                         "tandem: error: the run needs 2 NPU in shares of [2], each on one machine; the cluster's machines "
                         "have [0, 0, 0] (waited for --wait-minutes 0)")  # fmt: skip

    def test_a_second_run_waits_for_the_devices_of_the_first(self):
        first = self.start("first", *self.APART, num_rollout=500, reward="slow")
        first.wait_for("rollout 2/")
        second = self.start("second", *self.APART)
        second.wait_for("waiting for 4 CPU in shares of .*, which others use now")
        first.process.send_signal(signal.SIGTERM)
        self.assertEqual(first.code(), STOPPED, first.text())
        self.assertEqual(second.code(), 0, second.text())
        self.assertEqual(second.weights(), self.expect(3))

    def test_what_was_told_to_stop_saves_although_the_driver_is_killed(self):
        job = self.start("outlived", *self.APART, num_rollout=500, reward="slow")
        job.wait_for("rollout 2/")
        job.process.send_signal(signal.SIGTERM)
        job.wait_for(r"\[host 0 \S+\] stopping: ")
        time.sleep(1)  # all are told by then; Ray kills a driver three seconds after `job stop`
        job.process.kill()
        self.assertEqual(job.code(), -signal.SIGKILL)
        self.assert_nothing_is_left(job)
        self.assertIn("stopped after", (job.save / "log.txt").read_text())
        self.assertTrue(list(job.save.glob("checkpoints/step_*/*")))

    def test_a_user_s_mistake_is_not_restarted(self):
        job = self.start("mistake", "--colocate", "--prompt-data", "/none", options=("--max-restarts", "5"))
        self.assertEqual(job.code(), 2, job.text())
        self.assertRegex(job.text().splitlines()[-1], r"^tandem: error: host 0 \S+ ended with code 2: /none: .*; rank 0 of 1 ")
        self.assertNotIn("restart", job.text())

    def test_flags_are_refused_before_anything_is_asked_of_the_cluster(self):
        result = subprocess.run([RAY_FOLDER / "python", "-m", "tandem.ray", "train", "--nonsense"], capture_output=True,
                                env=environment(RAY_ADDRESS="127.0.0.1:1"), text=True)  # fmt: skip
        self.assertEqual(result.returncode, 2)
        self.assertIn("--nonsense: unknown option", result.stderr)

    def submit(self, *words):
        return subprocess.run([RAY_FOLDER / "ray", "job", *words], capture_output=True, text=True,
                              env=environment(RAY_ADDRESS=f"http://127.0.0.1:{self.cluster.dashboard}"))  # fmt: skip

    def submitted(self, name, *more, **of_run):
        save, words = self.words(name, *more, **of_run)
        variables = {"env_vars": {"WORD_OF_THE_TEST": "given", "PYTHONPATH": str(REPOSITORY / "python")}}
        return save, ("--runtime-env-json", json.dumps(variables), "--", "sh", "-c",
                      f"cd {REPOSITORY} && exec .venv-ray/bin/python -m tandem.ray " + " ".join(words))  # fmt: skip

    def test_a_submitted_job_has_the_variables_that_it_was_given(self):
        save, words = self.submitted("job", *self.APART, "--rm-env", "WORD_OF_THE_TEST")
        result = self.submit("submit", *words)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("] rollout 3/3 ", result.stdout)
        self.assertIn("the reward sees given", (save / "grader_output.txt").read_text())

    def test_job_stop_saves(self):
        save, words = self.submitted("stopped", *self.APART, num_rollout=500, reward="slow")
        self.assertEqual(self.submit("submit", "--no-wait", "--submission-id", "stopped", *words).returncode, 0)
        end = time.monotonic() + PATIENCE_S
        while "rollout 2/" not in self.submit("logs", "stopped").stdout and time.monotonic() < end:
            time.sleep(0.5)
        self.assertEqual(self.submit("stop", "stopped").returncode, 0)
        end = time.monotonic() + 30
        while not list(save.glob("checkpoints/step_*/*")) and time.monotonic() < end:
            time.sleep(0.2)
        logs = self.submit("logs", "stopped").stdout
        self.assertTrue(list(save.glob("checkpoints/step_*/*")), logs)
        resumed = self.start("stopped", *self.APART, "--load", str(save), "--dry-run", num_rollout=500, reward="slow")
        self.assertEqual(resumed.code(), 0, resumed.text())


if __name__ == "__main__":
    if not (RAY_FOLDER / "ray").exists():
        print("NOT TRIED: there is no Ray here; tools/setup.sh ray installs it into .venv-ray")
        sys.exit(0)
    unittest.main(verbosity=2)
