"""Runs the fuzz targets of the preset `fuzz` side by side and writes what each has done: `make fuzz`.

    python tests/fuzz/campaign.py BUILD [--runs N] [--seconds S] [--jobs J] [--only NAME ...] [--slice-seconds S]
    python tests/fuzz/campaign.py BUILD --pack FILE.tar.gz

BUILD is the build folder, or one into which an archive of --pack was unpacked: the programs without their symbols, for
a machine of the same kind that has this repository and neither compiler nor CMake. A target ends at N executions (the
channel, command line and the text worker at N / 100, the differential at N / 10); the campaign ends when all have, or S seconds
after its start. Work goes in slices, J at once, to the target that has the most left to do; several slices of one
target share its corpus. Every fourth slice tries inputs of up to 64 KiB, the others up to 512 bytes, which are many times faster.
BUILD/campaign keeps totals, corpora and what was found: an interrupted campaign goes on where it was, unless the program
has changed. Exit code 1: something was found.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

LIBFUZZER = ["-timeout=10", "-rss_limit_mb=2048", "-malloc_limit_mb=256", "-print_final_stats=1"]
# Faster, and what they leave out does not find bugs: bookkeeping of rare features, ever smaller inputs.
LIBFUZZER += ["-entropic=0", "-reduce_inputs=0", "-reload=0", "-len_control=0"]
LIBFUZZER += ["-dict=tests/fuzz/words.dict"]
SMALL_BYTES, LARGE_BYTES, LARGE_EVERY = 512, 65536, 4
SANITIZERS = "malloc_context_size=2:quarantine_size_mb=8:detect_leaks=1"
INTERRUPTED = 72  # how libFuzzer ends at Ctrl-C
# What one execution costs, in others: these get so many times fewer of them.
COSTS = {"fuzz_channel": 100, "fuzz_command_line": 100, "fuzz_text_worker": 100, "fuzz_safetensors_differential": 10}
CHUNK = {"fuzz_text_worker": 5000, "fuzz_safetensors_differential": 50000}
SPARE_SECONDS = 5  # a slice takes that much longer than it is told, to read its corpus and to end
LIST = "tests/fuzz/targets.txt"


def program_name(target):
    return "safetensors_mutants" if target == "fuzz_safetensors_differential" else target


class Target:
    """One program, its goal, and the totals so far."""

    def __init__(self, build, name, seeds, goal):
        self.name, self.seeds, self.goal = name, seeds, goal
        self.folder = build / "campaign"
        self.program = build / "tests/fuzz" / program_name(name)
        self.sha = hashlib.sha256(self.program.read_bytes()).hexdigest()
        self.state_path = self.folder / f"{name}.json"
        self.lock, self.running = threading.Lock(), 0
        self.state = {"sha": self.sha, "executions": 0, "seconds": 0.0, "slices": 0, "findings": 0, "large": 0,
                      "coverage": 0, "features": 0}
        if self.state_path.exists():
            kept = json.loads(self.state_path.read_text())
            if kept["sha"] == self.sha:
                self.state.update(kept)

    def is_done(self):
        return self.state["findings"] > 0 or self.state["executions"] >= self.goal

    def share_done(self):
        return self.state["executions"] / self.goal

    def corpus(self, is_large):
        """Large inputs lie apart: a slice of small ones would cut them off."""
        folder = self.folder / ("corpus-large" if is_large else "corpus") / self.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def command(self, slice_seconds, number, is_large):
        left = self.goal - self.state["executions"]
        if self.name == "fuzz_text_worker":
            return [self.program, "--runs", min(left, CHUNK[self.name]), "--seed", number]
        if self.name == "fuzz_safetensors_differential":
            script = Path(__file__).with_name("safetensors_differential.py")
            count = min(left, CHUNK[self.name])
            return [sys.executable, "-B", script, self.program, "--count", count, "--seed", number]
        folders = [self.corpus(True), self.corpus(False)] if is_large else [self.corpus(False)]
        return [self.program, f"-seed={number}", f"-runs={left}", f"-max_total_time={slice_seconds}",
                f"-max_len={LARGE_BYTES if is_large else SMALL_BYTES}", *LIBFUZZER,
                f"-artifact_prefix={self.folder}/found-{self.name}-", *folders, *self.seeds]

    def run(self, slice_seconds):
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.lock:
            self.state["slices"] += 1
            number = self.state["slices"]
        is_large = number % LARGE_EVERY == 0
        log_path = self.folder / f"{self.name}-{number}.log"
        start = time.monotonic()
        environment = {**os.environ, "ASAN_OPTIONS": SANITIZERS, "UBSAN_OPTIONS": "print_stacktrace=1"}
        command = [str(word) for word in self.command(slice_seconds, number, is_large)]
        with open(log_path, "wb") as log:
            code = subprocess.call(command, stdout=log, stderr=log, env=environment)
        self.add_up(log_path, number, is_large, code, time.monotonic() - start)

    def add_up(self, log_path, number, is_large, code, seconds):
        text = log_path.read_text(errors="replace")
        patterns = (r"stat::number_of_executed_units: (\d+)", r"(?m)^(\d+) calls of", r" in (\d+) mutants")
        counts = [int(match[1]) for pattern in patterns if (match := re.search(pattern, text))]
        progress = re.findall(r"cov: (\d+) ft: (\d+)", text)
        with self.lock:
            self.state["executions"] += counts[0] if counts else 0
            self.state["large"] += counts[0] if counts and is_large else 0
            self.state["seconds"] += seconds
            if progress:
                self.state["coverage"] = max(self.state["coverage"], int(progress[-1][0]))
                self.state["features"] = max(self.state["features"], int(progress[-1][1]))
            if code in (0, INTERRUPTED):
                log_path.unlink()
            else:
                self.state["findings"] += 1
                log_path = log_path.rename(self.folder / f"found-{self.name}-{number}.log")
                print(f"{self.name}: exit code {code}, see {log_path}", file=sys.stderr, flush=True)
            self.state_path.write_text(json.dumps(self.state))

    def num_corpus_files(self):
        folders = [self.folder / kind / self.name for kind in ("corpus", "corpus-large")] + [*map(Path, self.seeds)]
        return sum(1 for folder in folders if folder.is_dir() for _ in folder.iterdir())


def target_rows(build, runs):
    lines = (build / LIST).read_text().splitlines()
    rows = [(words[0], words[1:]) for words in map(str.split, lines)]
    rows += [("fuzz_text_worker", []), ("fuzz_safetensors_differential", [])]
    return [(name, seeds, max(1, runs // COSTS.get(name, 1))) for name, seeds in rows]


def read_targets(build, runs, only):
    wanted = [row for row in target_rows(build, runs) if not only or row[0].removeprefix("fuzz_") in only]
    absent = [name for name, _, _ in wanted if not (build / "tests/fuzz" / program_name(name)).exists()]
    if absent:
        print("not in", build, "and left out:", *absent, file=sys.stderr)
    return [Target(build, *row) for row in wanted if row[0] not in absent]


def run_all(targets, arguments):
    begin = time.monotonic()
    running = {}  # slice -> its target
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        while True:
            left = arguments.seconds - (time.monotonic() - begin) - SPARE_SECONDS if arguments.seconds else float("inf")
            waiting = [target for target in targets if not target.is_done()] if left >= 1 else []
            while waiting and len(running) < arguments.jobs:
                target = min(waiting, key=lambda target: (target.running, target.share_done()))
                target.running += 1
                slice_seconds = int(min(arguments.slice_seconds, left))
                running[pool.submit(target.run, slice_seconds)] = target
            if not running:
                return
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for slice in done:
                running.pop(slice).running -= 1
                slice.result()


def table(targets):
    yield "| target | executions | of | of 64 KiB | core seconds | per second | edges | features | corpus | findings |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for target in targets:
        state = target.state
        rate = state["executions"] / state["seconds"] if state["seconds"] else 0
        corpus = target.num_corpus_files() or "drawn"
        yield (f"| `{target.name}` | {state['executions']:,} | {target.goal:,} | {state['large']:,} | "
               f"{state['seconds']:.0f} | {rate:.0f} | {state['coverage']} | {state['features']} | {corpus} | "
               f"{state['findings']} |")


def pack(build, archive):
    """The libFuzzer programs without their symbols, and the list of them. The other two go through Python."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive, "w:gz") as out:
        for line in (build / LIST).read_text().splitlines():
            name = line.split()[0]
            subprocess.check_call(["strip", "-o", f"{folder}/{name}", build / "tests/fuzz" / name])
            out.add(f"{folder}/{name}", f"tests/fuzz/{name}")
        out.add(build / LIST, LIST)
    print(f"{archive}: {archive.stat().st_size / 2**20:.1f} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--runs", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=int, default=0, help="of the whole campaign, by the clock; 0: no limit")
    parser.add_argument("--slice-seconds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1, help="slices at once")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--pack", type=Path, help="only put the stripped programs into this archive")
    arguments = parser.parse_args()
    if arguments.pack:
        pack(arguments.build, arguments.pack)
        return 0
    targets = read_targets(arguments.build, arguments.runs, arguments.only)
    try:
        run_all(targets, arguments)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
    print("\n".join(table(targets)))
    return 1 if any(target.state["findings"] for target in targets) else 0


if __name__ == "__main__":
    sys.exit(main())
