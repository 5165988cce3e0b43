"""The problems of examples/arithmetic, and exercises in which the pupil asks the calculator now and then.

    python make_data.py OUT_DIRECTORY

exercises.jsonl  what the warm-up imitates: three problems in ten are asked, and what the calculator says is written down;
                 the others are answered as carelessly as before. The calculator says any number there, so that nothing
                 but copying helps.
train.jsonl      what GRPO practises on, with the right answers as labels.
held_out.jsonl   what neither sees.
quiz_exercises.jsonl, quiz.jsonl, quiz_held_out.jsonl
                 the same for quiz.py: four problems in each line.
"""

import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "arithmetic"))
import make_problems

NUM_EXERCISES = 6000
ASKED = 0.3
OF_A_QUIZ = 4


def conversation(question, answer, rng):
    if rng.random() >= ASKED:
        return [("user", question), ("assistant", str(make_problems.careless(answer, rng)))]
    said = str(rng.randint(-99, 198))
    return [("user", question), ("assistant", "?"), ("user", said), ("assistant", said)]


def quizzes(rows):
    """Takes the problems in turns of four."""
    return [rows[i : i + OF_A_QUIZ] for i in range(0, len(rows) - OF_A_QUIZ + 1, OF_A_QUIZ)]


def write_exercises(path, conversations):
    with open(path, "w", encoding="utf-8") as out:
        for said in conversations:
            out.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in said]}) + "\n")


def write_quizzes(path, rows):
    with open(path, "w", encoding="utf-8") as out:
        for quiz in quizzes(rows):
            (first, answer), *more = quiz
            line = {"prompt": [{"role": "user", "content": first}], "label": str(answer), "metadata": {"more": [q for q, _ in more]}}
            out.write(json.dumps(line) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    rows = list(make_problems.problems())
    rng.shuffle(rows)
    exercises, held_out, train = rows[:NUM_EXERCISES], rows[NUM_EXERCISES : NUM_EXERCISES + 500], rows[NUM_EXERCISES + 500 :]
    write_exercises(folder / "exercises.jsonl", [conversation(question, answer, rng) for question, answer in exercises])
    make_problems.write(folder / "held_out.jsonl", held_out)
    make_problems.write(folder / "train.jsonl", train)
    write_exercises(folder / "quiz_exercises.jsonl",
                    [[said for problem in quiz for said in conversation(*problem, rng)] for quiz in quizzes(exercises)])
    write_quizzes(folder / "quiz_held_out.jsonl", held_out)
    write_quizzes(folder / "quiz.jsonl", train)


if __name__ == "__main__":
    main()
