"""The arithmetic demo with and without dynamic sampling: reward of all sampled groups against time, both curves in one picture; the same
checkpoint, problems, batch, learning rate and threads, in turns on one machine.

    .venv/bin/python bench/dynamic_sampling.py [--over 32] [--out bench/results/dynamic_sampling]     writes .json and .svg"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import machine
from curves import EXAMPLE, picture, smooth

GOAL = 0.95
NAMES = ("every group", "dynamic sampling")


def run(data, folder, seed, steps, threads, more):
    subprocess.run([
        machine.tandem(), "train", "--colocate", "--hf-checkpoint", str(EXAMPLE / "checkpoint"), "--prompt-data", f"{data}/train.jsonl",
        "--rm-type", "exact", "--rollout-shuffle", "--rollout-batch-size", "32", "--n-samples-per-prompt", "8", "--global-batch-size",
        "256", "--num-rollout", str(steps), "--rollout-max-response-len", "8", "--lr", "4e-4", "--min-lr", "2e-5", "--lr-decay-style",
        "linear", "--lr-decay-iters", "300", "--weight-decay", "0", "--sample-dump-interval", "0", "--num-threads", str(threads),
        "--no-use-tensorboard", "--rollout-seed", str(seed), "--save", f"{folder}/run", "--overwrite", *more], check=True, capture_output=True)
    seconds, curve = 0.0, []
    for line in open(f"{folder}/run/metrics.jsonl", encoding="utf-8"):
        record = json.loads(line)
        if "rollout/raw_reward" in record:
            seconds += record["perf/step_time"]
            curve.append([round(seconds, 3), record.get("rollout/dynamic_filter/raw_reward", record["rollout/raw_reward"])])
    return curve


def first_at(curve, goal):
    """(seconds, steps) after which the mean of ten steps has reached the goal."""
    for i, (seconds, reward) in enumerate(smooth(curve, 10)):
        if i >= 9 and reward >= goal:
            return seconds, i + 1
    return None, None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="42,43,44")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--over", type=int, default=32)
    parser.add_argument("--out", default="bench/results/dynamic_sampling")
    args = parser.parse_args()
    report = {"machine": machine.describe(), "command": " ".join([".venv/bin/python bench/dynamic_sampling.py", *sys.argv[1:]]), "seeds": {}}
    flags = ["--dynamic-sampling-filter-path", "nonzero_std", "--over-sampling-batch-size", str(args.over)]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(EXAMPLE / "make_problems.py"), folder], check=True)
        for seed in args.seeds.split(","):
            curves = {name: run(folder, folder, seed, args.steps, args.threads, more) for name, more in zip(NAMES, ([], flags))}
            report["seeds"][seed] = curves
            for name, curve in curves.items():
                print(f"seed {seed}, {name}: {GOAL} after", "{} s, {} steps".format(*first_at(curve, GOAL)), flush=True)
    pathlib.Path(args.out + ".json").write_text(json.dumps(report) + "\n", encoding="utf-8")
    first = next(iter(report["seeds"].values()))
    pathlib.Path(args.out + ".svg").write_text(picture(first), encoding="utf-8")


if __name__ == "__main__":
    main()
