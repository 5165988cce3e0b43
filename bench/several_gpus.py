"""What several devices of one machine gain, in three parts:

    .venv/bin/python bench/several_gpus.py [--device cuda --build cuda] [--gpus 4] [--shape 4B] [--parts modes ranks bits] [--out FILE]

modes: the modes of bench/asynchrony.py, two devices each: they take turns on both, or one trains and the other one samples. Beside each
    step stands the one that bench/predicted_modes.py simulates for that card.
ranks: data parallel on 1, 2 and 4 devices beside the limit (one device with its share of the groups alone, which no number of devices
    beats), copies of the model spread over two devices each, and devices that only sample. With two devices: 1 and 2.
bits:  whether results depend on devices: a run of which a rank is killed on all of them and that resumes on two, beside one on two that was
    never killed; and an asynchronous run beside its replay. Compared is the SHA-256 of the exported weights.

Runs that leave devices free have others beside them, and each run is shown its own devices alone (CUDA_VISIBLE_DEVICES). Weights are
random, and prompts and lengths of the parts "modes" and "bits" are those of tiny_model.make_of_two_lengths. Flags that are not of this script are given to all
runs. The page is written again after each slot of runs, so that a call that is cut leaves what was measured."""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import asynchrony
import machine
import many_devices
import memory_plan
import predicted_modes
import tiny_model

TINY = dict(tiny_model.CONFIG, max_position_embeddings=8192, vocab_size=8192)
MODES = ["synchronous", "phases:{budget}:{in_flight}", "apart", "one-step-off", "asynchronous:2:{in_flight}", "asynchronous:4:{in_flight}"]


@dataclasses.dataclass
class Job:
    name: str
    devices: int
    save: pathlib.Path
    words: list
    rollouts: int
    seconds: float
    to_its_end: bool = False  # else it is ended when its last rollout is recorded: a checkpoint that it would then save is not measured
    killed_after: int = 0  # rollouts after which one of its ranks is killed
    batch: int = 0
    tensor: int = 1


def descendants(pid):
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    return sorted(child for child, parent in parents.items() if parent == pid)


def watch(job, shown):
    """Runs one job on the devices of these numbers; returns its records, how it ended and its last words."""
    log = pathlib.Path(f"{job.save}.txt")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(map(str, shown))}
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(job.words, stdout=out, stderr=out, start_new_session=True, env=environment)
        begin, first, is_killed = time.time(), None, False
        while process.poll() is None and time.time() - begin < job.seconds:
            count = sum("rollout/step" in r for r in many_devices.records_of(job.save))
            first = first or (time.time() - begin if count else None)
            if count >= job.rollouts and not job.to_its_end:
                break
            if job.killed_after and count >= job.killed_after and not is_killed:
                os.kill(descendants(process.pid)[1], signal.SIGKILL)
                is_killed = True
            time.sleep(0.25)
        ended_by_itself = process.poll() is not None
        if not ended_by_itself:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    records = many_devices.records_of(job.save)
    lines = log.read_text(encoding="utf-8").strip().splitlines()
    result = {"rollouts": [r for r in records if "rollout/step" in r], "steps": [r for r in records if "train/step" in r],
              "seconds": time.time() - begin, "until_first": first, "code": process.returncode if ended_by_itself else None, "tensor": job.tensor,
              "batch": job.batch, "last_lines": lines[-3:]}
    events = [e for e in many_devices.records_of(job.save, "memory_timeline.jsonl") if e["event"] == "step"]
    return {**result, "phases": events[-1]["phases"]} if events else result


class MostUsed:
    """The most that the driver says is in use on each GPU while this lives."""

    def __enter__(self):
        self.most, self.done = many_devices.used_gib(), threading.Event()
        self.thread = threading.Thread(target=self.poll)
        self.thread.start()
        return self

    def poll(self):
        while self.most and not self.done.wait(2.0):
            self.most = [max(pair) for pair in zip(self.most, many_devices.used_gib())]

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def slots_of(jobs, gpus):
    """Jobs in their order, as many beside each other as there are devices for."""
    slots, free = [], 0
    for job in jobs:
        if job.devices > free:
            slots.append([])
            free = gpus
        slots[-1].append((job, gpus - free))
        free -= job.devices
    return slots


def run_slots(jobs, gpus, results, after_each):
    for slot in slots_of(jobs, gpus):
        begin = time.time()
        with MostUsed() as used:
            def work(job, first_device):
                results[job.name] = watch(job, range(first_device, first_device + job.devices))

            threads = [threading.Thread(target=work, args=pair) for pair in slot]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for job, first_device in slot:
            result = results[job.name]
            result["most"] = used.most[first_device : first_device + job.devices]
            if len(result["rollouts"]) < 1 or (job.to_its_end and not job.killed_after and result["code"] != 0):
                result["refused"] = " / ".join(result["last_lines"]) or "it said nothing"
            print(f"{job.name}: {len(result['rollouts'])} rollouts in {result['seconds']:.0f} s, the first after {result['until_first'] or 0:.0f} s"
                  f"{'; ' + result['refused'] if 'refused' in result else ''}", file=sys.stderr, flush=True)
        after_each(f"({', '.join(job.name for job, _ in slot)}: {time.time() - begin:.0f} s)")


def shape_of(name):
    return TINY if name == "tiny" else many_devices.SHAPES[name]


def beside(options, **changes):
    return argparse.Namespace(**{**vars(options), **changes})


def two_lengths(folder, shape, mean, options):
    """Makes model, prompts and reward, unless an earlier call with this --folder did; returns the flag of the tokens that end completions."""
    made = folder / "stops.json"
    if not made.exists():
        folder.mkdir(parents=True)
        _, stops = tiny_model.make_of_two_lengths(folder / "model", shape_of(shape), mean)
        (folder / "reward.py").write_text(asynchrony.BY_TURNS, encoding="utf-8")
        tiny_model.write_prompts_of_two_lengths(folder / "prompts.jsonl", options.batch * 25, options.prompt)
        made.write_text(json.dumps(stops), encoding="utf-8")
    return ["--rollout-stop-token-ids", *map(str, json.loads(made.read_text(encoding="utf-8")))]


# Each of the three parts returns its lines of the page, and calls `write` with what it has after each slot.


def modes_part(folder, options, write):
    stops = two_lengths(folder / "modes", options.shape, options.mean, options)
    # Phases of twice the mean; twice a rollout's groups in flight.
    modes = options.modes or [mode.format(budget=2 * options.mean, in_flight=2 * options.batch) for mode in MODES]
    jobs = []
    for i, mode in enumerate(modes):
        save = folder / "modes" / mode.replace(":", "-")
        words = [*asynchrony.flags_of(mode, 2), "--rollout-max-response-len", str(options.response), *stops]
        slot = i // (options.gpus // 2)
        seconds = options.slot_seconds[slot] if slot < len(options.slot_seconds) else options.seconds
        jobs.append(Job(mode, 2, save, asynchrony.command_of(folder / "modes", save, words, options), options.rollouts, seconds))
    results = {}

    def page():
        ran = {mode: results[mode] for mode in modes if mode in results}
        enough = {mode: r for mode, r in ran.items() if "refused" in r or len(r["rollouts"]) > asynchrony.first_counted(mode, options)}
        lines = [f"{mode} came to {len(r['rollouts'])} rollouts: too few to count" for mode, r in ran.items() if mode not in enough]
        lines += asynchrony.speed_page(options, enough)
        card = next((card for card in predicted_modes.CARDS if any(card in gpu for gpu in gpus())), None)
        if card and options.shape == "4B":
            simulated = beside(options, devices=2, steps=16, at_once=256)
            steps = {mode: predicted_modes.predict(mode, predicted_modes.CARDS[card], simulated)[0] for mode in ran}
            lines += ["", f"Simulated for {card}, s a step: " + "; ".join(
                f"{mode} {sum(of[options.skip:]) / len(of[options.skip:]):.1f}" for mode, of in steps.items())]
        write([f"### Modes on two devices, {options.shape}", "",
               f"{options.batch} x {options.samples} completions behind prompts of {options.prompt}, mean length {options.mean}, one in a hundred "
               f"above {7.5 * options.mean:.0f}, cut at {options.response}; rollouts from {options.skip} on, of the modes that take turns from 1 on.", "", *lines,
               *driver_lines(ran)], results)

    run_slots(jobs, options.gpus, results, lambda note: (print(note, file=sys.stderr, flush=True), page()))


def ranks_part(folder, options, write):
    base = folder / "ranks"
    (base / "model").mkdir(parents=True)
    (base / "model" / "config.json").write_text(json.dumps(dict(shape_of(options.shape), torch_dtype="bfloat16")), encoding="utf-8")
    tiny_model.write_tokenizer(base / "model")
    (base / "reward.py").write_text(memory_plan.REWARD, encoding="utf-8")
    (base / "prompts.jsonl").write_text((json.dumps({"prompt": "x" * options.prompt, "label": "1"}) + "\n") * options.rank_batch, encoding="utf-8")
    of_runs = beside(options, ranks=[options.gpus], response=options.rank_response, rollouts=options.rank_rollouts)
    jobs = []

    def add(name, devices, trainers, tensor, workers, batch):
        save = base / f"run-{len(jobs)}"
        words = many_devices.command_of(base, save, options.build, trainers, tensor, workers, batch, of_runs)
        jobs.append(Job(name, devices, save, words, options.rank_rollouts, options.seconds, batch=batch, tensor=tensor))

    add("1 device", 1, 1, 1, 0, options.rank_batch)
    if options.gpus > 2:
        add("2 devices", 2, 2, 1, 0, options.rank_batch)
    add(f"the limit of {options.gpus}", 1, 1, 1, 0, options.rank_batch // options.gpus)
    add(f"{options.gpus} devices", options.gpus, options.gpus, 1, 0, options.rank_batch)
    add(f"{options.gpus} devices, 2 a copy", options.gpus, options.gpus, 2, 0, options.rank_batch)
    add(f"{options.gpus // 2} train, {options.gpus // 2} sample", options.gpus, options.gpus // 2, 1, options.gpus // 2, options.rank_batch)
    results = {}

    def page():
        ran = {job.name: results[job.name] for job in jobs if job.name in results}
        for result in ran.values():
            if "phases" not in result and "refused" not in result:
                result["refused"] = " / ".join(result["last_lines"])
        write([f"### Data ranks, {options.shape}", "",
               f"{options.rank_batch} x {options.samples} completions of {options.rank_response} tokens behind prompts of {options.prompt}; means of the "
               f"rollouts after the first.", many_devices.page(ran), *driver_lines(ran)], results)

    run_slots(jobs, options.gpus, results, lambda note: (print(note, file=sys.stderr, flush=True), page()))


def exported(save):
    files = sorted(save.glob("hf/*/*.safetensors"))
    digests = {}
    for file in files:
        with open(file, "rb") as opened:
            digests.setdefault(file.parent.name, []).append(hashlib.file_digest(opened, "sha256").hexdigest()[:16])
    return " ".join(digests[max(digests)]) if digests else "nothing was exported"


def bits_part(folder, options, write):
    base = folder / "bits"
    stops = two_lengths(base, options.bits_shape, options.bits_mean, options)
    common = [*stops, "--rollout-max-response-len", str(8 * options.bits_mean), "--micro-batches-multiple", str(options.gpus)]
    of_runs = beside(options, rollouts=5)

    def job(name, devices, save, more, **rest):
        words = asynchrony.command_of(base, base / save, [*common, *more], of_runs)
        return Job(name, devices, base / save, words, 5, options.seconds, to_its_end=True, **rest)

    together = lambda count: ["--colocate", "--actor-num-gpus-per-node", str(count)]
    live = [*asynchrony.flags_of(f"asynchronous:2:{2 * options.batch}")]
    jobs = [job("asynchronous", 2, "live", live), job("never killed, 2 devices", 2, "whole", together(2)),
            job(f"a rank of {options.gpus} killed", options.gpus, "killed", [*together(options.gpus), "--save-interval", "1"], killed_after=3),
            job("its replay", 2, "replay", [*live, "--replay-schedule", str(base / "live")]),
            job("resumed on 2", 2, "killed", [*together(2), "--save-interval", "1", "--load", str(base / "killed")])]
    results = {}

    def page():
        lines = ["| run | rollouts recorded | exit code | exported weights, SHA-256 |", "|---|---|---|---|"]
        for one in jobs:
            if one.name in results:
                digest = "(killed)" if one.killed_after else exported(one.save)
                lines.append(f"| {one.name} | {len(results[one.name]['rollouts'])} | {results[one.name]['code']} | {digest} |")
        lines += [""] + [f"- {name}: {result['last_lines'][-1]}" for name, result in results.items() if "killed" in name and result["code"] and result["last_lines"]]
        write([f"### Bits, {options.bits_shape}", "", f"{options.batch} x {options.samples} completions, mean length {options.bits_mean}, 5 rollouts.", "", *lines,
               *(f"- {name} does not run: {r['refused']}" for name, r in results.items() if "refused" in r)], results)

    run_slots(jobs, options.gpus, results, lambda note: (print(note, file=sys.stderr, flush=True), page()))


def gpus():
    query = subprocess.run("nvidia-smi --query-gpu=name --format=csv,noheader", shell=True, capture_output=True, text=True)
    return query.stdout.splitlines() if query.returncode == 0 else []


def driver_lines(ran):
    return ["", *(f"- {name}: most in use on its GPUs, GiB: {', '.join(f'{g:.1f}' for g in r['most'])}" for name, r in ran.items() if r.get("most")),
            *(f"- {name}: the first rollout was recorded {r['until_first']:.1f} s after the start" for name, r in ran.items() if r.get("until_first"))]


PARTS = {"modes": modes_part, "ranks": ranks_part, "bits": bits_part}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--build", default="release")
    parser.add_argument("--shape", default="tiny", choices=["tiny", *many_devices.SHAPES])
    parser.add_argument("--bits-shape", default="tiny", choices=["tiny", *many_devices.SHAPES])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--modes", nargs="+", help="modes of bench/asynchrony.py instead of all six")
    for name, value in {"gpus": 4, "batch": 16, "samples": 8, "prompt": 128, "mean": 500, "response": 4000, "rollouts": 12, "skip": 4, "seconds": 80,
                        "rank_batch": 32, "rank_response": 512, "rank_rollouts": 3, "bits_mean": 60}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--slot-seconds", type=int, nargs="+", default=[], help="modes: the time of each slot of runs, instead of --seconds")
    parser.add_argument("--folder", help="where models and runs are made, and stay; unset: a temporary folder")
    parser.add_argument("--out", help="the page; the records of all runs are beside it as FILE.json")
    options, options.more = parser.parse_known_args()  # what is left are flags of all runs
    if options.gpus < 2:
        sys.exit("--gpus: at least 2")
    if not pathlib.Path(machine.tandem(options.build)).exists():
        sys.exit(f"{machine.tandem(options.build)} does not exist: build it, or name another --build")
    head = ["## Several devices of one machine", "", json.dumps({"gpus": gpus(), **machine.describe(options.build)}), "",
            f"`bench/several_gpus.py`: bfloat16 on {options.device}{'; ' + ' '.join(options.more) if options.more else ''}.", ""]
    pages, records = {}, {}

    def save(part):
        def write(lines, results):
            pages[part], records[part] = lines, results
            if options.out:
                text = "\n".join([*head, *(line for page in pages.values() for line in [*page, ""])])
                pathlib.Path(options.out).write_text(text, encoding="utf-8")
                pathlib.Path(options.out + ".json").write_text(json.dumps(records), encoding="utf-8")

        return write

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(options.folder or name)
        for part in options.parts:
            PARTS[part](folder, options, save(part))
    print("\n".join([*head, *(line for page in pages.values() for line in [*page, ""])]))


if __name__ == "__main__":
    main()
