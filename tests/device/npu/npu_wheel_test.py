"""Runs the NPU module with torch_npu's own wheel over the stand-ins for CANN: `make test-npu` (docs/TESTING.md).

    python3 tests/device/npu/npu_wheel_test.py build/npu

The build was made by `make npu`, with the targets of `make test-npu`. Nothing here has an NPU: it shows that torch_npu
takes our calls and our memory, and what is said where a part of its stack is missing.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TRAIN = ("train --colocate --hf-checkpoint tests/golden/models/qwen3-tied --rm-type math --rollout-batch-size 1"
         " --n-samples-per-prompt 2 --num-rollout 1 --rollout-max-response-len 4 --no-use-tensorboard --device npu").split()


class Job:
    def __init__(self, build):
        self.build = Path(build).resolve()
        self.fakes = self.build / "fake_cann"
        self.num_failed = 0
        self.cache = tempfile.TemporaryDirectory()
        self.keep_answers()

    def keep_answers(self):
        """Writes what `tandem device --check` keeps where every answer is yes (src/device/kept_check.cc)."""
        stack = "LibTorch=2.11.0\nNPU=Ascend910B1, CANN 9.1.0\ntorch_npu=2.11.0\n"
        path = Path(self.cache.name) / "tandem" / f"device-{hashlib.sha256(stack.encode()).hexdigest()[:16]}.json"
        path.parent.mkdir()
        path.write_text('{"rung": "best", "is_right": true, "is_exact": true, "first_no": "", "answers": null}\n')

    def check_device(self):
        """The check itself, with its kept answers elsewhere."""
        with tempfile.TemporaryDirectory() as cache:
            result = subprocess.run([self.build / "src/cli/tandem", "device", "--device", "npu", "--check"],
                                    env=self.environment(XDG_CACHE_HOME=cache),
                                    capture_output=True, text=True, timeout=1800)
            kept = list(Path(cache).glob("tandem/*.json"))
        why = "" if result.returncode == 0 and len(kept) == 1 else f"exit code {result.returncode}: {result.stderr[-500:]}"
        print("\n".join(line for line in result.stdout.splitlines() if line.startswith("NO")))
        self.report("tandem device --check", why)

    def environment(self, **changes):
        """Nothing of the caller's but what a shell needs: no variable of a launcher or of torch_npu."""
        env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "LD_LIBRARY_PATH": str(self.fakes),
               "OMP_WAIT_POLICY": "passive", "XDG_CACHE_HOME": self.cache.name, "ASAN_OPTIONS": "detect_leaks=0"}
        env.update(changes)
        return env

    def report(self, name, why):
        print(f"{'ok    ' if not why else 'FAILED'} {name}{': ' + why if why else ''}", flush=True)
        self.num_failed += bool(why)

    def program(self, name, path, *arguments, **changes):
        result = subprocess.run([self.build / path, *arguments], env=self.environment(**changes), capture_output=True,
                                text=True, timeout=1800)
        was_tried = "[  PASSED  ] 0 tests" not in result.stdout and "give --device cpu" not in result.stdout
        passed = result.returncode == 0 and was_tried
        if not passed:
            print(result.stdout[-6000:], result.stderr[-3000:])
        self.report(name, "" if passed else f"exit code {result.returncode}{'' if was_tried else ', not tried'}")

    def train(self, **changes):
        """A run of the program: its exit code and its output."""
        with tempfile.TemporaryDirectory() as folder:
            prompts = Path(folder) / "prompts.jsonl"
            prompts.write_text('{"prompt": "1+1=", "label": "2"}\n')
            result = subprocess.run(
                [self.build / "src/cli/tandem", *TRAIN, "--prompt-data", prompts, "--save", f"{folder}/run",
                 "--input-key", "prompt", "--label-key", "label"],
                env=self.environment(**changes), capture_output=True, text=True, timeout=600)
        return result.returncode, result.stdout, result.stderr

    def last_line(self, name, code, *parts, **changes):
        got, _, err = self.train(**changes)
        last = err.strip().splitlines()[-1] if err.strip() else ""
        missing = [part for part in parts if part not in last]
        self.report(name, f"exit code {got}: {last}" if got != code or missing else "")

    def sparse_run(self, name):
        """A model with experts: its operations through torch_npu, and the log-probs of sampling and of training alike."""
        with tempfile.TemporaryDirectory() as folder:
            prompts = Path(folder) / "prompts.jsonl"
            prompts.write_text('{"prompt": "1+1=", "label": "2"}\n')
            words = [word.replace("qwen3-tied", "qwen3-moe") for word in TRAIN]
            result = subprocess.run(
                [self.build / "src/cli/tandem", *words, "--prompt-data", prompts, "--entropy-coef", "0.05", "--save", f"{folder}/run"],
                env=self.environment(), capture_output=True, text=True, timeout=600)
            metrics = Path(folder) / "run/metrics.jsonl"
            is_on_policy = metrics.exists() and '"train/train_rollout_logprob_abs_diff":0.0' in metrics.read_text()
        self.report(name, "" if result.returncode == 0 and is_on_policy else result.stderr[-1500:])

    def note(self, name, variable):
        _, out, err = self.train(**{variable: "expandable_segments:True"})
        said = f"{variable} asks for expandable_segments, which has no effect" in out + err
        self.report(name, "" if said else (out + err)[-2000:])


def main():
    job = Job(sys.argv[1])
    job.program("memory, queue, thousand starts and ends", "tests/device/npu/npu_wheel_test")
    job.program("the same without torch_npu's queue", "tests/device/npu/npu_wheel_test", TASK_QUEUE_ENABLE="0")
    job.program("the same where the environment asks for expandable segments", "tests/device/npu/npu_wheel_test",
                PYTORCH_NPU_ALLOC_CONF="expandable_segments:True")
    job.program("operations against float64, and exactness", "tests/device/device_test",
                "--gtest_filter=*/npu*:*_npu*-*LinearRowsStandAlone/npu*")
    # LibTorch's products on the CPU do not promise it, also where the CPU's own operations call them.
    job.program("exactness where a product's rows stand alone", "tests/device/device_test",
                "--gtest_filter=*LinearRowsStandAlone/npu*", FAKE_CANN="products=rows")
    job.check_device()
    job.program("a run, bit for bit that of the CPU", "tests/cli/npu_wheel_train_test")
    job.program("the same with work that runs late", "tests/cli/npu_wheel_train_test", FAKE_CANN="late=1")
    job.sparse_run("a run of a sparse model, exactly on-policy")
    for variable in ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        job.note(f"the note about {variable}", variable)
    job.last_line("no CANN", 3, "--device npu: this process sees no Ascend NPU (libascendcl.so: cannot open",
                  LD_LIBRARY_PATH="")
    job.last_line("an old CANN", 3, "libascendcl.so is of CANN 8.2.0", FAKE_CANN="version=8.2.0")
    job.last_line("no device", 3, "sees no Ascend NPU (no device", FAKE_CANN="devices=0")
    job.last_line("an NPU for inference", 3, "it is an Ascend310P3", FAKE_CANN="soc=Ascend310P3")
    job.last_line("operators that compute nothing", 3,
                  "--device npu:0: two matrices of known numbers have another product", FAKE_CANN="products=zeros")
    job.last_line("no deterministic computation", 3, "no level of deterministic computation is accepted",
                  FAKE_CANN="levels=0")
    sys.exit(1 if job.num_failed else 0)


if __name__ == "__main__":
    main()
