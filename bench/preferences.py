"""Preferences on the arithmetic demo's problems, as a page: pairs of the right answer and a wrong one that the model gave, the share of
held-out problems answered right before and after, for each loss.

    .venv/bin/python bench/preferences.py [--steps 100] [--tandem PROGRAM] [--out bench/results/preferences.md]

Needs the data of examples/arithmetic/demo.sh (make demo)."""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import machine

CHECKPOINT = machine.ROOT / "examples/arithmetic/checkpoint"
LOSSES = ("sigmoid", "robust", "hinge", "ipo", "kto")


def run(program, *words):
    result = subprocess.run([program, *map(str, words)], capture_output=True, text=True, cwd=machine.ROOT)
    if result.returncode != 0:
        raise SystemExit(result.stderr.strip())
    return result.stdout + result.stderr


def answers(program, checkpoint, data, out):
    """The share of right answers, one sample each at temperature 1, which are written to `out`."""
    text = run(program, "eval", "--hf-checkpoint", checkpoint, "--eval-prompt-data", "x", data, "--rm-type", "exact",
               "--eval-max-response-len", 8, "--rollout-temperature", 1, "--sample-output", out)
    return float(re.search(r"reward ([0-9.]+)", text)[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", default="1e-4")
    parser.add_argument("--beta", default="1")
    parser.add_argument("--tandem", default=machine.tandem())
    parser.add_argument("--data", default=str(machine.ROOT / "runs/arithmetic-data"))
    parser.add_argument("--out")
    options = parser.parse_args()
    data = pathlib.Path(options.data)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        before = answers(options.tandem, CHECKPOINT, data / "held_out.jsonl", folder / "before.jsonl")
        answers(options.tandem, CHECKPOINT, data / "train.jsonl", folder / "drawn.jsonl")
        problems = [json.loads(line) for line in open(data / "train.jsonl", encoding="utf-8")]
        drawn = [json.loads(line) for line in open(folder / "drawn.jsonl", encoding="utf-8")]
        wrong = [(p["prompt"], d["label"], d["response"]) for p, d in zip(problems, drawn) if d["reward"] == 0 and d["response"]]
        files = {"pairs": [{"prompt": p, "chosen": a, "rejected": w} for p, a, w in wrong],
                 "labelled": [{"prompt": p, "completion": c, "label": c == a} for p, a, w in wrong for c in (a, w)]}
        for key, lines in files.items():
            (folder / f"{key}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        page = ["# Preferences on arithmetic", "", json.dumps(machine.describe()), "", *(__doc__.split("\n\n")[0].splitlines()), "",
                f"{len(wrong)} pairs of {len(drawn)} problems, {options.steps} steps of 32 pairs (`kto`: 64 labelled answers), `--lr {options.lr}`, `--preference-beta {options.beta}`; "
                f"one sample of each held-out problem at temperature 1. Before: {before}.", "",
                "| `--preference-loss` | loss, first and last step | margin of rewards, last | right after |", "|---|---|---|---|"]
        for loss in LOSSES:
            save = folder / loss
            run(options.tandem, "sft", "--hf-checkpoint", CHECKPOINT, "--prompt-data", folder / ("labelled.jsonl" if loss == "kto" else "pairs.jsonl"),
                "--preference-loss", loss, "--global-batch-size", 64 if loss == "kto" else 32, "--num-rollout", options.steps, "--lr", options.lr, "--preference-beta", options.beta,
                "--no-use-tensorboard", "--save", save, *(["--preference-label-smoothing", "0.1"] if loss == "robust" else []))
            steps = [r for r in map(json.loads, open(save / "metrics.jsonl", encoding="utf-8")) if "train/step" in r]
            after = answers(options.tandem, save / "hf/latest", data / "held_out.jsonl", folder / "after.jsonl")
            page.append(f"| `{loss}` | {steps[0]['train/loss']:.3f}, {steps[-1]['train/loss']:.3f} | {steps[-1]['preference/margin']:.2f} | {after} |")
            print(page[-1], flush=True)
    if options.out:
        pathlib.Path(options.out).write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
