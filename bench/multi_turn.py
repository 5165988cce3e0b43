"""Sampled tokens per second of rollouts in several turns against rollouts in one, of as many sampled tokens: runs in turns on one machine.

    .venv/bin/python bench/multi_turn.py [--rounds 3]     prints the table of bench/results/multi_turn.md
    .venv/bin/python bench/multi_turn.py --device cuda --build cuda --shape 4B --batch 32 --turn-tokens 256 [flags of the runs]"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

import lora
import machine
import memory_plan
import tiny_model
from multi_turn_function import TURNS, response_tokens, tool_tokens

FUNCTION = str(pathlib.Path(__file__).resolve().parent / "multi_turn_function.py") + ":turns"


def speeds(folder, options, max_response, more):
    metrics = folder / "run" / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    process = subprocess.Popen([
        machine.tandem(options.build), "train", "--colocate", "--device", options.device, "--hf-checkpoint", str(folder), "--prompt-data",
        f"{folder}/prompts.jsonl", "--rm-type", "exact", "--rollout-batch-size", str(options.batch), "--n-samples-per-prompt", "8",
        "--num-rollout", str(options.rollouts + 1), "--ignore-eos", "--rollout-max-response-len", str(max_response), "--lr", "0",
        "--sample-dump-interval", "0", "--no-use-tensorboard", "--save", f"{folder}/run", "--overwrite", "--quiet", *options.more, *more])
    # Ended by hand: the checkpoint that it would save at its end is not measured.
    code = lora.wait_for_rollouts(process, metrics, options.rollouts)
    if code is not None:
        raise SystemExit(f"tandem train ended with exit code {code}")
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [r["perf/effective_tokens_per_gpu_per_sec"] for r in records if "rollout/step" in r][1:]


def make_model(folder, shape):
    if shape == "tiny":
        return tiny_model.make(folder), []
    folder = pathlib.Path(folder)
    (folder / "config.json").write_text(json.dumps(dict(memory_plan.SHAPES[shape], torch_dtype="bfloat16")), encoding="utf-8")
    tiny_model.write_tokenizer(folder)
    (folder / "prompts.jsonl").write_text((json.dumps({"prompt": "x" * 64, "label": "1"}) + "\n") * 64, encoding="utf-8")
    return folder, ["--random-init", "--dtype", "bfloat16"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--build", default="release")
    parser.add_argument("--shape", default="tiny", choices=["tiny", *memory_plan.SHAPES])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--turn-tokens", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=5, help="of a run; the first is left out")
    options, options.more = parser.parse_known_args()
    tokens, tool = options.turn_tokens, tool_tokens(options.turn_tokens)
    rows = {
        f"one turn of {TURNS * tokens} tokens": (TURNS * tokens, []),
        f"{TURNS} turns of {tokens} tokens, {tool} of a tool between": (response_tokens(tokens), ["--custom-generate-function-path", FUNCTION]),
    }
    found = {name: [] for name in rows}
    with tempfile.TemporaryDirectory() as folder:
        folder, of_model = make_model(folder, options.shape)
        options.more += of_model
        for _ in range(options.rounds):
            for name, (max_response, more) in rows.items():
                found[name] += speeds(folder, options, max_response, more)
    print(json.dumps(machine.describe(options.build)))
    print(f"\n{options.shape} on {options.device}\n\n| rollouts of {options.batch} x 8 samples | sampled tokens/s (median) | least, most |\n|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | {statistics.median(values):.0f} | {min(values):.0f}, {max(values):.0f} |")
    one, several = (statistics.median(values) for values in found.values())
    print(f"\nratio {several / one:.3f}")


if __name__ == "__main__":
    main()
