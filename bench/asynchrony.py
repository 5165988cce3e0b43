"""Modes of asynchrony side by side (docs/ASYNC.md): how fast each one trains, and what it learns.

    .venv/bin/python bench/asynchrony.py speed [--device cuda --build cuda] [--shape 0.6B] [--modes synchronous phases:2000:64 ...]
    .venv/bin/python bench/asynchrony.py curves [--seeds 3] [--task arithmetic|long] [--modes ...]

A mode is one of
    synchronous          one device samples and trains in turn
    phases[:C[:W]]       the same device, completions in phases of C tokens, W groups in flight
    apart                one device trains, another one samples, in turn
    one-step-off         the same, sampling while it trains, one version behind
    asynchronous[:K[:W]] the same with completions that go on with newer weights, at most K versions behind

speed: the weights are made so that completions have mean length --mean and a long tail, and those of a prompt are of one kind
(tiny_model.make_of_two_lengths); those longer than --response are cut. A run ends after --rollouts or --seconds. Rates are over the rollouts after the first --skip, in which groups in flight are short ones; of the modes that take turns, over all but the first.
curves: the arithmetic demo's model and problems; "long" rewards an answer for each 7 in it, up to 24 of 48 tokens, so that answers
grow. Reward against rollouts, mean and spread over seeds, and a picture of it."""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import machine
import many_devices
import tiny_model

SHAPES = dict(many_devices.SHAPES, tiny=dict(tiny_model.CONFIG, max_position_embeddings=8192, vocab_size=8192))
EXAMPLE = machine.ROOT / "examples" / "arithmetic"
SEVENS = ("def reward(prompts, completions, **kwargs):\n"
          "    texts = [c if isinstance(c, str) else c[0]['content'] for c in completions]\n"
          "    return [min(text.count('7'), 24) / 24 for text in texts]\n")
BY_TURNS = "def reward(prompts, completions, **kwargs):\n    return [float(i % 2) for i in range(len(completions))]\n"
COLORS = ("#0b6", "#c40", "#36c", "#a3a", "#880", "#066", "#444")


def flags_of(mode, colocated=1):
    """`colocated`: devices that sample and train in turn; where one trains and another samples, they are two."""
    name, *numbers = mode.split(":")
    together = ["--colocate", *(["--actor-num-gpus-per-node", str(colocated)] if colocated > 1 else [])]
    apart = ["--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1"]
    in_flight = ["--over-sampling-batch-size", numbers[1]] if len(numbers) > 1 else []
    if name == "synchronous":
        return together
    if name == "phases":
        return [*together, "--partial-rollout", *(["--rollout-phase-tokens", numbers[0]] if numbers else []), *in_flight]
    if name == "apart":
        return apart
    if name == "one-step-off":
        return [*apart, "--max-weight-staleness", "1"]
    if name == "asynchronous":
        return [*apart, "--partial-rollout", "--max-weight-staleness", numbers[0] if numbers else "2", *in_flight]
    sys.exit(f"{mode}: no such mode")


def description(options):
    gpus = subprocess.run("nvidia-smi --query-gpu=name --format=csv,noheader", shell=True, capture_output=True, text=True).stdout.splitlines()
    return json.dumps({"gpus": gpus, **machine.describe(options.build)})


def table(names, rows):
    return ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names), *("| " + " | ".join(row) + " |" for row in rows)]


# These functions measure how fast each mode trains.


def first_counted(mode, options):
    """In modes that take turns the first rollouts are like all others, but for the calls that choose kernels."""
    return min(options.skip, 1) if mode.split(":")[0] in ("synchronous", "apart") else options.skip


def speed_page(options, results):
    ran = {mode: [r for r in result["rollouts"] if r["rollout/step"] >= first_counted(mode, options)] for mode, result in results.items()
           if "refused" not in result}
    lines = [f"{mode} does not run: {result['refused']}" for mode, result in results.items() if "refused" in result]
    tokens = {mode: sum(r["rollout/response_len/mean"] for r in rs) * options.batch * options.samples for mode, rs in ran.items()}
    rates = {mode: tokens[mode] / sum(r["perf/step_time"] for r in rs) for mode, rs in ran.items()}
    if not ran:
        return lines
    first = next(iter(rates.values()))
    rows = [["rollouts counted", *(str(len(rs)) for rs in ran.values())],
            ["trained tokens a second", *(f"{rate:,.0f} ({rate / first:.2f} x)" for rate in rates.values())]]

    def add(title, metric, scale=1.0, digits=2):
        values = [many_devices.mean([None, *rs], metric) if any(metric in r for r in rs) else float("nan") for rs in ran.values()]
        if any(value == value for value in values):
            rows.append([title, *("-" if value != value else f"{value * scale:.{digits}f}" for value in values)])

    add("a step, s", "perf/step_time")
    add("- sampling, or since the rollout before, s", "perf/rollout_time")
    add("- training, s", "perf/train_time")
    add("- the trainer waits for groups, s", "perf/train_wait_time")
    add("- the trainer waits for samplers to take weights, s", "perf/update_weights_time", digits=4)
    add("- samplers stand still for that, s", "perf/weights_pause_time", digits=4)
    add("mean length, tokens", "rollout/response_len/mean", digits=0)
    add("longest, tokens", "rollout/response_len/max", digits=0)
    add("phases", "rollout/phases", digits=1)
    add("prefilled to go on, over sampled", "perf/recompute_share")
    add("length taken over begun", "rollout/length_taken_over_begun")
    add("staleness of groups, mean", "rollout/staleness/mean")
    for age in [*map(str, range(9)), "more"]:
        for rs in ran.values():
            for r in rs:
                r["share"] = r.get(f"rollout/staleness_hist/{age}", 0.0) / max(sum(r.get(f"rollout/staleness_hist/{a}", 0.0) for a in [*range(9), "more"]), 1.0)
        if any(r["share"] > 0.0 for rs in ran.values() for r in rs):
            add(f"tokens of age {age}, %", "share", 100.0, 1)
    largest = [max((s.get("train/on_policy_logprob_abs_diff", s.get("train/train_rollout_logprob_abs_diff", 0.0)) for s in results[mode]["steps"]), default=0.0) for mode in ran]
    rows.append(["largest difference of log-probs on policy", *(f"{value:g}" for value in largest)])
    return lines + table(list(ran), rows)


def speed(options):
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        _, stops = tiny_model.make_of_two_lengths(folder / "model", SHAPES[options.shape], options.mean)
        (folder / "reward.py").write_text(BY_TURNS, encoding="utf-8")
        tiny_model.write_prompts_of_two_lengths(folder / "prompts.jsonl", options.batch * 25, options.prompt)
        for mode in options.modes:
            words = [*flags_of(mode), "--rollout-max-response-len", str(options.response), "--rollout-stop-token-ids", *map(str, stops)]
            results[mode] = run_until_recorded(folder, mode, words, options)
            print(f"{mode}: {'refused' if 'refused' in results[mode] else 'done'}", file=sys.stderr, flush=True)
    return ["## Speed, " + options.shape, "", description(options), "",
            f"`bench/asynchrony.py speed`: bfloat16 on {options.device}, {options.batch} x {options.samples} completions behind prompts of "
            f"{options.prompt}, mean length {options.mean}, one in a hundred above {7.5 * options.mean:.0f}, cut at {options.response}; "
            f"rollouts from {options.skip} on{'; ' + ' '.join(options.more) if options.more else ''}.", "",
            *speed_page(options, results)]


def command_of(folder, save, words, options):
    return [machine.tandem(options.build), "train", "--device", options.device, "--hf-checkpoint", str(folder / "model"), "--dtype", "bfloat16", "--prompt-data", str(folder / "prompts.jsonl"), "--custom-rm-path", f"{folder}/reward.py:reward",
               "--rollout-batch-size", str(options.batch), "--rollout-shuffle", "--n-samples-per-prompt", str(options.samples), "--num-rollout",
               str(options.rollouts), "--lr", "1e-6", "--no-use-tensorboard", "--sample-dump-interval", "0", "--save", str(save), *words,
               *options.more]


def run_until_recorded(folder, mode, words, options):
    save = folder / f"run-{len(list(folder.iterdir()))}"
    return many_devices.watch(command_of(folder, save, words, options), save, options.rollouts, options.seconds, least=first_counted(mode, options) + 2)


# These functions measure what each mode learns.


def learn(folder, mode, seed, options):
    save = folder / f"{mode.replace(':', '-')}-{seed}"
    task = ["--rm-type", "exact", "--rollout-max-response-len", "8", "--num-rollout", str(options.rollouts or 300), "--lr", "4e-4", "--min-lr",
            "2e-5"]
    if options.task == "long":
        task = ["--custom-rm-path", f"{folder}/reward.py:reward", "--rollout-max-response-len", "48", "--num-rollout",
                str(options.rollouts or 150), "--lr", "2e-4", "--min-lr", "2e-5"]
    words = [machine.tandem(options.build), "train", "--hf-checkpoint", str(EXAMPLE / "checkpoint"), "--prompt-data", f"{folder}/train.jsonl",
             "--rollout-shuffle", "--rollout-batch-size", "32", "--n-samples-per-prompt", "8", "--global-batch-size", "256",
             "--lr-decay-style", "linear", "--weight-decay", "0", "--sample-dump-interval", "0", "--no-use-tensorboard", "--rollout-seed",
             str(seed), "--save", str(save), *task, *flags_of(mode), *options.more]
    words += ["--num-threads", "2" if "--colocate" in words else "1"]
    result = subprocess.run(words, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{mode}: exit code {result.returncode}: {result.stderr[-400:]}")
    return [r for r in many_devices.records_of(save) if "rollout/raw_reward" in r]


def last(records, metric, count=20):
    values = [r[metric] for r in records[-count:] if metric in r]
    return statistics.mean(values) if values else 0.0


def picture(curves):
    width, height, left, top = 720, 360, 50, 20
    longest = max(len(c) for runs in curves.values() for c in runs)
    x, y = (lambda i: left + i / max(longest - 1, 1) * (width - left - 20)), (lambda r: top + (1.0 - r) * (height - top - 50))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for r in (0.0, 0.25, 0.5, 0.75, 1.0):
        out.append(f'<path d="M{left} {y(r):.1f}H{width - 20}" stroke="#ddd"/><text x="{left - 8}" y="{y(r) + 4:.1f}" text-anchor="end">{r}</text>')
    for i in range(6):
        at = (longest - 1) * i / 5
        out.append(f'<text x="{x(at):.1f}" y="{height - 30}" text-anchor="middle">{at:.0f}</text>')
    out.append(f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">rollouts; reward: mean of five; one line a seed</text>')
    for i, ((mode, runs), color) in enumerate(zip(curves.items(), COLORS)):
        for run in runs:
            smooth = [statistics.mean(run[max(0, j - 4) : j + 1]) for j in range(len(run))]
            points = " ".join(f"{x(j):.1f},{y(r):.1f}" for j, r in enumerate(smooth))
            out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.2" opacity="0.8"/>')
        out.append(f'<text x="{width - 180}" y="{height - 70 - 16 * (len(curves) - 1 - i)}" fill="{color}">{mode}</text>')
    return "\n".join([*out, "</svg>", ""])


def curves(options):
    runs = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([sys.executable, str(EXAMPLE / "make_problems.py"), name], check=True, capture_output=True)
        (folder / "reward.py").write_text(SEVENS, encoding="utf-8")
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            asked = {mode: [pool.submit(learn, folder, mode, seed, options) for seed in range(options.seeds)] for mode in options.modes}
            for mode in options.modes:
                runs[mode] = [run.result() for run in asked[mode]]
                print(f"{mode}: done", file=sys.stderr, flush=True)
    if options.picture:
        pathlib.Path(options.picture).write_text(picture({mode: [[r["rollout/raw_reward"] for r in run] for run in of] for mode, of in runs.items()}),
                                                 encoding="utf-8")

    def row(title, of_run, digits=3):
        return [title, *(" ".join(f"{of_run(run):.{digits}f}" for run in of) for of in runs.values())]

    half = options.rollouts // 2 if options.rollouts else (150 if options.task == "arithmetic" else 75)
    rows = [row("reward, last 20 rollouts, by seed", lambda run: last(run, "rollout/raw_reward")),
            row(f"reward, 20 rollouts up to {half}", lambda run: last(run[:half], "rollout/raw_reward")),
            row("mean length of the last 20", lambda run: last(run, "rollout/response_len/mean"), 1),
            row("staleness of groups, mean", lambda run: statistics.mean(r.get("rollout/staleness/mean", 0.0) for r in run), 2),
            row("samples of several versions, %", lambda run: 100 * statistics.mean(r.get("rollout/partial_ratio", 0.0) for r in run), 1)]
    return [f"## Curves, {options.task}", "", description(options), "",
            f"`bench/asynchrony.py curves --task {options.task}`: the arithmetic demo's model, 32 x 8 completions a rollout"
            f"{'; ' + ' '.join(options.more) if options.more else ''}.", "", *table(list(runs), rows)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "curves"])
    parser.add_argument("--modes", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--build", default="release")
    parser.add_argument("--shape", default="tiny", choices=list(SHAPES))
    parser.add_argument("--task", default="arithmetic", choices=["arithmetic", "long"])
    parser.add_argument("--rollouts", type=int)
    parser.add_argument("--mean", type=int, default=48)
    parser.add_argument("--skip", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    for name, value in {"batch": 8, "samples": 8, "prompt": 32, "response": 512, "seconds": 500}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--jobs", type=int, default=1, help="curves: runs at once, two cores each")
    parser.add_argument("--picture", help="curves: the SVG file that is written")
    parser.add_argument("--out")
    options, options.more = parser.parse_known_args()  # what is left are flags of all runs
    options.modes = options.modes or (["synchronous", "phases", "apart", "one-step-off", "asynchronous"] if options.what == "speed" else
                                      ["synchronous", "phases:2", "one-step-off", "asynchronous:2"])
    if options.what == "speed":
        options.rollouts = options.rollouts or 12
    text = "\n".join(speed(options) if options.what == "speed" else curves(options))
    print(text)
    if options.out:
        pathlib.Path(options.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
