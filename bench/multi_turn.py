"""Sampled tokens per second of rollouts in several turns against rollouts in one, of as many sampled tokens: runs in turns on one machine.

    .venv/bin/python bench/multi_turn.py [--rounds 3]     prints the table of bench/results/multi_turn.md"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

import machine
import tiny_model
from multi_turn_function import TOKENS, TOOL_TOKENS, TURNS

ROLLOUTS = 5  # of a run; the first is left out
FUNCTION = str(pathlib.Path(__file__).resolve().parent / "multi_turn_function.py") + ":turns"


def speeds(folder, response_tokens, more):
    subprocess.run([
        machine.tandem(), "train", "--colocate", "--hf-checkpoint", str(folder), "--prompt-data", f"{folder}/prompts.jsonl", "--rm-type",
        "exact", "--rollout-batch-size", "8", "--n-samples-per-prompt", "8", "--num-rollout", str(ROLLOUTS), "--ignore-eos",
        "--rollout-max-response-len", str(response_tokens), "--lr", "0", "--sample-dump-interval", "0", "--no-use-tensorboard",
        "--save", f"{folder}/run", "--overwrite", "--quiet", *more], check=True, capture_output=True)
    records = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl", encoding="utf-8")]
    return [r["perf/effective_tokens_per_gpu_per_sec"] for r in records if "rollout/step" in r][1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows = {
        f"one turn of {TURNS * TOKENS} tokens": (TURNS * TOKENS, []),
        f"{TURNS} turns of {TOKENS} tokens, {TOOL_TOKENS} of a tool between": (
            TURNS * TOKENS + (TURNS - 1) * TOOL_TOKENS, ["--custom-generate-function-path", FUNCTION]),
    }
    found = {name: [] for name in rows}
    with tempfile.TemporaryDirectory() as folder:
        folder = tiny_model.make(folder)
        for _ in range(args.rounds):
            for name, (tokens, more) in rows.items():
                found[name] += speeds(folder, tokens, more)
    print(json.dumps(machine.describe()))
    print("| rollouts of 8 x 8 samples | sampled tokens/s (median) | least, most |\n|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | {statistics.median(values):.0f} | {min(values):.0f}, {max(values):.0f} |")
    one, several = (statistics.median(values) for values in found.values())
    print(f"\nratio {several / one:.3f}")


if __name__ == "__main__":
    main()
