"""Prints accuracy before and after, and three problems with both answers.

    python show.py BEFORE.jsonl AFTER.jsonl      (as tandem eval --sample-output writes them)
"""

import json
import sys


def read(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def accuracy(rows):
    return sum(row["reward"] for row in rows) / len(rows)


def question(row):
    return row["prompt"].removeprefix("<|user|>").removesuffix("<|assistant|>")


def main():
    before, after = read(sys.argv[1]), read(sys.argv[2])
    print(f"\naccuracy on {len(before)} held-out problems, one sample each at temperature 1:")
    print(f"  before {accuracy(before):.3f}   after {accuracy(after):.3f}\n")
    print(f"  {'problem':10s} {'before':>8s} {'after':>8s} {'right':>8s}")
    for b, a in list(zip(before, after))[:3]:
        print(f"  {question(b):10s} {b['response']:>8s} {a['response']:>8s} {b['label']:>8s}")
    print()


if __name__ == "__main__":
    main()
