"""A base in 4 or 8 bits beside bfloat16 on one GPU, as a page: what Qwen3-4B's shape with random weights decodes, GRPO steps of an adapter
of rank 16 over it in 12 GiB of device memory, and how long a sequence Llama 3.1 8B's shape is planned for in how much memory.

    .venv/bin/python bench/quantised_gpu.py [--device cuda] [--parts decode steps lengths] [--out bench/results/quantised_gpu.md]

Prompts of 256 tokens that are drawn, each its own, log-probs on. A step is 8 prompts of 256 tokens with 8 completions of 2,048 tokens
each, unless flags say otherwise. `--shape qwen3-30b-a3b --memory 24GiB` has experts in 4 bits, and an adapter on attention. The part
"lengths" is planned, not run, and needs no GPU. Needs `make cuda`."""

import pathlib
import subprocess
import sys
import tempfile

import gpu_speed
import machine
import sparse_gpu
import tiny_model

SHOWN = ("train/train_rollout_logprob_abs_diff",)
# Unsloth's table (docs.unsloth.ai, "Unsloth Benchmarks"): by GiB, tokens of Unsloth, and of Hugging Face with FlashAttention-2.
PEERS = {8: ("2,972", "-"), 12: ("21,848", "932"), 16: ("40,724", "2,551"), 24: ("78,475", "5,789"), 40: ("153,977", "12,264"),
         80: ("342,733", "28,454")}


def decoding(options):
    page = []
    for dtype in options.dtypes:
        page += [f"## Decoding, {dtype}", "",
                 gpu_speed.bench(options, options.shape, "--dtype", dtype, "--what", "ceilings", "decode", "--sequences", *options.sequences,
                                 "--response-len", 128)]
    return page


def steps(options):
    page = []
    shape, modules = SHAPES[options.shape]
    for dtype in options.dtypes:
        page += [f"## Steps in {options.memory}, {dtype}", ""]
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            sparse_gpu.write_inputs(folder, shape, options.prompts * options.rollouts, 250)
            page.append(sparse_gpu.grpo_steps(folder, options.device, options.rollouts, SHOWN, [
                "--dtype", dtype, "--target-modules", *modules, "--device-memory-bytes", options.memory, "--rollout-batch-size", str(options.prompts),
                "--rollout-max-prompt-len", "256", "--rollout-max-response-len", str(options.response), "--recompute-granularity", "full",
                "--max-tokens-per-gpu", str((options.response + 256) * (1 if dtype == "bfloat16" else 2))]))
        print(page[-1], flush=True)
    return page


def longest(folder, device, gib):
    """The most tokens of a sequence, to a hundredth, for which `tandem plan` says that a run fits."""
    def fits(tokens):
        words = ["plan", "--device", device, "--hf-checkpoint", folder / "model", "--random-init", "--lora-rank", 32, "--dtype", "nf4",
                 "--prompt-data", folder / "prompts.jsonl", "--custom-rm-path", f"{folder}/reward.py:reward", "--rollout-batch-size", 1,
                 "--n-samples-per-prompt", 2, "--global-batch-size", 2, "--rollout-max-prompt-len", 128, "--rollout-max-response-len",
                 tokens - 128, "--rollout-max-batch-tokens", 512, "--max-tokens-per-gpu", tokens, "--logprob-chunk-rows", 256,
                 "--recompute-granularity", "full", "--device-memory-bytes", f"{gib}GiB", "--gpu-memory-utilization", 0.97,
                 "--train-memory-margin-bytes", 0]
        return subprocess.run([machine.tandem("cuda"), *map(str, words)], capture_output=True).returncode == 0

    low, high = 256, 1 << 19
    if not fits(low):
        return "does not fit"
    while high - low > max(64, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return f"{low:,}"


def lengths(options):
    page = ["## Tokens of a sequence, Llama 3.1 8B's shape in nf4 with an adapter of rank 32, planned", "",
            "| memory | Unsloth | Tandem, planned | Hugging Face with FlashAttention-2 |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        sparse_gpu.write_inputs(folder, tiny_model.LLAMA_3_1_8B, 16, 100)
        page += [f"| {gib} GiB | {unsloth} | {longest(folder, options.device, gib)} | {other} |" for gib, (unsloth, other) in PEERS.items()]
    print("\n".join(page))
    return [*page, ""]


# By the names of tandem bench: a model's config, and what the adapter of a step is on.
SHAPES = {"qwen3-4b": (tiny_model.QWEN3_4B, ["all-linear"]),
          "qwen3-30b-a3b": (tiny_model.QWEN3_30B_A3B, ["q_proj", "k_proj", "v_proj", "o_proj"])}
PARTS = {"decode": decoding, "steps": steps, "lengths": lengths}


def main():
    parser = gpu_speed.parser_of_page()
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--shape", default="qwen3-4b", choices=list(SHAPES), help="of the decoding and the steps")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "int8", "nf4"])
    parser.add_argument("--sequences", nargs="+", type=int, default=[64, 24, 16, 8, 4, 1], help="that decode together")
    parser.add_argument("--rollouts", type=int, default=2, help="of the steps")
    parser.add_argument("--memory", default="12GiB", help="device memory of the steps")
    parser.add_argument("--prompts", type=int, default=8, help="of a step, with 8 completions each")
    parser.add_argument("--response", type=int, default=2048, help="tokens of a completion of the steps")
    options = parser.parse_args()
    page = gpu_speed.begun_page("A base in 4 or 8 bits on one GPU", __doc__)
    for part in options.parts:
        page += PARTS[part](options)
    if options.out:
        pathlib.Path(options.out).write_text("\n".join(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
