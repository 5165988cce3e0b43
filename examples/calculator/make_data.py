"""The problems of examples/arithmetic, and exercises in which the pupil asks the calculator now and then.

    python make_data.py OUT_DIRECTORY

exercises.jsonl  what the warm-up imitates: three problems in ten are asked, and what the calculator says is written down;
                 the others are answered as carelessly as before. The calculator says any number there, so that nothing
                 but copying helps.
train.jsonl      what GRPO practises on, with the right answers as labels.
held_out.jsonl   what neither sees.
"""

import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "arithmetic"))
import make_problems

NUM_EXERCISES = 6000
ASKED = 0.3


def conversation(question, answer, rng):
    if rng.random() >= ASKED:
        return [("user", question), ("assistant", str(make_problems.careless(answer, rng)))]
    said = str(rng.randint(-99, 198))
    return [("user", question), ("assistant", "?"), ("user", said), ("assistant", said)]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    rows = list(make_problems.problems())
    rng.shuffle(rows)
    with open(folder / "exercises.jsonl", "w", encoding="utf-8") as out:
        for question, answer in rows[:NUM_EXERCISES]:
            messages = [{"role": role, "content": text} for role, text in conversation(question, answer, rng)]
            out.write(json.dumps({"messages": messages}) + "\n")
    make_problems.write(folder / "held_out.jsonl", rows[NUM_EXERCISES : NUM_EXERCISES + 500])
    make_problems.write(folder / "train.jsonl", rows[NUM_EXERCISES + 500 :])


if __name__ == "__main__":
    main()
