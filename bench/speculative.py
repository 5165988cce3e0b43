"""What guessed tokens (--speculative-num-draft-tokens) gain and cost where few sequences are left: the rows `tail` of `tandem bench` as a table.

    .venv/bin/python bench/speculative.py [--device cuda] [--shapes qwen3-4b qwen3-0.6b] [--sequences 1 4] [--read FIGURES.json ...]

Each sequence is drawn at temperature 1, and another sample of its group has its text already, with every m-th token changed: so it is known what can be
guessed. --read makes the table of figures that `tandem bench --what tail --json` wrote on another machine."""

import argparse
import json
import pathlib
import subprocess
import sys

import machine


def measured(options, shape):
    command = [machine.tandem("cuda" if options.device != "cpu" else "release"), "bench", "--device", options.device, "--shape", shape,
               "--num-threads", str(options.threads), "--what", "tail", "--sequences", *map(str, options.sequences), "--prompt-len",
               str(options.prompt), "--response-len", str(options.response), "--json", "-"]
    print(" ".join(command), file=sys.stderr)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"exit code {result.returncode}: {result.stderr.strip()[-400:]}")
    return json.loads(result.stdout)


def print_table(record):
    print(f"\n{record['model']}, {record['dtype']}, {record['device']}:\n\n"
          "| | steps | drafts, right | new tokens a step | seconds | ms a step | gain |\n|---|---|---|---|---|---|---|")
    for row in record["measurements"]:
        if row["what"] == "tail":
            steps = row["forwards"]
            print(f"| {row['detail']} | {steps:.0f} | {row['draft_tokens']:.0f}, {row['right_drafts']:.0f} | {row['tokens'] / steps:.2f} | "
                  f"{row['seconds']:.3f} | {1000 * row['seconds'] / steps:.2f} | {row['gain']:.2f} x |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shapes", nargs="+", default=["qwen3-0.6b"])
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--response", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--read", nargs="+", type=pathlib.Path, default=[])
    options = parser.parse_args()
    for path in options.read:
        print_table(json.loads(path.read_text(encoding="utf-8")))
    if not options.read:
        print(json.dumps(machine.describe("cuda" if options.device != "cpu" else "release")))
        for shape in options.shapes:
            print_table(measured(options, shape))


if __name__ == "__main__":
    main()
