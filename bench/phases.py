"""What it costs to give the device's memory from one phase to the other, on one NVIDIA GPU:

    cmake --preset cuda && cmake --build build/cuda --target phase_bench
    .venv/bin/python bench/phases.py [--out bench/results/phases.md]

vLLM's figures (0.24.0, same kind of GPU, not this run): sleep 0.06-0.10 s and wake 0.45-0.52 s for 110 GiB without contents."""

import argparse
import json
import pathlib
import subprocess

import machine

LARGE = 64


def milliseconds(summary):
    return f"{summary['median']:.2f} ms ({summary['least']:.2f} to {summary['most']:.2f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    options = parser.parse_args()
    program = machine.ROOT / "build" / "release" / "bench" / "phase_bench"
    change = json.loads(subprocess.run([str(program), str(LARGE)], capture_output=True, text=True, check=True).stdout)
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    text = ["# Changes of phase", "", json.dumps({"gpu": gpu.stdout.strip(), **machine.describe()}), "",
            "`.venv/bin/python bench/phases.py`. Median of 20 changes of phase (least to most).", "",
            "| what | Tandem | to reach |", "|---|---|---|",
            f"| {LARGE} GiB change to training, last kernel to first kernel | {milliseconds(change['to_train_ms'])} | 1 ms |",
            f"| and back | {milliseconds(change['to_rollout_ms'])} | 1 ms |",
            f"| calls of the driver in {2 * 20 + 1} changes | {change['driver_calls']} | 0 |"]
    print("\n".join(text))
    if options.out:
        pathlib.Path(options.out).write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
