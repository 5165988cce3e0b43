"""The memory plan against what a run takes, by tag and phase, and what a change of phase costs, on Qwen3 shapes with random weights:

    .venv/bin/python bench/memory_plan.py [--device cpu] [--shapes 0.6B] [--out bench/results/memory_plan.md]

A tag's number is the ledger's highest in the phase; the peak of the process (Pss of the program alone, without its Python workers) is
read beside it. To reach: never above the plan, and the plan at most 2 % (on the CPU: or 64 MiB) above."""

import argparse
import json
import pathlib
import tempfile

import machine
import memory
import tiny_model

GIB, MIB = 1 << 30, 1 << 20
SHAPES = {
    "0.6B": tiny_model.QWEN3_0_6B,
    "1.7B": dict(tiny_model.QWEN3_0_6B, hidden_size=2048, intermediate_size=6144),
    "4B": dict(tiny_model.QWEN3_0_6B, hidden_size=2560, intermediate_size=9728, num_attention_heads=32, num_hidden_layers=36),
}
REWARD = "def reward(prompts, completions, **kwargs):\n    return [float(sum(map(ord, c)) % 5) for c in completions]\n"


def measure(folder, shape, options, more):
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(dict(shape, torch_dtype="bfloat16")), encoding="utf-8")
    tiny_model.write_tokenizer(model)
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    (folder / "prompts.jsonl").write_text((json.dumps({"prompt": "x" * options.prompt, "label": "1"}) + "\n") * 8, encoding="utf-8")
    command = ["train", "--colocate", "--device", options.device, "--hf-checkpoint", str(model), "--random-init",
               "--prompt-data", str(folder / "prompts.jsonl"), "--custom-rm-path", f"{folder}/reward.py:reward", "--rollout-batch-size",
               str(options.batch), "--n-samples-per-prompt", str(options.samples), "--num-rollout", "2", "--rollout-max-response-len",
               str(options.response), "--ignore-eos", "--kv-cache-bytes", str(options.kv_bytes), "--rollout-max-batch-tokens", str(options.batch_tokens), "--num-threads", str(options.threads),
               "--no-use-tensorboard", "--save-interval", "1000", "--save", str(folder / "run"), *more]
    peak = memory.peak(command, members=lambda pid: [pid])
    events = [json.loads(line) for line in (folder / "run/memory_timeline.jsonl").read_text().splitlines()]
    records = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return {
        "phases": [event for event in events if event["event"] == "step"][-1]["phases"],
        "peak_pss": peak,
        "changes": [(r["perf/memory_to_train_time"], r["perf/memory_to_rollout_time"]) for r in records if "rollout/step" in r],
    }


def table(name, result):
    lines = [f"## {name}", "", "| phase | tag | most, MiB | planned, MiB | plan above by |", "|---|---|---|---|---|"]
    for phase, tags in result["phases"].items():
        rows = [(tag, tags["most"].get(tag, 0), tags["planned"].get(tag, 0)) for tag in sorted({*tags["most"], *tags["planned"]})]
        for tag, most, planned in [*rows, ("at once", tags["most_at_once"], tags["planned_at_once"])]:
            above = f"{100 * (planned / most - 1):.2f} %" if most else f"{(planned - most) / MIB:.2f} MiB"
            lines.append(f"| {phase} | {tag} | {most / MIB:.2f} | {planned / MIB:.2f} | {above} |")
    to_train, to_rollout = zip(*result["changes"])
    lines += ["", f"Peak Pss of the program {result['peak_pss'] / GIB:.2f} GiB. Change of phase, the longest of {len(to_train)}: to training "
              f"{1e3 * max(to_train):.3f} ms, to the rollout {1e3 * max(to_rollout):.3f} ms.", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["0.6B"])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=48)
    parser.add_argument("--response", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-bytes", type=int, default=1 << 28)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--out")
    options, more = parser.parse_known_args()
    text = ["# The memory plan against what a run takes", "", f"{json.dumps(machine.describe())}", "",
            f"`bench/memory_plan.py --device {options.device} --shapes {' '.join(options.shapes)}`: bfloat16, {options.batch} x "
            f"{options.samples} completions of {options.response} tokens behind prompts of {options.prompt}.", ""]
    for name in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            text.append(table(name, measure(pathlib.Path(folder), SHAPES[name], options, more)))
        print(text[-1], flush=True)
    if options.out:
        pathlib.Path(options.out).write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
