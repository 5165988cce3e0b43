"""The arithmetic demo with and without dynamic sampling, at several batch sizes: the reward of all sampled groups against the processor
seconds of the run and its graders. The same checkpoint, problems and learning rate, which decays over as many trained groups; one thread;
in turns on one machine. A run ends when it has reached the goal.

    .venv/bin/python bench/dynamic_sampling.py [--seeds 42,43,44] [--prompts 32,16] [--out bench/results/dynamic_sampling.json]
    .venv/bin/python bench/dynamic_sampling.py --picture docs/figures/dynamic_sampling.svg     of what is in --out, without a run"""

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

EXAMPLE = machine.ROOT / "examples" / "arithmetic"
GOAL = 0.95
JUDGED_GROUPS = 320  # the last ones sampled, whose mean reward is compared with the goal: ten rollouts of 32
DECAY_GROUPS = 9600  # trained ones until --min-lr: the demo's 300 rollouts of 32
FILTER = ("--dynamic-sampling-filter-path", "nonzero_std")
COLORS = {16: "#c40", 32: "#06b", 8: "#0b6"}


def name_of(prompts, is_filtered):
    return f"dynamic sampling, {prompts} groups kept" if is_filtered else f"every group, {prompts}"


def processor_seconds(root):
    """Returns the processor time of a process and all that descend from it, those that have ended too."""
    parents, ticks = {}, {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(folder.name)] = int(fields[1])
        ticks[int(folder.name)] = sum(int(field) for field in fields[11:15])

    def descends(process):
        while process in parents and process != root:
            process = parents[process]
        return process == root

    return sum(count for process, count in ticks.items() if descends(process)) / os.sysconf("SC_CLK_TCK")


def run(data, folder, seed, prompts, is_filtered):
    """For each rollout: processor seconds so far, reward and number of the groups sampled, seconds of sampling and of training."""
    rollouts = DECAY_GROUPS // prompts
    path = f"{folder}/{seed}-{prompts}-{is_filtered}"
    process = subprocess.Popen([
        machine.tandem(), "train", "--colocate", "--hf-checkpoint", str(EXAMPLE / "checkpoint"), "--prompt-data", f"{data}/train.jsonl",
        "--rm-type", "exact", "--rollout-shuffle", "--rollout-batch-size", str(prompts), "--n-samples-per-prompt", "8",
        "--num-rollout", str(rollouts), "--rollout-max-response-len", "8", "--lr", "4e-4", "--min-lr", "2e-5", "--lr-decay-style",
        "linear", "--lr-decay-iters", str(rollouts), "--weight-decay", "0", "--sample-dump-interval", "0", "--num-threads", "1",
        "--no-use-tensorboard", "--save-interval", "10000", "--rollout-seed", str(seed), "--save", path, "--quiet",
        *(FILTER if is_filtered else ())], stdout=subprocess.DEVNULL, stderr=open(f"{folder}/errors", "w", encoding="utf-8"))
    records, rest, curve = None, "", []
    try:
        while process.poll() is None and not first_at(curve, GOAL):
            time.sleep(0.02)
            if records is None:
                if not os.path.exists(f"{path}/metrics.jsonl"):
                    continue
                records = open(f"{path}/metrics.jsonl", encoding="utf-8")
            lines = (rest + records.read()).split("\n")
            rest = lines.pop()
            for record in map(json.loads, lines):
                if "rollout/raw_reward" not in record:
                    continue
                reward = record.get("rollout/dynamic_filter/raw_reward", record["rollout/raw_reward"])
                groups = record.get("rollout/dynamic_filter/groups", prompts)
                curve.append([round(processor_seconds(process.pid), 2), round(reward, 5), int(groups),
                              round(record["perf/rollout_time"], 4), round(record["perf/actor_train_time"], 4)])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        if process.wait() != 0:
            sys.exit(f"tandem train: exit code {process.returncode}: {pathlib.Path(folder, 'errors').read_text(encoding='utf-8')}")
    return curve


def judged(curve):
    """The mean reward of the last JUDGED_GROUPS sampled groups after each rollout; None before there are so many."""
    means = []
    for i in range(len(curve)):
        reward = groups = 0.0
        for point in reversed(curve[: i + 1]):
            reward, groups = reward + point[1] * point[2], groups + point[2]
            if groups >= JUDGED_GROUPS:
                break
        means.append(reward / groups if groups >= JUDGED_GROUPS else None)
    return means


def first_at(curve, goal):
    """The number of rollouts after which the goal is reached; 0: never."""
    return next((i + 1 for i, mean in enumerate(judged(curve)) if mean is not None and mean >= goal), 0)


def row(name, curve):
    steps = first_at(curve, GOAL)
    if steps == 0:
        return f"{name}: not reached in {len(curve)} steps, {curve[-1][0]:.1f} s"
    sampling, training = (sum(point[i] for point in curve[:steps]) for i in (3, 4))
    return (f"{name}: {GOAL} after {curve[steps - 1][0]:.1f} processor seconds, {steps} steps, {sum(p[2] for p in curve[:steps]):.0f} groups "
            f"sampled; sampling took {100 * sampling / (sampling + training):.0f} % of sampling and training")


def picture(report):
    """The curves of all seeds, by processor seconds: filtered ones solid, others dashed."""
    width, height, left, top = 720, 380, 60, 20
    longest = max(curve[-1][0] for curves in report["seeds"].values() for curve in curves.values())
    x, y = (lambda s: left + s / longest * (width - left - 20)), (lambda r: top + (1.0 - r) / 0.75 * (height - top - 60))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for r in (0.25, 0.5, 0.75, GOAL, 1.0):
        out.append(f'<path d="M{left} {y(r):.1f}H{width - 20}" stroke="{"#888" if r == GOAL else "#ddd"}"/>'
                   f'<text x="{left - 8}" y="{y(r) + 4:.1f}" text-anchor="end">{r}</text>')
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if longest <= 6 * step)
    for s in range(0, int(longest) + 1, step):
        out.append(f'<text x="{x(s):.1f}" y="{height - 42}" text-anchor="middle">{s}</text>')
    out.append(f'<text x="{width / 2}" y="{height - 24}" text-anchor="middle">processor seconds of the run, one thread</text>')
    out.append(f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">reward of all sampled groups: mean of the last '
               f'{JUDGED_GROUPS}; a line for each seed</text>')
    for seed, curves in report["seeds"].items():
        for i, setting in enumerate(report["settings"]):
            name = name_of(*setting)
            if name not in curves:
                continue
            points = " ".join(f"{x(p[0]):.1f},{y(m):.1f}" for p, m in zip(curves[name], judged(curves[name])) if m is not None)
            look = f'stroke="{COLORS.get(setting[0], "#555")}"' + ("" if setting[1] else ' stroke-dasharray="5 4"')
            out.append(f'<polyline points="{points}" fill="none" {look} stroke-width="1.6"/>')
            if seed == next(iter(report["seeds"])):
                at = y(0.25) - 16 * (len(report["settings"]) - i)
                out.append(f'<path d="M{width - 300} {at - 4:.1f}h34" fill="none" {look} stroke-width="1.6"/>'
                           f'<text x="{width - 258}" y="{at:.1f}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="42,43,44")
    parser.add_argument("--prompts", default="32,16")
    parser.add_argument("--out", default="bench/results/dynamic_sampling.json")
    parser.add_argument("--picture")
    args = parser.parse_args()
    out = pathlib.Path(args.out)
    if args.picture:
        pathlib.Path(args.picture).write_text(picture(json.loads(out.read_text(encoding="utf-8"))), encoding="utf-8")
        return
    settings = [[int(prompts), is_filtered] for prompts in args.prompts.split(",") for is_filtered in (False, True)]
    report = {"machine": machine.describe(), "command": " ".join([".venv/bin/python bench/dynamic_sampling.py", *sys.argv[1:]]),
              "settings": settings, "points": "processor seconds, reward, groups sampled, seconds of sampling, seconds of training",
              "seeds": {}}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(EXAMPLE / "make_problems.py"), folder], check=True)
        for seed in args.seeds.split(","):
            report["seeds"][seed] = {}
            for setting in settings:
                name = name_of(*setting)
                report["seeds"][seed][name] = run(folder, folder, seed, *setting)
                print(f"seed {seed}, {row(name, report['seeds'][seed][name])}", flush=True)
                out.write_text(json.dumps(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
