"""What `tandem bench` says of one GPU, for the three Qwen3 shapes that the peers were measured with, as a page.

    .venv/bin/python bench/gpu_speed.py [--device cuda] [--shapes qwen3-4b qwen3-1.7b qwen3-0.6b] [--out bench/results/gpu_speed.md]

Random weights, prompts of 256 tokens, 1,024 new tokens each, log-probs on. The peers' figures are of other runs on a GPU of the same type
(vLLM 0.24.0, and TRL 1.16.0 with it in one process): vLLM and TRL are not installed here. Needs `make cuda`."""

import argparse
import json
import shutil
import subprocess
import sys
import time

import machine

PEER_DECODE = {"qwen3-4b": {256: "17.8-18.8k", 32: "6.3-6.4k", 1: "260"}, "qwen3-1.7b": {256: "19.4-21.3k", 32: "8.8-9.1k", 1: "419"},
               "qwen3-0.6b": {256: "21.7-26.6k", 32: "10.7-11.8k", 1: "487"}}
PEER_STEP = {"qwen3-4b": "54.6-56.6 s", "qwen3-1.7b": "33.2-36.0 s"}


def bench(options, shape, *arguments):
    """The program's own table of one call; it goes on where a call fails, and says so."""
    command = [machine.tandem("cuda"), "bench", "--device", options.device, "--shape", shape, "--num-threads", str(options.threads),
               *map(str, arguments)]
    begin = time.time()
    result = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True, timeout=options.seconds)
    text = result.stdout.strip() if result.returncode == 0 else f"exit code {result.returncode}: {result.stderr.strip()[-400:]}"
    said = " ".join(["tandem", *command[1:]])
    print(f"{said}\n{text}\n", flush=True)
    return f"`{said}` ({time.time() - begin:.0f} s)\n\n```\n{text}\n```\n"


def parser_of_page():
    """What all pages of one GPU take."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=300, help="of one call")
    parser.add_argument("--out")
    return parser


def begun_page(title, doc):
    """A page's first lines: its title, the machine, and the last paragraph of its script's text."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True).stdout.strip() if shutil.which(query[0]) else "none"
    return [f"# {title}", "", json.dumps({"gpu": gpu, **machine.describe("cuda")}), "", doc.split("\n\n")[2].replace("\n", " "), ""]


def main():
    parser = parser_of_page()
    parser.set_defaults(seconds=400)
    parser.add_argument("--shapes", nargs="+", default=list(PEER_DECODE))
    parser.add_argument("--steps", nargs="*", default=["qwen3-4b", "qwen3-1.7b"], help="shapes of which a whole GRPO step is measured")
    options = parser.parse_args()
    page = begun_page("Speed on one GPU", __doc__)
    for shape in options.shapes:
        peers = PEER_DECODE[shape]
        page += [f"## {shape}", "", "vLLM, tokens/s: " + "; ".join(f"{n} at once {rate}" for n, rate in peers.items())
                 + (f". TRL with vLLM, a GRPO step: {PEER_STEP[shape]}." if shape in PEER_STEP else "."), ""]
        page.append(bench(options, shape, "--what", "ceilings", "decode", "--sequences", 256, 32, 1))
        page.append(bench(options, shape, "--what", "ceilings", "decode", "--sequences", 256, "--n-samples-per-prompt", 8))
        if shape in options.steps:
            page.append(bench(options, shape, "--what", "ceilings", "train", "optimizer", "step", "--max-tokens-per-gpu", 8448))
        if options.out:
            with open(options.out, "w", encoding="utf-8") as out:
                out.write("\n".join(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
