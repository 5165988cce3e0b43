"""The Qwen3-4B job on a GPU that another process has mostly taken: planned, run, and its peak read from the driver; and how long the
program takes from its start to the first token, beside reading the file.

    .venv/bin/python bench/large_job.py [--free-gib 80 61] [--out bench/results/large_job.md]

32 prompts x 8 completions of 1,024 tokens, one rollout and its optimizer step; the ballast leaves 80 GiB, then 61 with --offload-train. The
run is killed when its step is recorded: its checkpoint of 56 GB is nothing that is measured here. TRL with vLLM's trainer alone took
119.7 GiB for the same job (shared figure of another run)."""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import machine
import memory_plan
import tiny_model

GIB = 1 << 30


def used_mib():
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0])


class Peak:
    """The most that the driver says is in use while this lives."""

    def __enter__(self):
        self.before, self.most, self.done = used_mib(), 0, threading.Event()
        self.thread = threading.Thread(target=self.poll)
        self.thread.start()
        return self

    def poll(self):
        while not self.done.wait(0.25):
            self.most = max(self.most, used_mib())

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def ballast(free_bytes):
    script = machine.ROOT / "bench" / "peers" / "gpu_ballast.py"
    process = subprocess.Popen([sys.executable, str(script), str(free_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def make_model(folder):
    tiny_model.make(folder, "bfloat16", memory_plan.SHAPES["4B"])


def first_token(model, options):
    """Seconds of reading the file, and of the program from its start to its end with one token."""
    file = model / "model.safetensors"
    begin = time.time()
    subprocess.run(["dd", f"if={file}", "of=/dev/null", "bs=8M"], check=True, capture_output=True)
    read = time.time() - begin
    times = []
    for _ in range(2):
        begin = time.time()
        subprocess.run([machine.tandem("cuda"), "generate", "--device", "cuda", "--hf-checkpoint", str(model), "--prompt-data",
                        f"{model}/prompts.jsonl@[0:1]", "--rollout-max-response-len", "1", "--ignore-eos", "--num-threads",
                        str(options.threads), "--kv-cache-bytes", str(GIB), "--output", str(model / "out.jsonl")],
                       check=True, capture_output=True)
        times.append(time.time() - begin)
    return file.stat().st_size, read, times


def job(model, folder, free_gib, options):
    run = folder / f"run{free_gib}"
    process, free = ballast(free_gib * GIB)
    command = [machine.tandem("cuda"), "train", "--colocate", "--device", "cuda", "--hf-checkpoint", str(model), "--prompt-data",
               str(folder / "prompts.jsonl"), "--custom-rm-path", f"{folder}/reward.py:reward", "--rollout-batch-size", str(options.batch),
               "--n-samples-per-prompt", str(options.samples), "--num-rollout", "1", "--rollout-max-response-len", str(options.response),
               "--ignore-eos", "--gpu-memory-utilization", "1", "--num-threads", str(options.threads), "--no-use-tensorboard",
               "--rollout-max-running", str(options.batch * options.samples), "--recompute-granularity", "full", "--recompute-num-layers",
               "36", "--save", str(run)]
    if free_gib < 70:
        command.append("--offload-train")
    plan = subprocess.run([*command, "--dry-run"], capture_output=True, text=True)
    with Peak() as peak:
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        metrics, begin = run / "metrics.jsonl", time.time()
        while program.poll() is None and time.time() - begin < options.seconds:
            if metrics.exists() and '"rollout/step"' in metrics.read_text():
                break
            time.sleep(0.25)
        program.send_signal(signal.SIGKILL)
        output, errors = program.communicate()
    process.stdin.close()
    process.wait()
    records = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    record = {name: value for r in records for name, value in r.items()}
    steps = [json.loads(line) for line in (run / "memory_timeline.jsonl").read_text().splitlines()] if records else []
    return {"free_gib": free / GIB, "plan": plan.stdout, "refused": plan.stderr if plan.returncode else "", "errors": errors[-600:],
            "peak_gib": (peak.most - peak.before) / 1024, "record": record,
            "phases": next((s["phases"] for s in reversed(steps) if s.get("event") == "step"), None)}


def page(result, options):
    record = result["record"]
    lines = [f"## {result['free_gib']:.2f} GiB free", "", "```", result["plan"].strip() or result["refused"].strip(), "```", ""]
    if not record:
        return "\n".join([*lines, f"It did not come to an end: {result['errors']}", ""])
    phases = result["phases"]
    lines += [f"The driver saw {result['peak_gib']:.2f} GiB more in use than before, at most. By the ledger: "
              + "; ".join(f"{name} {of['most_at_once'] / GIB:.2f} GiB of {of['planned_at_once'] / GIB:.2f} planned" for name, of in phases.items())
              + ".", ""]
    for name in sorted(record):
        if name.startswith("perf/"):
            lines.append(f"- {name} {record[name]:.6g}")
    return "\n".join([*lines, ""])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--free-gib", type=int, nargs="*", default=[80, 61])
    for name, value in {"batch": 32, "samples": 8, "prompt": 256, "response": 1024, "threads": 16, "seconds": 500}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out")
    options = parser.parse_args()
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    text = ["# A job that fills the device", "", json.dumps({"gpu": gpu.stdout.strip(), **machine.describe("cuda")}), "",
            f"`bench/large_job.py`: Qwen3-4B's shape in bfloat16, {options.batch} x {options.samples} completions of {options.response} tokens "
            f"behind prompts of {options.prompt}, all blocks run twice.", ""]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_model(folder / "model")
        size, read, times = first_token(folder / "model", options)
        text += [f"Reading the file of {size / 1e9:.1f} GB: {read:.1f} s. `tandem generate` of one token, from start to end: "
                 + " and ".join(f"{t:.1f}" for t in times) + " s.", ""]
        print(text[-2], flush=True)
        (folder / "reward.py").write_text(memory_plan.REWARD, encoding="utf-8")
        tiny_model.write_prompts(folder / "prompts.jsonl", 32, options.prompt)
        for free_gib in options.free_gib:
            text.append(page(job(folder / "model", folder, free_gib, options), options))
            print(text[-1], flush=True)
            if options.out:
                pathlib.Path(options.out).write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
