#!/usr/bin/env python3
"""256 math verifications on two grader processes beside the same calls in one plain Python process, and the time that a
dead grader costs. Prints Markdown; bench/results/graders.md keeps it.

    ninja -C build/release graders_bench && .venv/bin/python bench/graders.py
"""

import json
import random
import subprocess
import sys
import tempfile
import time

import machine

NUM_SAMPLES = 256
NUM_BATCHES = 3


def samples():
    """Answers as models write them: fractions, roots, sets, wrong ones; few that are equal as text."""
    draw = random.Random(4)
    forms = (
        lambda a, b: (f"\\frac{{{a}}}{{{b}}}", f"{a}/{b}"),
        lambda a, b: (f"{a}x+{b}", f"{b}+{a}x"),
        lambda a, b: (f"\\sqrt{{{a * a * b}}}", f"{a}\\sqrt{{{b}}}"),
        lambda a, b: (f"\\{{{a}, {b}\\}}", f"\\{{{b}, {a}\\}}"),
        lambda a, b: (f"({a}, {b}]", f"({a}, {b + 1}]"),
        lambda a, b: (f"{a}.5", f"\\frac{{{2 * a + 1}}}{{2}}"),
    )
    for _ in range(NUM_SAMPLES * (NUM_BATCHES + 1)):
        answer, label = draw.choice(forms)(draw.randint(2, 99), draw.randint(2, 99))
        thinking = "Let us see. " * draw.randint(10, 200)
        yield {"response": f"{thinking}So it is \\boxed{{{answer}}}.", "label": label}


def plain_seconds(batch):
    sys.path.insert(0, str(machine.ROOT / "python"))
    from tandem_worker.rules.rewards import Math

    grade = Math()
    seconds = []
    for first in range(0, len(batch), NUM_SAMPLES):  # each batch is new to sympy's caches, as it is to the graders'
        begin = time.perf_counter()
        for sample in batch[first : first + NUM_SAMPLES]:
            grade(sample)
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def middle(values):
    return sorted(values)[len(values) // 2]


def main():
    batch = list(samples())
    facts = machine.describe()
    plain = plain_seconds(batch)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(sample) + "\n" for sample in batch)
        file.flush()
        program = machine.ROOT / "build" / "release" / "bench" / "graders_bench"
        result = json.loads(subprocess.run([program, file.name], capture_output=True, text=True, check=True).stdout)
    print(f"`bench/graders.py` on {facts['cores']} cores of {facts['processor']}, commit {facts['commit']}, load "
          f"{facts['load_before'][0]} before; median (least) of {NUM_BATCHES} batches.\n")  # fmt: skip
    print("| | s |\n|---|---|")
    print(f"| 256 samples, one plain Python process | {middle(plain):.3f} ({min(plain):.3f}) |")
    print(f"| 256 samples, two graders | {middle(result['batch_s']):.3f} ({min(result['batch_s']):.3f}) |")
    ratios = [2 * pick(result["batch_s"]) / pick(plain) for pick in (middle, min)]
    print(f"| graders / (plain / 2) | {ratios[0]:.2f} ({ratios[1]:.2f}) |")
    for key, what in (("one_s", "one sample"), ("one_after_death_s", "one sample, its grader dead")):
        print(f"| {what} | {middle(result[key]):.4f} ({min(result[key]):.4f}) |")
    print(f"\nFailed samples: {result.get('failures') or 0}.")


if __name__ == "__main__":
    main()
