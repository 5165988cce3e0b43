"""A base in 4 or 8 bits beside bfloat16 on one GPU: what Qwen3-4B's shape with random weights decodes, and GRPO steps of an adapter of
rank 16 over it in 12 GiB of device memory, as a page.

    .venv/bin/python bench/quantised_gpu.py [--device cuda] [--out bench/results/quantised_gpu.md]

Prompts of 256 tokens that are drawn, each its own, log-probs on. A step is 8 prompts of 256 tokens with 8 completions of 2,048 tokens
each. Needs `make cuda`."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import gpu_speed
import machine
import sparse_gpu
import tiny_model

DTYPES = ("bfloat16", "int8", "nf4")
SHOWN = ("train/train_rollout_logprob_abs_diff",)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--sequences", nargs="*", type=int, default=[64, 32, 16, 8, 4, 1], help="that decode together; none: no decoding")
    parser.add_argument("--rollouts", type=int, default=2, help="of the steps; 0: no steps")
    parser.add_argument("--memory", default="12GiB", help="device memory of the steps")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=300, help="of one call")
    parser.add_argument("--out")
    options = parser.parse_args()
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader"], capture_output=True, text=True)
    page = ["# A base in 4 or 8 bits on one GPU", "", json.dumps({"gpu": gpu.stdout.strip(), **machine.describe("cuda")}), "",
            __doc__.split("\n\n")[2].replace("\n", " "), ""]
    for dtype in options.dtypes if options.sequences else ():
        page += [f"## Decoding, {dtype}", "",
                 gpu_speed.bench(options, "qwen3-4b", "--dtype", dtype, "--what", "ceilings", "decode", "--sequences", *options.sequences,
                                 "--response-len", 256)]
    for dtype in options.dtypes if options.rollouts else ():
        page += [f"## Steps in {options.memory}, {dtype}", ""]
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            sparse_gpu.write_inputs(folder, tiny_model.QWEN3_4B, 8 * options.rollouts, 250)
            page.append(sparse_gpu.grpo_steps(folder, options.device, options.rollouts, SHOWN, [
                "--dtype", dtype, "--device-memory-bytes", options.memory, "--rollout-batch-size", "8", "--rollout-max-prompt-len", "256",
                "--rollout-max-response-len", "2048", "--recompute-granularity", "full", "--max-tokens-per-gpu",
                "2304" if dtype == "bfloat16" else "4608"]))
        print(page[-1], flush=True)
    if options.out:
        pathlib.Path(options.out).write_text("\n".join(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
