"""Qwen3-30B-A3B's shape on one GPU with random weights, as a page: decoding at two lengths, exactness, and whole GRPO steps of a LoRA
adapter with the ledger beside the plan.

    .venv/bin/python bench/sparse_gpu.py [--device cuda] [--out bench/results/sparse_gpu.md]

Prompts of 256 tokens that are drawn, each its own, log-probs on. vLLM 0.24.0 was measured on an H200 at another time, in this shape with
random weights, prompts of 256 and 512 new tokens: 10.1-10.2k / 1.95-1.99k / 223-226 tokens/s for 256 / 32 / 1 sequences. It is not
installed here. Needs `make cuda`."""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import gpu_speed
import lora
import machine
import memory_plan
import tiny_model

SHAPE = "qwen3-30b-a3b"
SHOWN = ("perf/rollout_time", "perf/actor_train_time", "perf/step_time", "perf/actor_train_tok_per_s", "perf/tokens_per_gpu_per_sec")
LOAD = ("moe/load_max_over_mean", "moe/unused_experts", "moe/router_entropy", "train/train_rollout_logprob_abs_diff")
GIB = 1 << 30


def write_inputs(folder, shape, prompts, length):
    """A model of a shape (tiny_model.py) without weights, prompts of so many tokens, and a reward."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(dict(shape, torch_dtype="bfloat16")), encoding="utf-8")
    tiny_model.write_tokenizer(model)
    (folder / "reward.py").write_text(memory_plan.REWARD, encoding="utf-8")
    draw = random.Random(5)
    letters = [chr(c) for c in range(33, 127)]
    with open(folder / "prompts.jsonl", "w", encoding="utf-8") as lines:
        for _ in range(prompts):
            lines.write(json.dumps({"prompt": "".join(draw.choices(letters, k=length)), "label": "1"}) + "\n")


def decoding(options):
    """The parts of the page without a run."""
    page = ["## Decoding", ""]
    for new in (512, 1024):
        page.append(gpu_speed.bench(options, SHAPE, "--what", "ceilings", "decode", "--sequences", 256, 32, 1, "--response-len", new))
    page.append(gpu_speed.bench(options, SHAPE, "--what", "ceilings", "decode", "--sequences", 256, "--n-samples-per-prompt", 8))
    return page + ["## Exactness", "", gpu_speed.bench(options, SHAPE, "--what", "exactness")]


def grpo_steps(folder, device, rollouts, shown, arguments):
    """A table of what a run of an adapter of rank 16 wrote of each step, with the figures `shown` of the step, and of its memory."""
    save = folder / "run"
    command = [machine.tandem("cuda"), "train", "--colocate", "--device", device, "--hf-checkpoint", str(folder / "model"),
               "--random-init", "--lora-rank", "16", "--lr", "1e-5", "--prompt-data", str(folder / "prompts.jsonl"), "--custom-rm-path",
               f"{folder}/reward.py:reward", "--n-samples-per-prompt", "8", "--num-rollout", str(rollouts), "--ignore-eos",
               "--no-use-tensorboard", "--sample-dump-interval", "0", "--save", str(save), *arguments]
    with open(folder / "log.txt", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        code = lora.wait_for_rollouts(process, save / "metrics.jsonl", rollouts)
    if code is not None:
        return f"exit code {code}: {(folder / 'log.txt').read_text(encoding='utf-8').strip().splitlines()[-1]}"
    records = [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]
    rollouts = [r for r in records if "rollout/step" in r]
    steps = [r for r in records if "train/step" in r]
    lines = [f"`{' '.join(['tandem', *command[1:]]).replace(str(folder), 'DIR')}`", "", "| | " + " | ".join(f"step {i + 1}" for i in range(len(steps))) + " |",
             "|---|" + "---|" * len(steps)]
    for names, source in ((SHOWN, rollouts), (shown, steps)):
        lines += [f"| {name} | " + " | ".join(f"{r.get(name, float('nan')):.4g}" for r in source) + " |" for name in names]
    events = [json.loads(line) for line in (save / "memory_timeline.jsonl").read_text().splitlines()]
    lines += ["", "| phase | tag | most, GiB | planned |", "|---|---|---|---|"]
    for phase, tags in [e for e in events if e["event"] == "step"][-1]["phases"].items():
        for tag in sorted({*tags["most"], *tags["planned"]}):
            lines.append(f"| {phase} | {tag} | {tags['most'].get(tag, 0) / GIB:.3f} | {tags['planned'].get(tag, 0) / GIB:.3f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = gpu_speed.parser_of_page()
    parser.add_argument("--rollouts", type=int, default=3)
    parser.add_argument("--target-modules", default="all-linear", help="of the adapter")
    parser.add_argument("--only-steps", action="store_true", help="the GRPO steps alone")
    options = parser.parse_args()
    page = gpu_speed.begun_page("Qwen3-30B-A3B's shape on one GPU", __doc__)
    if not options.only_steps:
        page += decoding(options)
    page += ["## GRPO steps of an adapter: 32 prompts, 8 completions of 1,024 tokens each", ""]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_inputs(folder, tiny_model.QWEN3_30B_A3B, 32 * options.rollouts, 250)
        page.append(grpo_steps(folder, options.device, options.rollouts, LOAD, [
            "--target-modules", options.target_modules, "--rollout-batch-size", "32", "--rollout-max-response-len", "1024",
            "--max-tokens-per-gpu", "16896"]))
    print(page[-1])
    if options.out:
        pathlib.Path(options.out).write_text("\n".join(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
