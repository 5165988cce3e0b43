"""Runs the fuzz targets of the preset `fuzz` one after the other and writes what each has done: `make fuzz`.

    python tests/fuzz/campaign.py BUILD [--runs N] [--seconds S] [--jobs J] [--only NAME ...] [--slice-seconds S]

BUILD is the build folder. A target ends at N executions (the text worker at N / 100, the differential at N / 10), or
after S seconds of its own. Work goes in slices, J at once, to the target that has the most left to do. BUILD/campaign
keeps totals, corpora and what was found: an interrupted campaign goes on where it was, unless the program has changed.
Exit code 1: something was found.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

# Inputs are small, since what is behind long ones is a matter of counts, which large_input_test.cc asks.
LIBFUZZER = ["-max_len=512", "-timeout=10", "-rss_limit_mb=1024", "-malloc_limit_mb=256", "-print_final_stats=1"]
# Faster, and what they leave out does not find bugs: bookkeeping of rare features, ever smaller inputs.
LIBFUZZER += ["-entropic=0", "-reduce_inputs=0", "-reload=0", "-len_control=0"]
LIBFUZZER += ["-dict=tests/fuzz/words.dict"]
SANITIZERS = "malloc_context_size=4:quarantine_size_mb=8:detect_leaks=1"
INTERRUPTED = 72  # how libFuzzer ends at Ctrl-C
CHUNK = {"fuzz_text_worker": 5000, "fuzz_safetensors_differential": 50000}


class Target:
    """One program, its goal, and the totals so far."""

    def __init__(self, build, name, seeds, goal):
        self.name, self.seeds, self.goal = name, seeds, goal
        self.folder = build / "campaign"
        program = "safetensors_mutants" if name == "fuzz_safetensors_differential" else name
        self.program = build / "tests/fuzz" / program
        self.sha = hashlib.sha256(self.program.read_bytes()).hexdigest()
        self.state_path = self.folder / f"{name}.json"
        self.lock, self.running = threading.Lock(), 0
        self.state = {"sha": self.sha, "executions": 0, "seconds": 0.0, "slices": 0, "findings": 0}
        if self.state_path.exists():
            kept = json.loads(self.state_path.read_text())
            if kept["sha"] == self.sha:
                self.state = kept

    def is_done(self, seconds):
        state = self.state
        is_timed_out = seconds and state["seconds"] >= seconds
        return state["findings"] > 0 or state["executions"] >= self.goal or is_timed_out

    def share_done(self):
        return self.state["executions"] / self.goal

    def command(self, slice_seconds, seed):
        left = self.goal - self.state["executions"]
        if self.name == "fuzz_text_worker":
            return [self.program, "--runs", min(left, CHUNK[self.name]), "--seed", seed]
        if self.name == "fuzz_safetensors_differential":
            script = Path(__file__).with_name("safetensors_differential.py")
            count = min(left, CHUNK[self.name])
            return [sys.executable, "-B", script, self.program, "--count", count, "--seed", seed]
        corpus = self.folder / "corpus" / self.name
        corpus.mkdir(parents=True, exist_ok=True)
        return [self.program, f"-seed={seed}", f"-runs={left}", f"-max_total_time={slice_seconds}", *LIBFUZZER,
                f"-artifact_prefix={self.folder}/found-{self.name}-", corpus, *self.seeds]

    def run(self, slice_seconds):
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.lock:
            self.state["slices"] += 1
            seed = self.state["slices"]
        log_path = self.folder / f"{self.name}-{seed}.log"
        start = time.monotonic()
        environment = {**os.environ, "ASAN_OPTIONS": SANITIZERS, "UBSAN_OPTIONS": "print_stacktrace=1"}
        command = [str(word) for word in self.command(slice_seconds, seed)]
        with open(log_path, "wb") as log:
            code = subprocess.call(command, stdout=log, stderr=log, env=environment)
        text = log_path.read_text(errors="replace")
        patterns = (r"stat::number_of_executed_units: (\d+)", r"(?m)^(\d+) calls of", r" in (\d+) mutants")
        counts = [int(match[1]) for pattern in patterns if (match := re.search(pattern, text))]
        with self.lock:
            self.state["executions"] += counts[0] if counts else 0
            self.state["seconds"] += time.monotonic() - start
            if code in (0, INTERRUPTED):
                log_path.unlink()
            else:
                self.state["findings"] += 1
                log_path = log_path.rename(self.folder / f"found-{self.name}-{seed}.log")
                print(f"{self.name}: exit code {code}, see {log_path}", file=sys.stderr, flush=True)
            self.state_path.write_text(json.dumps(self.state))

    def num_corpus_files(self):
        own = self.folder / "corpus" / self.name
        return sum(1 for folder in [own, *map(Path, self.seeds)] if folder.is_dir() for _ in folder.iterdir())


def read_targets(build, runs, only):
    lines = (build / "tests/fuzz/targets.txt").read_text().splitlines()
    goals = [(words[0], words[1:], runs) for words in map(str.split, lines)]
    goals += [("fuzz_text_worker", [], max(1, runs // 100)), ("fuzz_safetensors_differential", [], max(1, runs // 10))]
    return [Target(build, *goal) for goal in goals if not only or goal[0].removeprefix("fuzz_") in only]


def run_all(targets, arguments):
    running = {}  # slice -> its target
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        while True:
            waiting = [target for target in targets if not target.is_done(arguments.seconds)]
            while waiting and len(running) < arguments.jobs:
                target = min(waiting, key=lambda target: (target.running, target.share_done()))
                target.running += 1
                running[pool.submit(target.run, arguments.slice_seconds)] = target
            if not running:
                return
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for slice in done:
                running.pop(slice).running -= 1
                slice.result()


def table(targets):
    yield "| target | executions | of | seconds | per second | crashes, hangs, leaks | corpus |"
    yield "|---|---|---|---|---|---|---|"
    for target in targets:
        state = target.state
        rate = state["executions"] / state["seconds"] if state["seconds"] else 0
        corpus = target.num_corpus_files() or "drawn"
        yield (f"| `{target.name}` | {state['executions']:,} | {target.goal:,} | {state['seconds']:.0f} | {rate:.0f} | "
               f"{state['findings']} | {corpus} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--runs", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=int, default=0, help="of each target, summed over jobs; 0: no limit")
    parser.add_argument("--slice-seconds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1, help="slices at once")
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    targets = read_targets(arguments.build, arguments.runs, arguments.only)
    try:
        run_all(targets, arguments)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
    print("\n".join(table(targets)))
    return 1 if any(target.state["findings"] for target in targets) else 0


if __name__ == "__main__":
    sys.exit(main())
