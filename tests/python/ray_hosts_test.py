"""python -m tandem.ray on a cluster of several hosts, network namespaces of this machine, of which one's cable is cut. Needs
tools/setup.sh ray, root and network namespaces; says NOT TRIED where something is missing."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM_FOLDER = os.path.abspath(sys.argv.pop(1))
REPOSITORY = pathlib.Path.cwd()
sys.path.insert(0, str(REPOSITORY / "tests" / "rollout_worker"))
import hosts as network  # noqa: E402

RAY_FOLDER = REPOSITORY / ".venv-ray" / "bin"
VARIABLES = {
    "PATH": PROGRAM_FOLDER + os.pathsep + os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "python"),
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "5"}  # fmt: skip
REWARD = """
import time
def reward(prompts, completions, **kwargs):
    time.sleep(0.3)
    return [float(i % 2) for i in range(len(completions))]
"""


class OnHosts(unittest.TestCase):
    NUM_HOSTS = 4  # a head without devices, and hosts of one device each, of which one is spare

    def setUp(self):
        try:
            self.hosts = network.Hosts(self.NUM_HOSTS)
        except network.NotAllowed as error:
            self.skipTest(f"NOT TRIED: {error}")
        self.addCleanup(self.hosts.clean_up)
        folder = tempfile.TemporaryDirectory(dir="/var/tmp")  # each host has a /tmp of its own
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "reward.py").write_text(REWARD)
        for host in range(self.NUM_HOSTS):
            words = ["--head", "--port", "6379", "--include-dashboard", "false"] if host == 0 else ["--address", "10.79.0.1:6379"]
            self.hosts.start(host, self.folder / f"node-{host}.log",
                             [RAY_FOLDER / "ray", "start", "--block", "--node-ip-address", f"10.79.0.{host + 1}", "--num-cpus",
                              "1" if host > 0 else "0", "--disable-usage-stats", *words], **VARIABLES)  # fmt: skip
            if host == 0:
                time.sleep(8)

    def words(self, name, *more, num_rollout):
        return ["train", "--hf-checkpoint", REPOSITORY / "tests/golden/models/qwen3-tied", "--prompt-data",
                REPOSITORY / "tests/golden/prompts/math_small.jsonl", "--rollout-batch-size", "2", "--n-samples-per-prompt", "4",
                "--rollout-max-response-len", "6", "--apply-chat-template", "--lr", "1e-3", "--no-use-tensorboard",
                "--sample-dump-interval", "0", "--num-threads", "1", "--num-rollout", num_rollout, "--custom-rm-path",
                f"{self.folder}/reward.py:reward", "--save", self.folder / name, "--save-interval", "1",
                "--distributed-timeout-minutes", "0.1", "--rollout-health-check-timeout", "5", *more]  # fmt: skip

    def start(self, *options, words):
        return self.hosts.start(0, self.folder / "driver.log", [RAY_FOLDER / "python", "-m", "tandem.ray", *options, *words],
                                RAY_ADDRESS="10.79.0.1:6379", **VARIABLES)  # fmt: skip

    def weights(self, name):
        (path,) = (self.folder / name).glob("hf/latest/*.safetensors")
        return path.read_bytes()

    def expect_weights_of_a_run_alone(self, num_rollout):
        words = [str(word) for word in self.words("alone", "--colocate", num_rollout=num_rollout)]
        subprocess.run(["tandem", *words], env={**os.environ, **VARIABLES}, check=True, capture_output=True)
        self.assertEqual(self.weights("run"), self.weights("alone"))

    def cut_host_of(self, driver, who):
        """Cuts the cable of the host of a line's process, "engine 0"."""
        self.hosts.cut(int(re.search(rf"\[{who} 10\.79\.0\.(\d+)\]", driver.log.read_text())[1]) - 1)

    def test_an_engine_behind_a_cut_cable_is_replaced_on_another_host(self):
        driver = self.start("--wait-minutes", "1", words=self.words("run", "--rollout-num-gpus", "1", "--distributed-timeout-minutes", "2",
                                                                  num_rollout=12))  # fmt: skip
        network.wait_for(driver, "rollout 3/")
        self.cut_host_of(driver, "engine 0")
        self.assertEqual(driver.wait(timeout=240), 0, driver.log.read_text()[-3000:])
        self.assertIn("another one joins it", driver.log.read_text())
        self.expect_weights_of_a_run_alone(12)

    def test_trainers_of_which_one_is_behind_a_cut_cable_begin_again_from_the_checkpoint(self):
        words = self.words("run", "--colocate", "--actor-num-nodes", "2", num_rollout=12)
        driver = self.start("--wait-minutes", "1", "--max-restarts", "2", words=words)
        network.wait_for(driver, "rollout 3/")
        self.cut_host_of(driver, "host 0")
        self.assertEqual(driver.wait(timeout=300), 0, driver.log.read_text()[-3000:])
        self.assertIn("restart 1 of 2", driver.log.read_text())
        self.expect_weights_of_a_run_alone(12)


if __name__ == "__main__":
    if not (RAY_FOLDER / "ray").exists():
        print("NOT TRIED: there is no Ray here; tools/setup.sh ray installs it into .venv-ray")
        sys.exit(0)
    unittest.main(verbosity=2)
