"""The arithmetic demo's model as a student of the model that the demo trained: on-policy distillation by sampled tokens and by whole
distributions, against the reward that its teacher had learnt from. The same checkpoint, problems, seed and learning rate,
which is constant. After every 10 rollouts: the share of problems that no training sees which one sample at temperature 1 has right, and
the estimated KL from the teacher. Writes OUT.json and OUT.svg.

    examples/arithmetic/demo.sh runs/teacher
    .venv/bin/python bench/distillation.py runs/teacher/hf/latest [--rollouts 60] [--at-once 3] [--out bench/results/distillation]"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

import machine

EXAMPLE = machine.ROOT / "examples" / "arithmetic"
EVERY = 10
PROBLEMS = 500
OPD = ("--use-opd", "--opd-teacher-load")
RUNS = {
    "the reward (GRPO)": None,
    "a teacher, by sampled tokens": ("--no-opd-use-task-rewards",),
    "a teacher, by whole distributions (reverse KL)": ("--no-opd-use-task-rewards", "--opd-kl-coef", "0", "--opd-loss-coef", "1"),
}
COLORS = ("#888", "#06b", "#c40")


def train(folder, name, teacher, flags, rollouts, tandem):
    """[finished rollouts, right answers, reverse KL or None] of each evaluation."""
    path = f"{folder}/{list(RUNS).index(name)}"
    distillation = () if flags is None else (*OPD, teacher, *flags)
    subprocess.run([
        tandem, "train", "--colocate", "--hf-checkpoint", str(EXAMPLE / "checkpoint"), "--prompt-data", f"{folder}/train.jsonl",
        "--rm-type", "exact", "--rollout-shuffle", "--rollout-batch-size", "16", "--n-samples-per-prompt", "8", "--num-rollout",
        str(rollouts), "--rollout-max-response-len", "8", "--lr", "3e-4", "--weight-decay", "0", "--sample-dump-interval", "0",
        "--num-threads", "1", "--no-use-tensorboard", "--save-interval", "10000", "--eval-prompt-data", "held_out",
        f"{folder}/held_out.jsonl@[0:{PROBLEMS}]", "--eval-interval", str(EVERY), "--save", path, "--quiet", *distillation], check=True)
    curve, kl = [], None
    for record in map(json.loads, open(f"{path}/metrics.jsonl", encoding="utf-8")):
        kl = record.get("train/opd_reverse_kl", kl)
        if "eval/held_out" in record:
            curve.append([record["eval/step"], round(record["eval/held_out"], 4), kl])
    return curve


def picture(report):
    width, height, left, top = 720, 400, 60, 20
    longest = max(curve[-1][0] for curve in report["curves"].values())
    x, y = (lambda r: left + r / longest * (width - left - 20)), (lambda a: top + (1.0 - a) / 0.7 * (height - top - 60))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for a in (0.4, 0.6, 0.8, 1.0):
        out.append(f'<path d="M{left} {y(a):.1f}H{width - 20}" stroke="#ddd"/><text x="{left - 8}" y="{y(a) + 4:.1f}" text-anchor="end">{a}</text>')
    for r in range(0, longest + 1, max(longest // 6, 1)):
        out.append(f'<text x="{x(r):.1f}" y="{height - 42}" text-anchor="middle">{r}</text>')
    out.append(f'<text x="{width / 2}" y="{height - 20}" text-anchor="middle">rollouts of 16 problems x 8 samples; share of held-out '
               f'problems that are right</text>')
    for i, (name, curve) in enumerate(report["curves"].items()):
        points = " ".join(f"{x(step):.1f},{y(right):.1f}" for step, right, _ in curve)
        at = y(0.33) - 18 * (len(report["curves"]) - i)
        out.append(f'<polyline points="{points}" fill="none" stroke="{COLORS[i]}" stroke-width="1.8"/>'
                   f'<path d="M{width - 360} {at - 4:.1f}h34" stroke="{COLORS[i]}" stroke-width="1.8"/>'
                   f'<text x="{width - 318}" y="{at:.1f}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("teacher")
    parser.add_argument("--rollouts", type=int, default=60)
    parser.add_argument("--at-once", type=int, default=1, help="runs beside each other: no time is reported")
    parser.add_argument("--tandem", default=machine.tandem())
    parser.add_argument("--out", default="bench/results/distillation")
    args = parser.parse_args()
    build = "release" if args.tandem == machine.tandem() else "that of --tandem"
    report = {"machine": machine.describe(build), "curves": {}}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        subprocess.run([sys.executable, str(EXAMPLE / "make_problems.py"), folder], check=True)
        curves = pool.map(lambda run: train(folder, run[0], args.teacher, run[1], args.rollouts, args.tandem), RUNS.items())
        for name, curve in zip(RUNS, curves):
            report["curves"][name] = curve
            print(name, curve, flush=True)
    pathlib.Path(args.out + ".json").write_text(json.dumps(report) + "\n", encoding="utf-8")
    pathlib.Path(args.out + ".svg").write_text(picture(report), encoding="utf-8")


if __name__ == "__main__":
    main()
