"""What it costs to give the device's memory from one phase to the other, and to a region's pause and resume, beside what the bus gives
and what torch_memory_saver takes, on one NVIDIA GPU in one run:

    cmake --preset cuda && cmake --build build/cuda --target region_bench
    .venv/bin/python bench/regions.py [--out bench/results/regions.md]

torch_memory_saver 0.0.10 is measured where it can be imported beside torch with CUDA. vLLM's figures (0.24.0, same kind of GPU, not this
run): sleep 0.06-0.10 s and wake 0.45-0.52 s for 110 GiB without contents."""

import argparse
import json
import pathlib
import subprocess
import sys

import machine

LARGE, KEPT = 64, 8


def saver(gib, keeps):
    script = machine.ROOT / "bench" / "peers" / "torch_memory_saver_pause.py"
    for python in (str(machine.PEERS), sys.executable):
        if pathlib.Path(python).exists():
            result = subprocess.run([python, str(script), str(gib), keeps], capture_output=True, text=True, check=False)
            if result.returncode == 0:
                return json.loads(result.stdout.strip().splitlines()[-1])
            print(f"torch_memory_saver: left out, exit code {result.returncode}: {result.stderr.strip()[-200:]}", file=sys.stderr)
    return None


def milliseconds(summary):
    return f"{summary['median']:.2f} ms ({summary['least']:.2f} to {summary['most']:.2f})"


def cycles(result):
    if result is None:
        return "not measured"
    later = [(1e3 * p, 1e3 * r) for p, r in zip(result["pause_s"], result["resume_s"])]
    return "pause " + " / ".join(f"{p:.0f}" for p, _ in later) + " ms, resume " + " / ".join(f"{r:.0f}" for _, r in later) + " ms"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    options = parser.parse_args()
    program = machine.ROOT / "build" / "release" / "bench" / "region_bench"
    ours = json.loads(subprocess.run([str(program), str(LARGE), str(KEPT)], capture_output=True, text=True, check=True).stdout)
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    change, bus = ours["phase_change"], ours["bus"]
    text = ["# Phases and regions", "", json.dumps({"gpu": gpu.stdout.strip(), **machine.describe()}), "",
            "`.venv/bin/python bench/regions.py`. Median of 20 changes of phase, of 6 pauses and resumes after the first (least to most).", "",
            "| what | Tandem | to reach | peer or limit |", "|---|---|---|---|",
            f"| {LARGE} GiB change to training, last kernel to first kernel | {milliseconds(change['to_train_ms'])} | 1 ms | |",
            f"| and back | {milliseconds(change['to_rollout_ms'])} | 1 ms | |",
            f"| calls of the driver in {2 * 20 + 1} changes | {change['driver_calls']} | 0 | |"]
    for name, title in (("discard", "extents stay in the pool"), ("discard_and_trim", "extents leave the device")):
        row = ours[name]
        text.append(f"| {LARGE} GiB region without contents, pause; {title} ({row['left_the_device_gib']:.0f} GiB) | "
                    f"{milliseconds(row['pause_ms'])} | | |")
        text.append(f"| resume | {milliseconds(row['resume_ms'])} | both 60 ms | |")
    text.append(f"| torch_memory_saver, {LARGE} GiB without contents | | | {cycles(saver(LARGE, 'discard'))} |")
    for name, title in (("keep", "extents stay in the pool"), ("keep_and_trim", "extents leave the device")):
        row = ours[name]
        text.append(f"| {KEPT} GiB region with contents, pause; {title} ({row['left_the_device_gib']:.0f} GiB) | "
                    f"{milliseconds(row['pause_ms'])}, the first {row['first_pause_ms']:.0f} ms | 170 ms | plain copy {bus['to_host_ms']:.0f} "
                    f"ms ({bus['to_host_gb_per_s']:.1f} GB/s) |")
        text.append(f"| resume | {milliseconds(row['resume_ms'])}, the first {row['first_resume_ms']:.0f} ms | 170 ms | plain copy "
                    f"{bus['to_device_ms']:.0f} ms ({bus['to_device_gb_per_s']:.1f} GB/s) |")
    text.append(f"| pinning {KEPT} GiB, once, before | {ours['keep']['pin_ms']:.0f} ms | | |")
    text.append(f"| torch_memory_saver, {KEPT} GiB with contents | | | {cycles(saver(KEPT, 'keep'))} |")
    print("\n".join(text))
    if options.out:
        pathlib.Path(options.out).write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
