"""Generation of the Qwen3-0.6B shape, or of the sparse shape moe-0.5b (random bfloat16 weights, two threads): tokens per second of
decoding 1, 4 and 16 sequences (prompt 64, 64 new tokens) and of reading a prompt of 512; llama.cpp, transformers and Tandem side by
side, round after round.

    .venv/bin/python bench/decode.py [--shape qwen3-0.6b] [--rounds 3] [--dtype bfloat16] [--out bench/results/decode.json]

Decoding is what 64 new tokens cost beyond the first: the prompt's share is measured by itself and taken off."""

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

SEQUENCES, PROMPT, NEW, LONG = (1, 4, 16), 64, 64, 512


def tandem_seconds(model, sequences, length, new):
    prompts = model / f"prompts_{sequences}_{length}.jsonl"
    tiny_model.write_prompts(prompts, sequences, length)
    result = subprocess.run(
        [machine.tandem(), "generate", "--hf-checkpoint", str(model), "--prompt-data", str(prompts), "--ignore-eos", "--num-threads",
         "2", "--rollout-max-response-len", str(new), "--rollout-max-batch-tokens", str(LONG), "--output", "/dev/null"], check=True, capture_output=True, text=True)
    return float(re.search(r"tokens in ([0-9.]+) s", result.stdout + result.stderr)[1])


def tandem(model, _dtype):
    result = {f"decode {n}": n * (NEW - 1) / (tandem_seconds(model, n, PROMPT, NEW) - tandem_seconds(model, n, PROMPT, 1))
              for n in SEQUENCES}
    # What a prompt costs in forwards of 512 tokens beyond the first, as the peers are given a first one to warm up.
    return {**result, f"prefill {LONG}": 4 * LONG / (tandem_seconds(model, 5, LONG, 1) - tandem_seconds(model, 1, LONG, 1))}


def llama_cpp(model, dtype):
    times = machine.peer("llama_cpp_generate.py", model, dtype, 1, *(f"{n}x1x{PROMPT}x{NEW}" for n in SEQUENCES), f"1x1x{LONG}x1")
    if times is None:
        return None
    result = {f"decode {n}": n * (NEW - 1) / (t["generate_s"][0] - t["prefill_s"][0]) for n, t in zip(SEQUENCES, times)}
    return {**result, f"prefill {LONG}": LONG / times[-1]["prefill_s"][0]}


def transformers(model, dtype):
    return machine.peer("transformers_generate.py", model, dtype, PROMPT, NEW, LONG, *SEQUENCES)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="qwen3-0.6b", choices=("qwen3-0.6b", "moe-0.5b"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--out")
    args = parser.parse_args()
    report = {"machine": machine.describe(), "command": ".venv/bin/python bench/decode.py", "shape": args.shape, "dtype": args.dtype,
              "rounds": args.rounds, "tokens_per_s": {}}
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model.make(pathlib.Path(folder) / "model", args.dtype, tiny_model.SHAPES[args.shape])
        for _ in range(args.rounds):
            for who in (tandem, llama_cpp, transformers):
                if who is not tandem and not machine.PEERS.exists():
                    continue
                for what, speed in (who(model, args.dtype) or {}).items():
                    report["tokens_per_s"].setdefault(f"{what:12s} {who.__name__}", []).append(round(speed, 2))
                    print(f"{who.__name__} {what}: {speed:.1f} tok/s", file=sys.stderr, flush=True)
    for name, speeds in sorted(report["tokens_per_s"].items()):
        print(f"{name:28s} median {statistics.median(speeds):8.1f} tok/s  rounds {speeds}")
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
