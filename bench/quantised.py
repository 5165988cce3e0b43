"""A base in 4 or 8 bits beside bfloat16, on the CPU: what a sequence decodes and a prompt is read with, of a shape with random weights,
and an adapter over each base that learns the arithmetic of examples/arithmetic.

    .venv/bin/python bench/quantised.py [--shape qwen3-0.6b] [--rounds 3] [--rollouts 100] [--out bench/results/quantised.json]

A round measures each --dtype once, one after the other. Decoding is what 32 new tokens cost beyond the first. The adapters have rank 16
and the seeds 1, 2, ..., as many as there are rounds; with --rollouts 0 there are none."""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import machine
import tiny_model

DTYPES, SEQUENCES, PROMPT, NEW, LONG = ("bfloat16", "int8", "nf4"), (1, 4, 16), 64, 32, 512
ARITHMETIC = machine.ROOT / "examples" / "arithmetic"


def seconds(model, dtype, sequences, length, new):
    prompts = model / f"prompts_{sequences}_{length}.jsonl"
    tiny_model.write_prompts(prompts, sequences, length)
    result = subprocess.run(
        [machine.tandem(), "generate", "--hf-checkpoint", str(model), "--dtype", dtype, "--prompt-data", str(prompts), "--ignore-eos",
         "--num-threads", "2", "--rollout-max-response-len", str(new), "--rollout-max-batch-tokens", str(LONG), "--output", "/dev/null"],
        check=True, capture_output=True, text=True)
    return float(re.search(r"tokens in ([0-9.]+) s", result.stdout + result.stderr)[1])


def speeds(model, dtype):
    result = {f"decode {n}": n * (NEW - 1) / (seconds(model, dtype, n, PROMPT, NEW) - seconds(model, dtype, n, PROMPT, 1)) for n in SEQUENCES}
    return {**result, f"prefill {LONG}": 4 * LONG / (seconds(model, dtype, 5, LONG, 1) - seconds(model, dtype, 1, LONG, 1))}


def learnt(folder, dtype, seed, rollouts):
    """The mean rewards of the first and the last ten rollouts, the greatest difference of a rollout's first step, and the weights' bytes
    by the memory plan."""
    save = folder / f"{dtype}_{seed}"
    command = [machine.tandem(), "train", "--colocate", "--hf-checkpoint", str(ARITHMETIC / "checkpoint"), "--dtype", dtype, "--lora-rank", "16",
               "--prompt-data", str(folder / "data" / "train.jsonl"), "--rm-type", "exact", "--rollout-shuffle", "--rollout-batch-size", "32",
               "--n-samples-per-prompt", "8", "--global-batch-size", "256", "--num-rollout", str(rollouts), "--rollout-max-response-len", "8",
               "--lr", "4e-3", "--weight-decay", "0", "--sample-dump-interval", "0", "--no-use-tensorboard", "--seed", str(seed),
               "--save", str(save)]
    subprocess.run(command, check=True, capture_output=True)
    records = [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]
    rewards = [r["rollout/raw_reward"] for r in records if "rollout/raw_reward" in r]
    return {"first": statistics.mean(rewards[:10]), "last": statistics.mean(rewards[-10:]),
            "difference": max(r["train/train_rollout_logprob_abs_diff"] for r in records if "train/step" in r)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="qwen3-0.6b", choices=sorted(tiny_model.SHAPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=100)
    parser.add_argument("--out")
    args = parser.parse_args()
    report = {"machine": machine.describe(), "command": f".venv/bin/python bench/quantised.py --shape {args.shape}", "rounds": args.rounds,
              "tokens_per_s": {}, "learnt": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = tiny_model.make(folder / "model", "bfloat16", tiny_model.SHAPES[args.shape])
        subprocess.run([sys.executable, str(ARITHMETIC / "make_problems.py"), str(folder / "data")], check=True, capture_output=True)
        for seed in range(1, args.rounds + 1):
            for dtype in DTYPES:
                for what, speed in speeds(model, dtype).items():
                    report["tokens_per_s"].setdefault(what, {}).setdefault(dtype, []).append(round(speed, 2))
                    print(f"{dtype} {what}: {speed:.1f} tok/s", file=sys.stderr, flush=True)
                if args.rollouts == 0:
                    continue
                report["learnt"].setdefault(dtype, []).append(learnt(folder, dtype, seed, args.rollouts))
                print(f"{dtype} seed {seed}: {report['learnt'][dtype][-1]}", file=sys.stderr, flush=True)
    print(json.dumps(report["machine"]))
    for what, of in report["tokens_per_s"].items():
        medians = {dtype: statistics.median(values) for dtype, values in of.items()}
        print(f"{what:12s} " + "  ".join(f"{dtype} {m:8.1f} tok/s ({m / medians['bfloat16']:.2f} x)" for dtype, m in medians.items()))
    for dtype, runs in report["learnt"].items():
        print(f"{dtype:8s} reward " + ", ".join(f"{r['first']:.3f} -> {r['last']:.3f}" for r in runs) +
              f"; greatest difference {max(r['difference'] for r in runs)}")
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
