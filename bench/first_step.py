"""Seconds from nothing to the first trained step with a wheel: the environment, pip, compiling, the first run.

    python3 bench/first_step.py DIST [--wheels FOLDER] [--rounds 2]

DIST holds what `make wheel` wrote. FOLDER holds the wheels that it needs, so that nothing is downloaded:
    pip download --no-deps -r DIST/requirements-cpu.txt -d FOLDER
Runs packaging/install.sh and packaging/first_step.sh as they are, with a clock before each of their commands."""

import argparse
import os
import pathlib
import re
import resource
import subprocess
import tempfile

import machine

# The commands that take time, by what their line in a trace of bash has.
PARTS = {
    r"python3 -m venv ": "the environment: `python3 -m venv`",
    r"/bin/pip install ": "`pip install`, with nothing compiled",
    r" -m compileall ": "compiling Python, on all cores",
    r"/make_problems\.py ": "making the data",
    r"/bin/tandem train ": "`tandem train`: start, one step, checkpoint and export",
}


def traced(*command, environment):
    """Seconds of each command of a script of bash, by the line that ran it."""
    # Bash of root takes no PS4 from the environment.
    with_clock = 'PS4="+ @\\$EPOCHREALTIME "; set -x; source "$0" "$@"'
    done = subprocess.run(["bash", "-c", with_clock, *map(str, command)], cwd=machine.ROOT, env=environment,
                          stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{command[0]}: exit code {done.returncode}: {done.stderr[-2000:]}")
    lines = re.findall(r"^\++ @([\d.]+) (.*)$", done.stderr, re.M)
    return [(line, float(after[0]) - float(time)) for (time, line), after in zip(lines, lines[1:])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dist", type=pathlib.Path)
    parser.add_argument("--wheels", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    environment = dict(os.environ)
    if args.wheels:
        environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(args.wheels.resolve())}
    print(machine.describe())
    for number in range(args.rounds):
        load, before = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            steps = traced("packaging/install.sh", "cpu", args.dist.resolve(), place / "environment", environment=environment)
            steps += traced("packaging/first_step.sh", place / "environment", place / "run", environment=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"\nround {number + 1}, load {load:.1f} before\n\n| part | s |\n|---|---|")
        total = 0.0
        for pattern, part in PARTS.items():
            seconds = sum(took for line, took in steps if re.search(pattern, line))
            total += seconds
            print(f"| {part} | {seconds:.1f} |")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"| all | {total:.1f} |\n| of the processor, user and kernel | {cpu:.1f} |")


if __name__ == "__main__":
    main()
