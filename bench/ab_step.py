"""Two builds of Tandem beside each other, taking turns: seconds of rollout and training of a step, the best of several, and their ratio.

    .venv/bin/python bench/ab_step.py BEFORE AFTER [--device cpu] [--rounds 3] [--ranks 1] [--large] [--dtypes float32 bfloat16]

BEFORE and AFTER are programs (build/release/src/cli/tandem). 32 x 8 completions of 24 tokens of the tiny model; --large: 8 x 8 of 64 of the
Qwen3-0.6B shape in bfloat16 too."""

import argparse
import json
import pathlib
import subprocess
import tempfile

import machine
import tiny_model

PARTS = ("perf/rollout_time", "perf/actor_train_time")


def step(program, model, options, dtype, prompts, response, save):
    result = subprocess.run([program, "train", "--colocate", "--device", options.device, "--hf-checkpoint", str(model), "--dtype", dtype,
                             "--prompt-data", f"{model}/prompts.jsonl", "--custom-rm-path", f"{machine.ROOT}/bench/peers/reward.py:reward",
                             "--rollout-batch-size", str(prompts), "--n-samples-per-prompt", "8", "--num-rollout", str(options.steps),
                             "--rollout-max-response-len", str(response), "--ignore-eos", "--no-use-tensorboard", "--sample-dump-interval", "0",
                             "--num-threads", str(options.threads),
                             "--actor-num-gpus-per-node", str(options.ranks), "--save", str(save), "--overwrite"], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{program}: {result.stderr}")
    rows = [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]
    return [min([row[part] for row in rows if part in row][1:]) for part in PARTS]


def compare(title, model, options, *arguments):
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for program in options.programs:
                times = step(program, model, options, *arguments, pathlib.Path(folder) / "run")
                best[program] = [min(pair) for pair in zip(times, best.get(program, times))]
    before, after = (best[program] for program in options.programs)
    for part, a, b in zip(PARTS, before, after):
        print(f"{title:28} {part:24} before {a:.3f} s, after {b:.3f} s: {b / a:.2f} x", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--large", action="store_true")
    for name, value in {"rounds": 3, "steps": 4, "threads": 2, "ranks": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    print(json.dumps(machine.describe()))
    with tempfile.TemporaryDirectory() as folder:
        tiny = tiny_model.make(pathlib.Path(folder) / "tiny")
        for dtype in options.dtypes:
            compare(f"tiny model, {dtype}", tiny, options, dtype, 32, 24)
        if options.large:
            large = tiny_model.make(pathlib.Path(folder) / "large", "bfloat16", tiny_model.QWEN3_0_6B)
            compare("Qwen3-0.6B shape, bfloat16", large, options, "bfloat16", 8, 64)


if __name__ == "__main__":
    main()
