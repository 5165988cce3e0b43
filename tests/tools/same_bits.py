#!/usr/bin/env python3
"""Two programs compute, write and say the same: short runs with the same flags, compared byte by byte.

    python3 tests/tools/same_bits.py OLD NEW [CASE ...]

OLD and NEW are two `tandem` programs. The cases, all of them by default:
    help        what each verb prints for its flags
    kl          float32 with a KL term, offloaded optimizer and reference, evaluations, every kind of dump; ended after
                two rollouts and resumed for two more
    replay      a run that trains on the rollouts which `kl` has written out
    arithmetic  the demo's model and flags for six rollouts, then `eval`, `generate` and `score` of what it has learnt
    sft         supervised training with held-out data, ended after four steps and resumed for two more
    ranks       one, two and four ranks that train and sample
    tensor      one replica of two ranks, and two of them
    workers     one trainer with one and with three rollout workers; then one worker is killed and another joins
    dynamic     dynamic sampling with one rank, with two, and with rollout workers
    turns       a generate function of several turns, with one rank and with two
    best        evaluations with --save-best
    lora        an adapter against its base, ended after two rollouts and resumed for one more
    stop        SIGTERM within a rollout, then resumed

Each program runs in a folder of its own with the same relative names. Compared are exit codes, output, the names of all
files and their bytes. Left out is what clocks say (perf/*, time_s and times in lines), sizes of files that hold such
numbers, and what the process takes of memory beside what it accounts for. Where several processes sample, who samples
what follows the clock: there the output, what engines count, lost workers and the log are left out too. Exit code 1 and
one line per difference, 2 for wrong arguments.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "tests/golden/models/qwen3-tied")
PROMPTS = str(ROOT / "tests/golden/prompts/math_small.jsonl")
ARITHMETIC = ROOT / "examples/arithmetic"

# A reward that differs from sample to sample, so that a model which knows nothing has something to learn.
REWARD = """def reward(prompts, completions, log_metric=None, **kwargs):
    print("graded\\n", end="", flush=True)
    if log_metric:
        log_metric("seen", float(len(completions)))
    return [float(len(c[0]["content"]) % 5) for c in completions]

def quiet(prompts, completions, **kwargs):
    return [float(len(c[0]["content"]) % 5) for c in completions]

def half_equal(prompts, completions, **kwargs):
    kind = len(prompts[0][0]["content"]) % 4
    if kind < 2:
        return [float(kind)] * len(completions)
    return [float((len(c[0]["content"]) + i) % 3) for i, c in enumerate(completions)]
"""
VERBS = ["train", "sft", "generate", "score", "eval", "export", "plan"]
# Members of JSON files that clocks decide (in a manifest, state.json is the file that holds sizes of files with times
# in them), and what the process takes beside what it accounts for.
CLOCKS = {"time_s", "time_us", "file_bytes", "state.json", "overhead", "most_at_once"}
# These metrics depend on which process samples what, where several processes sample.
SHARES = {"rollout/prefix_cache_hit_rate", "rollout/preemptions", "fault/lost_workers", "fault/weights_sent_again"}
TIMES = re.compile(r"\d+\.\d+ s\b|\d+(:\d\d)+\b|[\d,]+ tok/s|tokens/s [\d,.]+|\b\d+\.\d+(?= GiB in use)")


def run(program, folder, *arguments):
    """Exit code and output of one command, without times."""
    result = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return {"exit code": str(result.returncode), "stdout": masked(result.stdout), "stderr": masked(result.stderr)}


def masked(text):
    return TIMES.sub("<time>", text)


def write_inputs(folder):
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    with open(folder / "sft.jsonl", "w", encoding="utf-8") as out:
        for i in range(5):
            out.write(json.dumps({"messages": [{"role": "user", "content": f"1 + {i}?"},
                                               {"role": "assistant", "content": str(i + 1)}]}) + "\n")
    (folder / "held_out.jsonl").write_text('{"prompt": "1 + 7 =", "response": " 8"}\n', encoding="utf-8")
    (folder / "sequences.jsonl").write_text('{"prompt": "1+2=", "response": "3"}\n{"prompt": "9-4=", "response": "5"}\n',
                                            encoding="utf-8")


def help_case(program, folder):
    return [run(program, folder, verb, "--help") for verb in VERBS]


def kl_case(program, folder):
    def train(num_rollouts, *more):
        return run(program, folder, "train", "--colocate", "--hf-checkpoint", MODEL, "--prompt-data", PROMPTS,
                   "--custom-rm-path", "reward.py:reward", "--dtype", "float32", "--rollout-shuffle",
                   "--rollout-batch-size", "3", "--n-samples-per-prompt", "4", "--global-batch-size", "6",
                   "--num-rollout", num_rollouts, "--rollout-max-response-len", "12", "--lr", "1e-3",
                   "--use-kl-loss", "--kl-loss-coef", "0.1", "--offload-optimizer", "--offload-reference",
                   "--log-passrate", "--eval-interval", "1", "--eval-prompt-data", "math", PROMPTS,
                   "--n-samples-per-eval-prompt", "2", "--save-debug-rollout-data", "debug_{rollout_id}.jsonl",
                   "--save-interval", "1", "--save", "kl", *more)
    return [train("3", "--dry-run"), train("2"), train("4", "--load", "kl")]


def replay_case(program, folder):
    return [run(program, folder, "train", "--colocate", "--hf-checkpoint", MODEL, "--prompt-data", PROMPTS,
                "--rm-type", "math", "--dtype", "float32", "--rollout-batch-size", "3", "--n-samples-per-prompt", "4",
                "--num-rollout", "2", "--rollout-max-response-len", "12", "--lr", "1e-3", "--no-use-tensorboard",
                "--load-debug-rollout-data", "debug_{rollout_id}.jsonl", "--save", "replay")]


def arithmetic_case(program, folder):
    subprocess.run([sys.executable, "-B", str(ARITHMETIC / "make_problems.py"), "data"], cwd=folder, check=True)
    model = str(ARITHMETIC / "checkpoint")
    held_out = (folder / "data/held_out.jsonl").read_text(encoding="utf-8").splitlines()[:64]
    (folder / "data/held_out.jsonl").write_text("\n".join(held_out) + "\n", encoding="utf-8")
    return [
        run(program, folder, "train", "--colocate", "--hf-checkpoint", model, "--prompt-data", "data/train.jsonl",
            "--rm-type", "exact", "--rollout-shuffle", "--rollout-batch-size", "32", "--n-samples-per-prompt", "8",
            "--global-batch-size", "256", "--num-rollout", "6", "--rollout-max-response-len", "8",
            "--advantage-estimator", "grpo", "--lr", "4e-4", "--min-lr", "2e-5", "--lr-decay-style", "linear",
            "--weight-decay", "0", "--sample-dump-interval", "2", "--save", "arithmetic"),
        run(program, folder, "eval", "--hf-checkpoint", "arithmetic/hf/latest", "--eval-prompt-data", "held_out",
            "data/held_out.jsonl", "--rm-type", "exact", "--eval-max-response-len", "8", "--sample-output",
            "eval_samples.jsonl", "--output", "eval.json"),
        run(program, folder, "generate", "--hf-checkpoint", "arithmetic/hf/latest", "--prompt-data",
            "data/held_out.jsonl", "--rollout-max-response-len", "8", "--output", "completions.jsonl"),
        run(program, folder, "score", "--hf-checkpoint", "arithmetic/hf/latest", "--prompt-data", "sequences.jsonl",
            "--output", "scores.jsonl"),
    ]


def sft_case(program, folder):
    def sft(num_steps, *more):
        return run(program, folder, "sft", "--hf-checkpoint", MODEL, "--prompt-data", "sft.jsonl", "--num-rollout",
                   num_steps, "--global-batch-size", "2", "--lr", "1e-3", "--save-interval", "2", "--eval-interval",
                   "2", "--eval-prompt-data", "sums", "held_out.jsonl", "--save", "sft", *more)
    return [sft("6", "--dry-run"), sft("4"), sft("6", "--load", "sft")]


def small_run(save, *more):
    return ["train", "--hf-checkpoint", MODEL, "--prompt-data", PROMPTS, "--rollout-batch-size", "3",
            "--n-samples-per-prompt", "4", "--global-batch-size", "6", "--num-rollout", "2",
            "--rollout-max-response-len", "12", "--lr", "1e-3", "--max-tokens-per-gpu", "64", "--num-threads", "1",
            "--dtype", "float32", "--no-use-tensorboard", "--save", save, *more]


def with_reward(*more):
    return ["--custom-rm-path", "reward.py:quiet", *more]


def as_ranks(trainers, workers=0, tensor=1):
    return ["--actor-num-gpus-per-node", str(trainers), "--tensor-model-parallel-size", str(tensor),
            *(["--rollout-num-gpus", str(workers)] if workers else ["--colocate"])]


def run_of_several(program, folder, *arguments):
    """The exit code alone: processes say things in the order in which they come to them."""
    return {"exit code": run(program, folder, *arguments)["exit code"]}


def keep_results(run_folder):
    """Leaves of a run what no clock decides: metrics, samples, and the weights and state of its last checkpoint."""
    for path in run_folder.iterdir():
        if path.name in ("metrics.jsonl", "samples", "hf"):
            continue
        if path.name != "checkpoints":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            continue
        steps = sorted(step for step in path.iterdir() if step.name.startswith("step_"))
        for step in steps[:-1]:
            shutil.rmtree(step)
        for other in path.iterdir():
            if other != steps[-1]:
                other.unlink()
        for file in steps[-1].iterdir():
            if file.suffix != ".bin" and file.suffix != ".safetensors":
                file.unlink()


def several(program, folder, cases):
    """Runs with their places; each is {name: arguments}."""
    results = []
    for name, arguments in cases.items():
        results.append(run_of_several(program, folder, *small_run(name), *arguments))
        keep_results(folder / name)
    return results


def ranks_case(program, folder):
    return several(program, folder, {f"ranks_{n}": with_reward(*as_ranks(n)) for n in (1, 2, 4)})


def tensor_case(program, folder):
    return several(program, folder, {"tensor_2": with_reward(*as_ranks(2, tensor=2)),
                                     "tensor_2x2": with_reward(*as_ranks(4, tensor=2))})


def wait_until(path, wanted, program):
    """Until a file has the text, or the program has ended."""
    while program.poll() is None and not (path.exists() and wanted in path.read_text(encoding="utf-8")):
        time.sleep(0.01)


def workers_case(program, folder):
    results = several(program, folder, {f"workers_1_{n}": with_reward(*as_ranks(1, n)) for n in (1, 3)})
    arguments = [*small_run("workers_killed", "--num-rollout", "4"), *with_reward(*as_ranks(1, 2))]
    run_of_it = subprocess.Popen([program, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(folder / "workers_killed/metrics.jsonl", '"train/step"', run_of_it)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(run_of_it.pid), "--sort=start_time,pid"],
                              capture_output=True, text=True, check=False).stdout.split()
    os.kill(int(children[-1]), signal.SIGKILL)
    joined = subprocess.Popen([program, *arguments, "--rollout-join"], cwd=folder, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    results.append({"exit code": str(run_of_it.wait())})
    try:
        joined.wait(timeout=20)
    except subprocess.TimeoutExpired:
        joined.kill()  # it came when the run was over, and waits for it to begin
        joined.wait()
    keep_results(folder / "workers_killed")
    return results


def dynamic_case(program, folder):
    filtered = ["--custom-rm-path", "reward.py:half_equal", "--rollout-shuffle", "--rollout-max-response-len", "4",
                "--prompt-data", PROMPTS + "@[0:16]", "--dynamic-sampling-filter-path", "nonzero_std"]
    return several(program, folder, {"dynamic_1": [*filtered, *as_ranks(1)], "dynamic_2": [*filtered, *as_ranks(2)],
                                     "dynamic_1_2": [*filtered, *as_ranks(1, 2)]})


def turns_case(program, folder):
    functions = str(ROOT / "tests/cli/generate/turns.py")
    turns = ["--custom-rm-path", functions + ":reward", "--custom-generate-function-path", functions + ":turns",
             "--rollout-max-response-len", "16"]
    return several(program, folder, {"turns_1": [*turns, *as_ranks(1)], "turns_2": [*turns, *as_ranks(2)]})


def best_case(program, folder):
    return [run(program, folder, *small_run("best"), *with_reward(*as_ranks(1)), "--eval-interval", "1",
                "--eval-prompt-data", "small", PROMPTS, "--n-samples-per-eval-prompt", "2", "--save-best",
                "eval/small")]


def lora_case(program, folder):
    adapter = with_reward(*as_ranks(1), "--lora-rank", "4", "--lora-alpha", "6", "--lr", "2e-2", "--use-kl-loss",
                          "--kl-loss-coef", "0.1", "--save-interval", "1")
    return [run(program, folder, *small_run("lora"), *adapter),
            run(program, folder, *small_run("lora"), *adapter, "--num-rollout", "3", "--load", "lora")]


def stop_case(program, folder):
    arguments = [*small_run("stop", "--num-rollout", "4"), *with_reward(*as_ranks(1))]
    stopped = subprocess.Popen([program, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(folder / "stop/metrics.jsonl", '"train/step"', stopped)
    stopped.send_signal(signal.SIGTERM)
    stopped.wait()
    results = [run_of_several(program, folder, *arguments, "--load", "stop")]
    keep_results(folder / "stop")
    return results


CASES = {"ranks": ranks_case, "tensor": tensor_case, "workers": workers_case, "dynamic": dynamic_case,
         "turns": turns_case, "best": best_case, "lora": lora_case, "stop": stop_case, "help": help_case, "kl": kl_case, "replay": replay_case, "arithmetic": arithmetic_case, "sft": sft_case}


def without_clocks(value):
    """A JSON value without what clocks say, and without sizes and checksums of files that hold such numbers."""
    if isinstance(value, list):
        return [without_clocks(element) for element in value]
    if not isinstance(value, dict):
        return value
    return {name: without_clocks(element) for name, element in value.items()
            if not name.startswith("perf/") and name not in CLOCKS | SHARES}


def contents(path):
    """What of a file has to be equal."""
    data = path.read_bytes()
    if path.name == "log.txt":
        return masked(re.sub(r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", "", data.decode()))
    if path.name == "config.toml":
        return "\n".join(line for line in data.decode().splitlines() if not line.startswith("working-directory"))
    if path.name == "MANIFEST.json":
        return without_clocks(json.loads(data.splitlines()[0]))  # the second line is the first one's checksum
    if path.name == "grader_output.txt":
        return "\n".join(sorted(data.decode().splitlines()))  # of several processes
    if path.name == "memory_trace.json":
        return "the memory timeline, drawn"
    if path.suffix == ".jsonl":
        records = [json.loads(line) for line in data.splitlines()]
        return [without_clocks(record) for record in records if record.get("tag") != "overhead"]
    if path.suffix == ".json" and path.parent.parent.name != "hf":
        return without_clocks(json.loads(data))
    return data


def files_of(folder):
    """Names of all files; those of event files have a time in them."""
    names = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            names[str(path.relative_to(folder))] = os.readlink(path)
        elif path.is_file() and "tensorboard" in path.parts:
            names[str(path.parent.relative_to(folder)) + "/*"] = "an event file"
        elif path.is_file() and path.name != "lock":
            names[str(path.relative_to(folder))] = contents(path)
    return names


def differences(old, new, where):
    """Lines that say where two values first differ."""
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        lines = [f"{where}: {name} only in {'OLD' if name in old else 'NEW'}" for name in sorted(old.keys() ^ new.keys())]
        for name in sorted(old.keys() & new.keys()):
            lines += differences(old[name], new[name], f"{where} {name}")
        return lines
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for i, (a, b) in enumerate(zip(old, new)) for line in differences(a, b, f"{where} [{i}]")]
    if isinstance(old, str) and isinstance(new, str):
        pairs = zip(old.splitlines() + [None], new.splitlines() + [None])
        first = next(((a, b) for a, b in pairs if a != b), ("", ""))
        return [f"{where}: {first[0]!r} and {first[1]!r}"]
    return [f"{where}: differ" if isinstance(old, bytes) else f"{where}: {str(old)[:200]} and {str(new)[:200]}"]


def main():
    arguments = sys.argv[1:]
    cases = arguments[2:] or list(CASES)
    if len(arguments) < 2 or arguments[0] in ("-h", "--help") or set(cases) - set(CASES):
        print(__doc__)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    programs = [str(Path(name).resolve()) for name in arguments[:2]]
    with tempfile.TemporaryDirectory() as temporary:
        # Names of equal length: a path may be in a line that is wrapped.
        folders = [Path(temporary, name) for name in ("old", "new")]
        for folder in folders:
            folder.mkdir()
            write_inputs(folder)
        lines = []
        for case in cases:
            said = [CASES[case](program, folder) for program, folder in zip(programs, folders)]
            found = differences(*said, case)
            failed = [entry for entry in said[0] if entry["exit code"] != "0"]
            found += [f"{case}: OLD itself fails: {entry['stderr'][-300:]}" for entry in failed]
            print(f"{case}: {len(said[0])} commands, {'differ' if found else 'the same output'}", flush=True)
            lines += found
        files = [files_of(folder) for folder in folders]
        lines += differences(*files, "file")
        for line in lines:
            print(line)
        print(f"{len(files[0])} files; {len(lines)} differences")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
