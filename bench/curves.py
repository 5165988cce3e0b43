"""Training reward against time on the arithmetic demo's task, Tandem's and TRL's curve in one picture; the same checkpoint, problems,
batch, learning rate and steps, two threads each, one after the other.

    .venv/bin/python bench/curves.py [--seconds 300] [--out bench/results/curves]     writes curves.json and curves.svg"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import machine

PEERS = machine.ROOT / ".venv-peers" / "bin" / "python"
EXAMPLE = machine.ROOT / "examples" / "arithmetic"
STEPS = 300


def tandem(data, folder):
    subprocess.run([
        machine.tandem(), "train", "--colocate", "--hf-checkpoint", str(EXAMPLE / "checkpoint"), "--prompt-data", f"{data}/train.jsonl",
        "--rm-type", "exact", "--rollout-shuffle", "--rollout-batch-size", "32", "--n-samples-per-prompt", "8", "--global-batch-size",
        "256", "--num-rollout", str(STEPS), "--rollout-max-response-len", "8", "--lr", "4e-4", "--min-lr", "2e-5", "--lr-decay-style",
        "linear", "--weight-decay", "0", "--sample-dump-interval", "0", "--num-threads", "2", "--no-use-tensorboard", "--save",
        f"{folder}/run"], check=True, capture_output=True)
    seconds, curve = 0.0, []
    for line in open(f"{folder}/run/metrics.jsonl", encoding="utf-8"):
        record = json.loads(line)
        if "rollout/raw_reward" in record:
            seconds += record["perf/step_time"]
            curve.append([round(seconds, 3), record["rollout/raw_reward"]])
    return curve


def trl(data, seconds):
    result = subprocess.run(
        [str(PEERS), str(machine.ROOT / "bench" / "peers" / "arithmetic_trl.py"), str(EXAMPLE / "checkpoint"), f"{data}/train.jsonl",
         str(STEPS), str(seconds)], capture_output=True, text=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "OMP_NUM_THREADS": "2",
             "HF_HUB_OFFLINE": "1"})
    if result.returncode != 0:
        sys.exit(f"arithmetic_trl.py: exit code {result.returncode}: {result.stderr[-400:]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def smooth(curve, width=5):
    return [[point[0], sum(p[1] for p in curve[max(0, i - width + 1) : i + 1]) / min(i + 1, width)] for i, point in enumerate(curve)]


def picture(curves):
    width, height, left, top = 720, 360, 60, 20
    longest = max(curve[-1][0] for curve in curves.values())
    x, y = (lambda s: left + s / longest * (width - left - 20)), (lambda r: top + (1.0 - r) * (height - top - 50))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for r in (0.0, 0.25, 0.5, 0.75, 1.0):
        out.append(f'<path d="M{left} {y(r):.1f}H{width - 20}" stroke="#ddd"/><text x="{left - 8}" y="{y(r) + 4:.1f}" text-anchor="end">{r}</text>')
    for i in range(6):
        s = longest * i / 5
        out.append(f'<text x="{x(s):.1f}" y="{height - 30}" text-anchor="middle">{s:.0f}</text>')
    out.append(f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">seconds of training, two threads; reward: mean of five steps</text>')
    for (name, curve), color in zip(curves.items(), ("#0b6", "#c40")):
        points = " ".join(f"{x(s):.1f},{y(r):.1f}" for s, r in smooth(curve))
        last = smooth(curve)[-1]
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        beside = x(last[0]) + 6 < width - 150  # there is room to the right of the curve's end, else below it
        at_x, at_y = (x(last[0]) + 6, y(last[1]) + 4) if beside else (width - 150, y(last[1]) + 34)
        out.append(f'<text x="{at_x:.1f}" y="{at_y:.1f}" fill="{color}">{name}, {len(curve)} steps</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300, help="TRL is stopped after so long")
    parser.add_argument("--out", default="bench/results/curves")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(EXAMPLE / "make_problems.py"), folder], check=True)
        curves = {"Tandem (bfloat16)": tandem(folder, folder), "TRL (float32)": trl(folder, args.seconds)}
    report = {"machine": machine.describe(), "command": ".venv/bin/python bench/curves.py", "seconds_and_reward": curves}
    pathlib.Path(args.out + ".json").write_text(json.dumps(report) + "\n", encoding="utf-8")
    pathlib.Path(args.out + ".svg").write_text(picture(curves), encoding="utf-8")
    for name, curve in curves.items():
        print(f"{name}: {len(curve)} steps in {curve[-1][0]:.1f} s, reward of the last ten {sum(p[1] for p in curve[-10:]) / len(curve[-10:]):.3f}")


if __name__ == "__main__":
    main()
