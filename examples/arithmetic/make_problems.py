"""Every sum a+b and difference a-b of two numbers below 100 with a result of at least 0, dealt once into three files.

    python make_problems.py OUT_DIRECTORY

sft.jsonl       what the warm-up imitates: a careless pupil's exercise book. Each problem stands there several times, and only a
                quarter of the answers are right; the others are off by one or by ten.
train.jsonl     what GRPO practises on, with the right answers as labels.
held_out.jsonl  what neither sees; accuracy is measured there.

The deal is fixed: a problem is in one file only.
"""

import json
import pathlib
import random
import sys

NUM_SFT = 7500
NUM_HELD_OUT = 1500
COPIES = 4
RIGHT = 0.25
SLIPS = (1, -1, 10, -10)


def problems():
    for a in range(100):
        for b in range(100):
            yield f"{a}+{b}=", a + b
            if a >= b:
                yield f"{a}-{b}=", a - b


def careless(answer, rng):
    if rng.random() < RIGHT:
        return answer
    return rng.choice([answer + slip for slip in SLIPS if answer + slip >= 0])


def write(path, rows):
    with open(path, "w", encoding="utf-8") as out:
        for question, answer in rows:
            line = {"prompt": [{"role": "user", "content": question}], "label": str(answer)}
            out.write(json.dumps(line) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    rows = list(problems())
    rng.shuffle(rows)
    exercises = rows[:NUM_SFT]
    write(folder / "sft.jsonl", [(q, careless(a, rng)) for _ in range(COPIES) for q, a in exercises])
    write(folder / "held_out.jsonl", rows[NUM_SFT : NUM_SFT + NUM_HELD_OUT])
    write(folder / "train.jsonl", rows[NUM_SFT + NUM_HELD_OUT :])


if __name__ == "__main__":
    main()
