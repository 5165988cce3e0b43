"""One GRPO step of the tiny Qwen3: 32 x 8 completions of exactly 24 tokens, prompt 16, one optimizer step, two threads; TRL, plain
torch, transformers, llama.cpp and Tandem side by side, round after round.

    .venv/bin/python bench/tiny_step.py [--rounds 3] [--out bench/results/tiny_step.json]

Needs `make build` and, for the peers, bench/peers/setup.sh; a peer that is not installed is left out and said."""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

import machine
import tiny_model

REWARD = machine.ROOT / "bench" / "peers" / "reward.py"
# Fresh pages for every temporary cost torch a fifth of its step: give it the large thresholds that Tandem sets itself.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "OMP_NUM_THREADS": "2"}


def run_tandem(model, dtype, steps):
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([
            machine.tandem(), "train", "--colocate", "--hf-checkpoint", str(model), "--dtype", dtype, "--prompt-data",
            str(model / "prompts.jsonl"), "--custom-rm-path", f"{REWARD}:reward", "--rollout-batch-size", "32", "--n-samples-per-prompt", "8",
            "--global-batch-size", "256", "--num-rollout", str(steps), "--rollout-max-response-len", "24", "--ignore-eos",
            "--num-threads", "2", "--no-use-tensorboard", "--sample-dump-interval", "0", "--save", out + "/run"],
            check=True, capture_output=True)
        rows = [json.loads(line) for line in open(out + "/run/metrics.jsonl", encoding="utf-8")]
    def column(name):
        return [row[name] for row in rows if name in row][2:]
    return {"step_s": column("perf/step_time"), "generate_s": column("perf/rollout_time"),
            "train_s": column("perf/actor_train_time")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out")
    args = parser.parse_args()
    report = {"machine": machine.describe(), "command": ".venv/bin/python bench/tiny_step.py", "rounds": args.rounds, "seconds": {}}
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model.make(pathlib.Path(folder) / "tiny")
        for _ in range(args.rounds):
            for dtype in ("float32", "bfloat16"):
                runs = {"tandem": run_tandem(model, dtype, args.steps)}
                if machine.PEERS.exists():
                    runs["trl"] = machine.peer("tiny_trl.py", model, dtype, args.steps, environment=MALLOC)
                    runs["torch"] = machine.peer("tiny_torch.py", model, dtype, args.steps, environment=MALLOC)
                    runs["llama.cpp"] = (machine.peer("llama_cpp_generate.py", model, dtype, args.steps, "32x8x16x24", environment=MALLOC)
                                         or [None])[0]
                for who, values in runs.items():
                    for what, seconds in (values or {}).items():
                        report["seconds"].setdefault(f"{who} {dtype} {what}", []).append(round(statistics.median(seconds), 4))
    for name, seconds in sorted(report["seconds"].items()):
        print(f"{name:34s} median {statistics.median(seconds):.3f}  rounds {seconds}")
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
