"""A quiz of four problems in one conversation, with the calculator of examples/calculator at hand: credit for each turn
(examples/advantages/turn_rewards.py) beside one number for each sample, GRPO's. The same warmed-up model, problems, seeds and learning
rate; runs in turns on one machine. Writes OUT.md and OUT.svg.

    .venv/bin/python bench/turn_credit.py [--seeds 42,43] [--rollouts 40] [--out bench/results/turn_credit]"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import machine

EXAMPLE = machine.ROOT / "examples" / "calculator"
CREDIT = ("--custom-advantage-path", str(machine.ROOT / "examples" / "advantages" / "turn_rewards.py") + ":advantages")
RUNS = {"a number for each sample (GRPO)": (), "a number for each turn": CREDIT}
COLORS = ("#888", "#06b")
SHOWN = 8  # columns of the table


def run(tandem, *words):
    result = subprocess.run([tandem, *map(str, words)], capture_output=True, text=True, cwd=machine.ROOT)
    if result.returncode != 0:
        raise SystemExit(result.stderr.strip())


def warm_up(args, folder):
    subprocess.run([sys.executable, str(EXAMPLE / "make_data.py"), str(folder)], check=True)
    run(args.tandem, "sft", "--hf-checkpoint", machine.ROOT / "examples/arithmetic/checkpoint", "--prompt-data", folder / "quiz_exercises.jsonl",
        "--rollout-shuffle", "--global-batch-size", 64, "--num-rollout", args.warm_up_steps, "--lr", "1e-3", "--min-lr", "1e-4",
        "--lr-decay-style", "cosine", "--no-use-tensorboard", "--save", folder / "warm_up", "--quiet")
    return folder / "warm_up/hf/latest"


def train(args, folder, model, seed, flags):
    """The share of problems that are right, and of problems in which the calculator was asked, of each rollout."""
    save = folder / f"run_{seed}_{len(flags)}"
    run(args.tandem, "train", "--colocate", "--hf-checkpoint", model, "--prompt-data", folder / "quiz.jsonl", "--custom-generate-function-path",
        f"{EXAMPLE}/quiz.py:generate", "--custom-rm-path", f"{EXAMPLE}/quiz.py:reward", "--reward-key", "score", "--rollout-shuffle", "--rollout-seed", seed,
        "--rollout-batch-size", 8, "--n-samples-per-prompt", 8, "--num-rollout", args.rollouts, "--rollout-max-response-len", 96, "--lr", args.lr,
        "--weight-decay", 0, "--sample-dump-interval", 0, "--no-use-tensorboard", "--save-interval", 10000, "--save", save, "--quiet", *flags)
    records = [json.loads(line) for line in open(save / "metrics.jsonl", encoding="utf-8")]
    return [(r["rollout/raw_reward"], r["rollout/reward_asked"]) for r in records if "rollout/raw_reward" in r]


def mean(curves, width):
    """Over the seeds, and then over the last `width` rollouts up to each."""
    means = [sum(curve[i][0] for curve in curves) / len(curves) for i in range(len(curves[0]))]
    return [sum(means[max(0, i - width + 1) : i + 1]) / min(i + 1, width) for i in range(len(means))]


def picture(curves):
    width, height, left, top = 720, 360, 60, 20
    count = max(len(curve) for curve in curves.values())
    x, y = (lambda i: left + i / max(count - 1, 1) * (width - left - 20)), (lambda a: top + (1.0 - a) * (height - top - 60))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for a in (0.0, 0.25, 0.5, 0.75, 1.0):
        out.append(f'<path d="M{left} {y(a):.1f}H{width - 20}" stroke="#ddd"/><text x="{left - 8}" y="{y(a) + 4:.1f}" text-anchor="end">{a}</text>')
    for i in range(0, count, max(count // 8, 1)):
        out.append(f'<text x="{x(i):.1f}" y="{height - 42}" text-anchor="middle">{i + 1}</text>')
    out.append(f'<text x="{width / 2}" y="{height - 20}" text-anchor="middle">rollouts of 8 quizzes x 8 samples; share of problems that are right, '
               f'mean of seeds and of five rollouts</text>')
    for i, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{x(k):.1f},{y(value):.1f}" for k, value in enumerate(curve))
        at = y(0.1) - 18 * i
        out.append(f'<polyline points="{points}" fill="none" stroke="{COLORS[i]}" stroke-width="1.8"/><path d="M{width - 320} {at - 4:.1f}h34" '
                   f'stroke="{COLORS[i]}" stroke-width="1.8"/><text x="{width - 278}" y="{at:.1f}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def page(args, found):
    last = args.rollouts
    columns = sorted({1, *(round(last * i / (SHOWN - 1)) for i in range(1, SHOWN))})
    lines = ["# Credit for each turn beside a number for each sample", "", json.dumps(machine.describe(args.build)), "",
             *__doc__.split("\n\n")[0].splitlines(), "",
             f"{last} rollouts of 8 quizzes x 8 samples, one optimizer step each, `--lr {args.lr}`; the warm-up had {args.warm_up_steps} steps. The share of "
             "problems that are right, mean of five rollouts up to that one:", "",
             "| rollout | seed | " + " | ".join(map(str, columns)) + " |", "|---|---|" + "---|" * len(columns)]
    for name, curves in found.items():
        for seed, curve in curves.items():
            smooth = mean([curve], 5)
            lines.append(f"| {name} | {seed} | " + " | ".join(f"{smooth[c - 1]:.3f}" for c in columns) + " |")
    lines += ["", "The share of problems in which the calculator was asked, first and last rollout:", "", "| | seed | first | last |", "|---|---|---|---|"]
    lines += [f"| {name} | {seed} | {curve[0][1]:.2f} | {curve[-1][1]:.2f} |" for name, curves in found.items() for seed, curve in curves.items()]
    return "\n".join([*lines, "", f"![the curves]({pathlib.Path(args.out).name}.svg)", ""])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="42,43")
    parser.add_argument("--rollouts", type=int, default=40)
    parser.add_argument("--warm-up-steps", type=int, default=400)
    parser.add_argument("--lr", default="2e-4")
    parser.add_argument("--tandem", default=machine.tandem())
    parser.add_argument("--build", default="release", help="what --tandem is, for the page")
    parser.add_argument("--out", default="bench/results/turn_credit")
    args = parser.parse_args()
    found = {name: {} for name in RUNS}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = warm_up(args, folder)
        for seed in args.seeds.split(","):
            for credit, flags in RUNS.items():
                found[credit][seed] = train(args, folder, model, seed, flags)
                print(credit, seed, " ".join(f"{right:.2f}" for right, _ in found[credit][seed]), flush=True)
    pathlib.Path(args.out + ".md").write_text(page(args, found), encoding="utf-8")
    pathlib.Path(args.out + ".svg").write_text(picture({name: mean(list(curves.values()), 5) for name, curves in found.items()}), encoding="utf-8")


if __name__ == "__main__":
    main()
