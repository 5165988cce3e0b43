"""The same run on one device and on several, one after the other: seconds of sampling, training and the whole step, their ratios, the
communication, the ledger's peaks, and whether all metrics but the times have the same bits.

    .venv/bin/python bench/many_devices.py [--device cuda] [--shape 4B] [--ranks 1 2] [--tensor 1] [--build cuda] [--out FILE]

--ranks: how many devices each run has, the first of which the others are compared with; --tensor: how many of them hold one copy of the
model between them, one number for all runs or one for each; --workers: how many more only sample, one number for all runs or one for each; --build: a folder of build/, or one for each run, so that two programs are
compared; --limit: beside them one device with its share of the groups alone, which no number of devices beats. The weights are random; the first rollout is left out of the times, because kernels are chosen in it. Nothing is
exported."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import machine
import memory_plan
import tiny_model

GIB = 1 << 30
TIMES = ("perf/rollout_time", "perf/actor_train_time", "perf/step_time")
SHAPES = dict(memory_plan.SHAPES, **{"8B": dict(tiny_model.QWEN3_0_6B, hidden_size=4096, intermediate_size=12288, num_attention_heads=32,
                                                num_hidden_layers=36, tie_word_embeddings=False)})


def command_of(folder, save, build, ranks, tensor, workers, batch, options):
    command = [machine.tandem(build), "train", "--colocate", "--device", options.device, "--hf-checkpoint", str(folder / "model"),
               "--random-init", "--dtype", "bfloat16", "--prompt-data", str(folder / "prompts.jsonl"), "--custom-rm-path",
               f"{folder}/reward.py:reward", "--rollout-batch-size", str(batch), "--n-samples-per-prompt", str(options.samples),
               "--num-rollout", str(options.rollouts), "--rollout-max-response-len", str(options.response), "--ignore-eos", "--lr", "1e-6",
               "--no-use-tensorboard", "--sample-dump-interval", "0", "--save", str(save), *options.more]
    if max(options.ranks) > 1:
        command += ["--actor-num-gpus-per-node", str(ranks), "--micro-batches-multiple", str(max(options.ranks))]
    if workers:
        command = [word for word in command if word != "--colocate"] + ["--rollout-num-gpus", str(workers)]
    return command if tensor == 1 else [*command, "--tensor-model-parallel-size", str(tensor)]


def used_gib():
    """Returns the memory in use on each GPU, as the driver says."""
    query = subprocess.run("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits", shell=True, capture_output=True, text=True)
    return [int(line) / 1024 for line in query.stdout.splitlines()] if query.returncode == 0 else []


def records_of(save, name="metrics.jsonl"):
    file = save / name
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


def run(folder, build, ranks, tensor, workers, batch, options):
    save = folder / f"run-{len(list(folder.iterdir()))}"
    result = watch(command_of(folder, save, build, ranks, tensor, workers, batch, options), save, options.rollouts, options.seconds)
    if "refused" in result:
        return result
    events = records_of(save, "memory_timeline.jsonl")
    return {**result, "tensor": tensor, "batch": batch, "phases": [e for e in events if e["event"] == "step"][-1]["phases"]}


def watch(command, save, rollouts, seconds, least=None):
    """The records of a run, which is ended when its last rollout is recorded: the checkpoint that it would then save is not measured. A run
    that has fewer than `least` rollouts after so many seconds, by default not all of them, counts as refused."""
    most = used_gib()
    with open(f"{save}.txt", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        begin = time.time()
        while process.poll() is None and time.time() - begin < seconds:
            if sum("rollout/step" in r for r in records_of(save)) >= rollouts:
                break
            time.sleep(0.3)
            most = [max(pair) for pair in zip(most, used_gib())]
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    records = records_of(save)
    of_rollouts = [r for r in records if "rollout/step" in r]
    if len(of_rollouts) < (rollouts if least is None else least):
        lines = pathlib.Path(f"{save}.txt").read_text(encoding="utf-8").strip().splitlines()
        return {"refused": " / ".join(lines[-5:]) if lines else "it said nothing"}
    return {"rollouts": of_rollouts, "steps": [r for r in records if "train/step" in r], "most": most}


def mean(records, name):
    values = [r[name] for r in records[1:] or records if name in r]
    return sum(values) / len(values) if values else float("nan")


def timeless(result):
    return [{k: v for k, v in r.items() if not k.startswith("perf/") and "time" not in k} for r in result["rollouts"] + result["steps"]]


def different_metrics(one, other):
    return sorted({k for a, b in zip(timeless(one), timeless(other)) for k in {*a, *b} if a.get(k) != b.get(k)})


def page(results):
    lines = [f"{name} does not run: {result['refused']}" for name, result in results.items() if "refused" in result]
    ran = {name: result for name, result in results.items() if "refused" not in result}
    if not ran:
        return "\n".join(lines)
    first = next(iter(ran.values()))
    lines += ["", "| | " + " | ".join(ran) + " |", "|---|" + "---|" * len(ran)]
    for metric in TIMES:
        cells = [mean(r["rollouts"], metric) for r in ran.values()]
        lines.append(f"| {metric}, s | " + " | ".join(f"{c:.4g} ({cells[0] / c:.2f} x)" for c in cells) + " |")
    for metric in sorted({k for r in ran.values() for k in r["rollouts"][-1] if k.startswith("perf/") and k not in TIMES}):
        cells = [mean(r["rollouts"], metric) for r in ran.values()]
        lines.append(f"| {metric} | " + " | ".join("-" if c != c else f"{c:.4g}" for c in cells) + " |")
    lines.append("| most in use on each GPU, GiB | " + " | ".join(", ".join(f"{g:.1f}" for g in r["most"]) for r in ran.values()) + " |")
    largest = [max(s["train/train_rollout_logprob_abs_diff"] for s in r["steps"]) for r in ran.values()]
    lines.append("| largest train/train_rollout_logprob_abs_diff | " + " | ".join(f"{d:g}" for d in largest) + " |")
    for phase in first["phases"]:
        for tag in sorted({t for r in ran.values() for t in r["phases"][phase]["planned"]}):
            cells = [(r["phases"][phase]["most"].get(tag, 0) / GIB, r["phases"][phase]["planned"].get(tag, 0) / GIB) for r in ran.values()]
            lines.append(f"| {phase}, {tag}: most of planned, GiB | " + " | ".join(f"{a:.3f} of {b:.3f}" for a, b in cells) + " |")
        cells = [(r["phases"][phase]["most_at_once"] / GIB, r["phases"][phase]["planned_at_once"] / GIB) for r in ran.values()]
        lines.append(f"| {phase}: most at once of planned, GiB | " + " | ".join(f"{a:.2f} of {b:.2f}" for a, b in cells) + " |")
    lines.append("")
    for name, result in list(ran.items())[1:]:
        if (result["tensor"], result["batch"]) != (first["tensor"], first["batch"]):
            continue
        different = different_metrics(first, result)
        lines.append(f"- {name} beside {next(iter(ran))}: " + (f"other values of {', '.join(different)}" if different else
                                                                f"every value but times is the same, {len(timeless(first))} records"))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", default="0.6B", choices=list(SHAPES))
    parser.add_argument("--build", nargs="+", default=["release"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tensor", type=int, nargs="+", default=[1])
    parser.add_argument("--workers", type=int, nargs="+", default=[0])
    for name, value in {"batch": 4, "samples": 4, "prompt": 64, "response": 64, "rollouts": 3, "seconds": 300}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--limit", action="store_true")
    parser.add_argument("--out")
    options, options.more = parser.parse_known_args()  # what is left are flags of all runs
    tensors, workers, builds = (of if len(of) == len(options.ranks) else of[:1] * len(options.ranks)
                                for of in (options.tensor, options.workers, options.build))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(dict(SHAPES[options.shape], torch_dtype="bfloat16")), encoding="utf-8")
        tiny_model.write_tokenizer(model)
        (folder / "reward.py").write_text(memory_plan.REWARD, encoding="utf-8")
        (folder / "prompts.jsonl").write_text((json.dumps({"prompt": "x" * options.prompt, "label": "1"}) + "\n") * options.batch,
                                              encoding="utf-8")
        results = {}
        for build, ranks, tensor, sampling in zip(builds, options.ranks, tensors, workers):
            which = f"{ranks} device{'s' if ranks > 1 else ''}" + (f", {tensor} a copy" if tensor > 1 else "") + (f", {sampling} sample" if sampling else "")
            which += f", build/{build}" if len(set(builds)) > 1 else ""
            which += " again" if which in results else ""
            results[which] = run(folder, build, ranks, tensor, sampling, options.batch, options)
            print(f"{which}: {'refused' if 'refused' in results[which] else 'done'}", file=sys.stderr, flush=True)
        if options.limit:
            results["the limit"] = run(folder, builds[0], 1, 1, 0, options.batch // max(options.ranks), options)
    gpus = subprocess.run("nvidia-smi --query-gpu=name --format=csv,noheader", shell=True, capture_output=True, text=True).stdout.splitlines()
    text = "\n".join([f"## Qwen3-{options.shape}", "", json.dumps({"gpus": gpus, **machine.describe(builds[-1])}), "",
                      f"`bench/many_devices.py`: bfloat16 on {options.device}, {options.batch} x {options.samples} completions of "
                      f"{options.response} tokens behind prompts of {options.prompt}; means of the rollouts behind the first"
                      f"{'; ' + ' '.join(options.more) if options.more else ''}.", page(results)])
    print(text)
    if options.out:
        pathlib.Path(options.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
