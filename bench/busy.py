"""A step of the arithmetic demo on a machine that does something else too: alone, then beside as many busy processes as this process
has cores, in turns, round after round; seconds of a step, the ratio of both, and the same for every program that is named.

    .venv/bin/python bench/busy.py [PROGRAM ...] [--busy N] [--rounds 3] [--out bench/results/busy.json]

PROGRAM: build/release/src/cli/tandem by default; two of them are two builds side by side. A busy process computes without end and is of
the same session, so the kernel gives it the same share as a thread of ours (sched_autogroup_enabled shares by session first). With `taskset -c 0,1`
before it, all of them run on two cores. A machine with other load gives no figure for `alone`: look at load_before."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import machine

DEMO = machine.ROOT / "examples" / "arithmetic"
PARTS = {"step": "perf/step_time", "rollout": "perf/rollout_time", "train": "perf/actor_train_time"}


def seconds_of_a_step(program, data, options):
    """Medians over the steps of one run, without its first two."""
    with tempfile.TemporaryDirectory() as out:
        result = subprocess.run([
            program, "train", "--colocate", "--hf-checkpoint", str(DEMO / "checkpoint"), "--prompt-data", f"{data}/train.jsonl", "--rm-type",
            "exact", "--rollout-shuffle", "--rollout-batch-size", "32", "--n-samples-per-prompt", "8", "--global-batch-size", "256",
            "--num-rollout", str(options.steps), "--rollout-max-response-len", "8", "--advantage-estimator", "grpo", "--lr", "4e-4",
            "--weight-decay", "0", "--num-threads", str(options.threads), "--no-use-tensorboard", "--sample-dump-interval", "0", "--save",
            f"{out}/run"], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise SystemExit(f"{program}: {result.stderr}")
        rows = [json.loads(line) for line in pathlib.Path(out, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {part: statistics.median([row[name] for row in rows if name in row][2:]) for part, name in PARTS.items()}


def beside(num_busy, work):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_busy)]
    try:
        return work()
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()


def main():
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*", default=[machine.tandem()])
    parser.add_argument("--busy", type=int, default=cores)
    parser.add_argument("--threads", type=int, default=cores)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out")
    options = parser.parse_args()
    report = {"machine": machine.describe(), "busy": options.busy, "threads": options.threads, "seconds": {}}
    print(json.dumps(report["machine"]), flush=True)
    with tempfile.TemporaryDirectory() as data:
        subprocess.run([sys.executable, str(DEMO / "make_problems.py"), data], check=True, capture_output=True)
        for _ in range(options.rounds):
            for program in options.programs:
                for num_busy in (0, options.busy):
                    for part, seconds in beside(num_busy, lambda p=program: seconds_of_a_step(p, data, options)).items():
                        report["seconds"].setdefault(program, {}).setdefault(part, {}).setdefault(str(num_busy), []).append(round(seconds, 4))
    for program, parts in report["seconds"].items():
        for part, by_busy in parts.items():
            alone, busy = (statistics.median(by_busy[str(n)]) for n in (0, options.busy))
            print(f"{program} {part:8s} alone {alone:.3f} s, beside {options.busy} busy processes {busy:.3f} s: {busy / alone:.2f} x   {by_busy}")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
