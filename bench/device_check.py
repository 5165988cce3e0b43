"""Whether a device's module is right, and how exact: its tests, whole runs on the golden model, and one step of the tiny Qwen3, on the device
of this machine, as a page of figures.

    .venv/bin/python bench/device_check.py [--device cuda] [--large] [--out bench/results/cuda_module.md]

Needs `make cuda` and the tests' programs (cmake --build build/cuda --target cuda_vmm_test device_test model_golden_test on_policy_test). Exit code 1
where something failed; the page is written all the same."""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import machine
import tiny_model

MODEL = machine.ROOT / "tests" / "golden" / "models" / "qwen3-tied"
PROMPTS = machine.ROOT / "tests" / "golden" / "prompts" / "math_small.jsonl"
REWARD = ("def reward(prompts, completions, **kwargs):\n"
          "    return [float(len(c[0]['content']) % 5) for c in completions]\n")
TESTS = {"device_test": "device", "model_golden_test": "model", "on_policy_test": "sim"}
# For each backend: a test program of its own, the command that names its devices, a variable that would give the
# process's memory to an allocator which cannot pause it, and a program that takes memory of a device.
BACKENDS = {
    "cuda": {"test": "cuda_vmm_test", "names": ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
             "allocator": "PYTORCH_CUDA_ALLOC_CONF", "ballast": "gpu_ballast.py"},
    "npu": {"names": ["npu-smi", "info", "-L"], "allocator": "PYTORCH_NPU_ALLOC_CONF"},
}


class Check:
    """Rows of the page, and whether all that was promised was kept."""

    def __init__(self, program, device):
        self.program, self.device, self.rows, self.failures = str(program), device, [], []
        self.backend = device.split(":")[0]
        self.of_backend = BACKENDS[self.backend]

    def say(self, what, answer, kept=True):
        self.rows.append((what, str(answer)))
        if not kept:
            self.failures.append(f"{what}: {answer}")
        print(f"{'ok  ' if kept else 'FAIL'} {what}: {answer}", flush=True)

    def run(self, *arguments, device=None):
        """The program; its result, or None, said, where it failed."""
        command = [self.program, *map(str, arguments), "--device", device or self.device]
        result = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True, timeout=300)
        if result.returncode != 0:
            self.say(f"`{arguments[0]} --device {device or self.device}`",
                     f"exit code {result.returncode}: {result.stderr.strip()[-600:]}", kept=False)
            return None
        return result


def device_name(check):
    result = subprocess.run(check.of_backend["names"], capture_output=True, text=True)
    return result.stdout.strip().splitlines()[0] if result.returncode == 0 and result.stdout.strip() else "none"


def run_tests(check, build):
    programs = [(name, folder, f"*/{check.backend}*:*_{check.backend}*") for name, folder in TESTS.items()]
    if "test" in check.of_backend:
        programs.insert(0, (check.of_backend["test"], "device/cuda", "*"))
    for name, folder, tests in programs:
        begin = time.time()
        result = subprocess.run([build / "tests" / folder / name, f"--gtest_filter={tests}"], cwd=machine.ROOT, capture_output=True, text=True)
        passed = re.search(r"\[  PASSED  \] (\d+)", result.stdout)
        failed = re.search(r"(\d+) FAILED TEST", result.stdout)
        skipped = re.search(r"\[  SKIPPED \] (\d+) test", result.stdout)
        no_device = "this process sees no" in result.stdout or f"--device {check.backend}: " in result.stdout
        if failed or not passed:
            lines = [line for line in result.stdout.splitlines() if not re.match(r"\[ +(used|OK|RUN|-+)|frame #", line)]
            print("\n".join(lines[:120])[:9000], result.stderr[-1500:], sep="\n", flush=True)
        text = f"{passed[1] if passed else 0} passed, {failed[1] if failed else 0} failed, {skipped[1] if skipped else 0} not promised"
        check.say(f"`{name}`", f"{text}, {time.time() - begin:.0f} s", kept=bool(passed) and not failed and not no_device)


def records(run):
    return [json.loads(line) for line in open(run / "metrics.jsonl", encoding="utf-8")]


def column(rows, name):
    return [row[name] for row in rows if name in row]


def timeless(rows):
    return [{k: v for k, v in row.items() if not k.startswith("perf/") and k != "time_s"} for row in rows]


def train(check, save, dtype, reward, *more, steps=3):
    return check.run("train", "--colocate", "--hf-checkpoint", MODEL, "--dtype", dtype, "--prompt-data", PROMPTS, "--custom-rm-path",
                     f"{reward}:reward", "--rollout-batch-size", 3, "--n-samples-per-prompt", 4, "--global-batch-size", 12,
                     "--rollout-max-response-len", 12, "--lr", "1e-3", "--no-use-tensorboard", "--save-interval", 1, "--num-rollout", steps,
                     "--save", save, *more)


def check_training(check, folder):
    reward = folder / "reward.py"
    reward.write_text(REWARD)
    for dtype in ("float32", "bfloat16"):
        a, b = folder / f"{dtype}_a", folder / f"{dtype}_b"
        if not all(train(check, save, dtype, reward) for save in (a, b)):
            continue
        gaps = column(records(a), "train/train_rollout_logprob_abs_diff")
        check.say(f"train_rollout_logprob_abs_diff, golden model, {dtype}, {len(gaps)} steps", gaps, kept=bool(gaps) and not any(gaps))
        weights = "hf/latest/model.safetensors"
        same = timeless(records(a)) == timeless(records(b)) and (a / weights).read_bytes() == (b / weights).read_bytes()
        check.say(f"the same run twice, {dtype}", "equal metrics and weights" if same else "DIFFERENT", kept=same)
        c = folder / f"{dtype}_c"
        if train(check, c, dtype, reward, steps=2) and train(check, c, dtype, reward, "--load", c):
            same = (a / weights).read_bytes() == (c / weights).read_bytes()
            check.say(f"stopped after 2 steps and resumed, {dtype}", "equal weights" if same else "DIFFERENT", kept=same)


def check_memory(check, folder):
    """Where things lie changes no number; a device that is too small, or was filled since the plan, is one line."""
    reward, weights, environment = folder / "reward.py", "hf/latest/model.safetensors", dict(os.environ)
    kl = ("--use-kl-loss", "--kl-loss-coef", "0.1")
    if not train(check, folder / "resident", "bfloat16", reward, *kl):
        return
    expected = (folder / "resident" / weights).read_bytes()
    for flag in ("--offload-train", "--debug-unmap-idle-view"):
        if train(check, folder / flag, "bfloat16", reward, *kl, flag):
            same = (folder / flag / weights).read_bytes() == expected
            check.say(f"`{flag}`, golden model, bfloat16", "the weights of a run without" if same else "OTHER WEIGHTS", kept=same)
    os.environ[check.of_backend["allocator"]] = "expandable_segments:True"
    result = train(check, folder / "expandable", "bfloat16", reward, *kl)
    os.environ.clear()
    os.environ.update(environment)
    if result:
        said = [line for line in result.stderr.splitlines() if "expandable_segments" in line]
        check.say("expandable segments asked for by the environment", said[0] if said else "nothing is said", kept=bool(said))
    if "ballast" not in check.of_backend:
        return
    ballast = subprocess.Popen([sys.executable, str(machine.ROOT / "bench" / "peers" / check.of_backend["ballast"]), str(4 << 30)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ballast.stdout.readline()
    for what, code, flags in (("too little memory for the plan", 2, ("--kv-cache-bytes", 8 << 30)),
                              ("memory that was taken since the plan", 3, ("--kv-cache-bytes", 8 << 30, "--device-memory-bytes", 64 << 30))):
        refused = subprocess.run([check.program, "train", "--colocate", "--hf-checkpoint", MODEL, "--prompt-data", PROMPTS, "--custom-rm-path",
                                  f"{reward}:reward", "--rollout-batch-size", "3", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "12",
                                  "--num-rollout", "1", "--save", str(folder / "refused"),
                                  "--device", check.device, *map(str, flags)], cwd=machine.ROOT, capture_output=True, text=True)
        check.say(what, f"exit code {refused.returncode}: {refused.stderr.strip().splitlines()[-1]}", kept=refused.returncode == code)
    ballast.stdin.close()
    ballast.wait()


def check_verbs(check, folder):
    out = folder / "generated.jsonl"
    if check.run("generate", "--hf-checkpoint", MODEL, "--prompt-data", PROMPTS, "--n-samples-per-prompt", 4, "--rollout-max-response-len", 24,
                 "--output", out):
        sequences, expected = folder / "sequences.jsonl", []
        with open(sequences, "w", encoding="utf-8") as lines:
            for record in map(json.loads, open(out, encoding="utf-8")):
                for c in record["completions"]:
                    lines.write(json.dumps({"tokens": record["prompt_tokens"] + c["tokens"], "prompt_length": len(record["prompt_tokens"])}) + "\n")
                    expected.append(c["log_probs"])
        scores = {}
        for device in (check.device, "cpu"):
            path = folder / "scores.jsonl"
            if check.run("score", "--hf-checkpoint", MODEL, "--prompt-data", sequences, "--max-tokens-per-gpu", 256, "--output", path,
                         device=device):
                scores[device] = [record["log_probs"] for record in map(json.loads, open(path, encoding="utf-8"))]
        if len(scores) == 2:
            count = sum(map(len, expected))
            differ = sum(x != y for a, b in zip(expected, scores[check.device]) for x, y in zip(a, b))
            check.say("`score` against `generate`", f"{differ} of {count} log-probs differ", kept=differ == 0)
            gap = max(abs(x - y) for a, b in zip(scores["cpu"], scores[check.device]) for x, y in zip(a, b))
            check.say("`score` against the CPU's, largest difference of a log-prob", f"{gap:.1e}", kept=gap < 1e-4)
    if check.run("eval", "--hf-checkpoint", MODEL, "--eval-prompt-data", "small", PROMPTS, "--rollout-max-response-len", 8, "--rm-type", "exact",
                 "--output", folder / "eval.json"):
        check.say("`eval`", "ran")
    data = folder / "sft.jsonl"
    data.write_text('{"prompt": "say", "response": " yes yes"}\n' * 8)
    if check.run("sft", "--hf-checkpoint", MODEL, "--prompt-data", data, "--num-rollout", 8, "--global-batch-size", 8, "--lr", "1e-2",
                 "--no-use-tensorboard", "--save", folder / "sft"):
        losses = column(records(folder / "sft"), "train/loss")
        check.say("`sft`, loss of the first and the last step", f"{losses[0]:.3f}, {losses[-1]:.3f}", kept=losses[-1] < losses[0])
    refused = subprocess.run([check.program, "generate", "--hf-checkpoint", MODEL, "--prompt-data", PROMPTS, "--device", f"{check.backend}:99"],
                             cwd=machine.ROOT, capture_output=True, text=True)
    check.say(f"`--device {check.backend}:99`", f"exit code {refused.returncode}: {refused.stderr.strip().splitlines()[-1]}", kept=refused.returncode == 2)


def check_step(check, what, model, dtype, save, prompts, response, steps):
    """Steps of `prompts` x 8 completions of exactly `response` tokens."""
    reward = machine.ROOT / "bench" / "peers" / "reward.py"
    if not check.run("train", "--colocate", "--hf-checkpoint", model, "--dtype", dtype, "--prompt-data", model / "prompts.jsonl",
                     "--custom-rm-path", f"{reward}:reward", "--rollout-batch-size", prompts, "--n-samples-per-prompt", 8,
                     "--global-batch-size", 8 * prompts, "--num-rollout", steps, "--rollout-max-response-len", response, "--ignore-eos",
                     "--no-use-tensorboard", "--sample-dump-interval", 0, "--save", save):
        return
    rows = records(save)
    gaps = column(rows, "train/train_rollout_logprob_abs_diff")
    check.say(f"train_rollout_logprob_abs_diff, {what}, {dtype}, {len(gaps)} steps", gaps, kept=bool(gaps) and not any(gaps))
    times = [f"{statistics.median(column(rows, name)[1:]):.3f}" for name in
             ("perf/step_time", "perf/rollout_time", "perf/actor_train_time")]
    check.say(f"{what}, {dtype}, {prompts} x 8 x {response} tokens: step, rollout, train, s", ", ".join(times))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--build", default="build/cuda")
    parser.add_argument("--commit")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--large", action="store_true", help="also a step of the Qwen3-0.6B shape")
    parser.add_argument("--out")
    args = parser.parse_args()
    build = (machine.ROOT / args.build).resolve()
    check = Check(build / "src" / "cli" / "tandem", args.device)
    where = machine.describe()
    lines = [f"{device_name(check)}; {where['cores']} cores of {where['processor']}; {where['build']} build, commit {args.commit or where['commit']}."]
    print(lines[0], flush=True)
    run_tests(check, build)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_training(check, folder)
        check_memory(check, folder)
        check_verbs(check, folder)
        tiny = tiny_model.make(folder / "tiny")
        for dtype in ("float32", "bfloat16"):
            check_step(check, "tiny model", tiny, dtype, folder / f"tiny_{dtype}", 32, 24, args.steps)
        if args.large:
            large = tiny_model.make(folder / "large", "bfloat16", tiny_model.QWEN3_0_6B)
            check_step(check, "Qwen3-0.6B shape", large, "bfloat16", folder / "large_bfloat16", 8, 64, 3)
    if args.out:
        table = "\n".join(f"| {what} | {answer} |" for what, answer in check.rows)
        pathlib.Path(args.out).write_text(f"# The module of --device {check.backend} on a device\n\n{lines[0]}\n\n| what | answer |\n|---|---|\n{table}\n\n"
                                          f"    .venv/bin/python bench/device_check.py --device {check.device} --large --out {args.out}\n")
    for failure in check.failures:
        print("FAILED", failure)
    return 1 if check.failures else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
