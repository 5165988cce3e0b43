"""Peak memory of `tandem train` and `tandem generate` on the Qwen3-0.6B shape in bfloat16, beside what must be there: weights, keys and
values, float32 gradients, master weights and AdamW's moments. The limit is 1.1 x that sum plus 0.5 GiB.

    .venv/bin/python bench/memory.py [--out bench/results/memory.json]

Pss of the program and its workers, from /proc/PID/smaps_rollup every 50 ms."""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

import machine
import tiny_model

GIB = 1 << 30
KV_BYTES = 1 << 28


def family(pid):
    pids, found = [], [pid]
    while found:
        pids.append(found.pop())
        for task in pathlib.Path(f"/proc/{pids[-1]}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return pids


def pss(pids):
    total = 0
    for member in pids:
        try:
            lines = pathlib.Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def peak(arguments, members=family):
    """The most Pss of what `members` says of the program's process: with its workers, unless told otherwise."""
    process = subprocess.Popen([machine.tandem(), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    highest = 0
    while process.poll() is None:
        highest = max(highest, pss(members(process.pid)))
        time.sleep(0.05)
    if process.returncode != 0:
        raise SystemExit(process.stderr.read())
    return highest


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    args = parser.parse_args()
    report = {"machine": machine.describe(), "command": ".venv/bin/python bench/memory.py", "bytes": {}}
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model.make(pathlib.Path(folder) / "model", "bfloat16", tiny_model.QWEN3_0_6B)
        weights = (model / "model.safetensors").stat().st_size
        prompts = model / "some.jsonl"
        tiny_model.write_prompts(prompts, 2, 64)
        common = ["--hf-checkpoint", str(model), "--prompt-data", str(prompts), "--ignore-eos", "--rollout-max-response-len", "64",
                  "--n-samples-per-prompt", "4", "--kv-cache-bytes", str(KV_BYTES), "--num-threads", "2"]
        # float32: gradients, masters and two moments, twice the bytes of a bfloat16 weight each
        cases = {
            "generate": (weights + KV_BYTES, ["generate", *common, "--output", "/dev/null"]),
            "train": (weights + KV_BYTES + 4 * 2 * weights, [
                "train", "--colocate", *common, "--rollout-batch-size", "2", "--num-rollout", "2", "--custom-rm-path",
                f"{machine.ROOT}/bench/peers/reward.py:reward", "--no-use-tensorboard", "--save", folder + "/run"]),
        }
        for name, (needed, arguments) in cases.items():
            limit = 1.1 * needed + GIB / 2
            measured = peak(arguments)
            report["bytes"][name] = {"needed": needed, "limit": int(limit), "peak": measured}
            print(f"{name:9s} needed {needed / GIB:6.2f} GiB  limit {limit / GIB:6.2f}  peak {measured / GIB:6.2f}  "
                  f"{'within' if measured <= limit else 'ABOVE'}")
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
