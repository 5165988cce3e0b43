"""Whole GRPO steps with answers of drawn lengths up to 16,384 tokens on one GPU, Tandem and TRL with vLLM in turn on the same model, as a
page: 16 x 8 completions of Qwen3-4B's shape in bfloat16, all weights trained.

    .venv/bin/python bench/long_answers.py [--out bench/results/long_answers.md]

The weights are made so that lengths have a long tail (tiny_model.make_of_two_lengths); both draw from them, each with its own random
numbers, so that lengths are alike and not equal. TRL and vLLM come from .venv-peers, if it has them (bench/peers). Needs `make cuda`."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import asynchrony
import machine
import many_devices
import tiny_model


def ours(folder, stops, options):
    words = ["--colocate", "--fit", "--rollout-max-response-len", str(options.response), "--rollout-stop-token-ids", *map(str, stops)]
    save = folder / "run"
    run = many_devices.watch(asynchrony.command_of(folder, save, words, options), save, options.rollouts, options.seconds)
    if "refused" in run:
        sys.exit(run["refused"])
    rows = []
    for rollout, step in zip(run["rollouts"], run["steps"]):
        rows.append({"step": rollout["perf/step_time"], "sampling": rollout["perf/rollout_time"], "training": rollout["perf/train_time"],
                     "tokens": rollout["rollout/response_len/mean"] * options.batch * options.samples,
                     "longest": rollout["rollout/response_len/max"], "difference": step["train/train_rollout_logprob_abs_diff"]})
    return rows


def peer(folder, stops, options):
    """Steps of TRL with vLLM, or none."""
    command = [str(machine.PEERS), str(machine.ROOT / "bench" / "peers" / "trl_long.py"), str(folder), str(options.response),
               str(options.batch), str(options.samples), str(options.peer_steps), *map(str, stops)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        print(f"trl_long.py: left out, exit code {result.returncode}", file=sys.stderr)
        return []
    said = json.loads(result.stdout.strip().splitlines()[-1])
    rows = []
    for i, step in enumerate(said["seconds"]["step"]):
        sampling = said["seconds"]["generate"][i] + sum(said["seconds"]["sync_weights"]) / options.peer_steps
        rows.append({"step": step, "sampling": sampling, "training": step - sampling, "tokens": sum(said["lengths"][i]),
                     "longest": max(said["lengths"][i])})
    return rows


def page(of):
    columns = [(name, i, row) for name, rows in of.items() for i, row in enumerate(rows)]
    lines = ["| | " + " | ".join(f"{name}, step {i + 1}" for name, i, _ in columns) + " |", "|---|" + "---|" * len(columns)]

    def add(title, value):
        lines.append(f"| {title} | " + " | ".join(value(row) for _, _, row in columns) + " |")

    add("a step, s", lambda r: f"{r['step']:.1f}")
    add("- sampling, s", lambda r: f"{r['sampling']:.1f}")
    add("- training and scoring, s", lambda r: f"{r['training']:.1f}")
    add("sampled tokens", lambda r: f"{r['tokens']:,.0f}")
    add("longest", lambda r: f"{r['longest']:,.0f}")
    add("tokens a second of sampling", lambda r: f"{r['tokens'] / r['sampling']:,.0f}")
    add("tokens a second of training", lambda r: f"{r['tokens'] / r['training']:,.0f}")
    add("tokens a second of a step", lambda r: f"{r['tokens'] / r['step']:,.0f}")
    add("difference of log-probs", lambda r: f"{r['difference']:g}" if "difference" in r else "")
    if len(of) == 2 and all(of.values()):
        mine, theirs = (statistics.mean(r["tokens"] / r["step"] for r in rows) for rows in of.values())
        lines += ["", f"Tokens a second of a step: {mine / theirs:.2f} x TRL with vLLM."]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="4B", choices=list(asynchrony.SHAPES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--build", default="cuda")
    for name, value in {"rollouts": 1, "peer-steps": 1, "mean": 4000, "response": 16384, "batch": 16, "samples": 8, "prompt": 32,
                        "seconds": 500}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out")
    options, options.more = parser.parse_known_args()  # what is left are flags of Tandem's run
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        _, stops = tiny_model.make_of_two_lengths(folder / "model", asynchrony.SHAPES[options.shape], options.mean)
        (folder / "reward.py").write_text(asynchrony.BY_TURNS, encoding="utf-8")
        tiny_model.write_prompts_of_two_lengths(folder / "prompts.jsonl", options.batch * 25, options.prompt)
        of = {"Tandem": ours(folder, stops, options)}
        print("\n".join(page(of)), flush=True)
        if options.peer_steps > 0:
            of["TRL with vLLM"] = peer(folder, stops, options)
    text = "\n".join([f"## {options.batch} x {options.samples} completions of mean length {options.mean}, cut at {options.response}, {options.shape}",
                      "", asynchrony.description(options), "", *page(of), ""])
    print(text)
    if options.out:
        pathlib.Path(options.out).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
