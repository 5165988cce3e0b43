"""LoRA beside full training of one shape, from what the runs wrote: seconds of sampling and training a step, and the ledger beside the
plan, by tag and phase.

    .venv/bin/python bench/lora.py [--device cuda] [--shape 4B] [--rank 16] [--build release] [--out bench/results/lora.md]

Both runs sample, score a KL reference and train the same prompts from the same random weights; the first rollout of each is left out of
the times, because kernels are chosen in it. Nothing is exported."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import machine
import memory_plan
import tiny_model

GIB = 1 << 30
TIMES = ("perf/rollout_time", "perf/ref_log_probs_time", "perf/actor_train_time", "perf/step_time")


def run(name, folder, options, more):
    save = folder / name
    command = [machine.tandem(options.build), "train", "--colocate", "--device", options.device, "--hf-checkpoint", str(folder / "model"),
               "--random-init", "--dtype", "bfloat16", "--prompt-data", str(folder / "prompts.jsonl"), "--custom-rm-path",
               f"{folder}/reward.py:reward", "--rollout-batch-size", str(options.batch), "--n-samples-per-prompt", str(options.samples),
               "--num-rollout", str(options.rollouts), "--rollout-max-response-len", str(options.response), "--ignore-eos",
               "--use-kl-loss", "--kl-loss-coef", "0.001", "--lr", "1e-6", "--no-use-tensorboard", "--sample-dump-interval", "0",
               "--save", str(save), *options.more, *more]
    plan = subprocess.run([*command, "--dry-run"], capture_output=True, text=True)
    if plan.returncode != 0:
        return {"refused": plan.stderr.strip().splitlines()[-1]}
    with open(folder / f"{name}.txt", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        # The run is ended here, because the checkpoint that it would save at its end is not measured.
        code = wait_for_rollouts(process, save / "metrics.jsonl", options.rollouts)
    if code is not None:
        return {"refused": (folder / f"{name}.txt").read_text(encoding="utf-8").strip().splitlines()[-1]}
    records = [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in (save / "memory_timeline.jsonl").read_text().splitlines()]
    return {"rollouts": [r for r in records if "rollout/step" in r], "steps": [r for r in records if "train/step" in r],
            "phases": [e for e in events if e["event"] == "step"][-1]["phases"],
            "peak": next(line for line in plan.stdout.splitlines() if line.startswith("peak"))}


def wait_for_rollouts(process, metrics, count):
    """None when so many rollouts are recorded, and the run is ended; else the code that it ended with before."""
    while process.poll() is None:
        if metrics.exists() and metrics.read_text().count('"rollout/step"') >= count:
            process.kill()
            process.wait()
            return None
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            pass
    return None if metrics.exists() and metrics.read_text().count('"rollout/step"') >= count else process.returncode


def mean(records, name):
    values = [r[name] for r in records[1:] or records if name in r]
    return sum(values) / len(values) if values else float("nan")


def page(results):
    names = [name for name, result in results.items() if "refused" not in result]
    lines = [f"{name} does not run: {result['refused']}" for name, result in results.items() if "refused" in result]
    lines += ["", "| a rollout, s | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for metric in (*TIMES, "perf/actor_train_tok_per_s", "perf/tokens_per_gpu_per_sec", "perf/actor_train_tflops"):
        cells = [mean(results[name]["rollouts"], metric) for name in names]
        lines.append(f"| {metric} | " + " | ".join("-" if c != c else f"{c:.4g}" for c in cells) + " |")
    # A rollout is one optimizer step.
    differences = [max(s["train/train_rollout_logprob_abs_diff"] for s in results[name]["steps"]) for name in names]
    lines.append("| largest train/train_rollout_logprob_abs_diff | " + " | ".join(f"{d:g}" for d in differences) + " |")
    lines += ["", "| phase | tag | " + " | ".join(f"{name}: most, GiB | planned" for name in names) + " |", "|---|---|" + "---|---|" * len(names)]
    for phase in results[names[0]]["phases"] if names else ():
        of = [results[name]["phases"][phase] for name in names]
        for tag in sorted({tag for p in of for tag in (*p["most"], *p["planned"])}):
            cells = [f"{p['most'].get(tag, 0) / GIB:.3f} | {p['planned'].get(tag, 0) / GIB:.3f}" for p in of]
            lines.append(f"| {phase} | {tag} | " + " | ".join(cells) + " |")
        cells = [f"{p['most_at_once'] / GIB:.3f} | {p['planned_at_once'] / GIB:.3f}" for p in of]
        lines.append(f"| {phase} | at once | " + " | ".join(cells) + " |")
    lines += ["", *(f"- {name}: {results[name]['peak']}" for name in names), ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", default="0.6B", choices=list(memory_plan.SHAPES))
    parser.add_argument("--build", default="release")
    parser.add_argument("--rank", type=int, default=16)
    for name, value in {"batch": 4, "samples": 4, "prompt": 64, "response": 64, "rollouts": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out")
    options, options.more = parser.parse_known_args()  # what is left are flags of both runs
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(dict(memory_plan.SHAPES[options.shape], torch_dtype="bfloat16")), encoding="utf-8")
        tiny_model.write_tokenizer(model)
        (folder / "reward.py").write_text(memory_plan.REWARD, encoding="utf-8")
        (folder / "prompts.jsonl").write_text((json.dumps({"prompt": "x" * options.prompt, "label": "1"}) + "\n") * options.batch,
                                              encoding="utf-8")
        results = {}
        for which, more in (("full", []), ("LoRA", ["--lora-rank", str(options.rank), "--lora-alpha", str(2 * options.rank)])):
            results[which] = run(which, folder, options, more)
            print(f"{which}: done", file=sys.stderr, flush=True)
    text = "\n".join(["# LoRA beside full training", "", json.dumps(machine.describe(options.build)), "",
                      f"`bench/lora.py`: Qwen3-{options.shape}'s shape in bfloat16 on {options.device}, {options.batch} x {options.samples} completions of "
                      f"{options.response} tokens behind prompts of {options.prompt}, KL reference, rank {options.rank} on all matrices; means "
                      "of the rollouts behind the first.", "", page(results)])
    print(text)
    if options.out:
        pathlib.Path(options.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
