#!/usr/bin/env python3
"""Weights on their way to rollout workers of several hosts: network namespaces of this machine on one switch, each with a
/tmp of its own, as machines have. A run, two workers on each of two hosts, a third host that joins in the middle, and a
host whose cable is cut. The bytes that leave the run's host are counted, and its weights are those of a run alone.

    tests/rollout_worker/chain_of_hosts.py build/dev/src/cli/tandem
It needs root and network namespaces; where it may not have them it says so and ends with code 77.
"""

import contextlib
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import hosts as network

PROGRAM = os.path.abspath(sys.argv[1])
NUM_ROLLOUTS, JOINS_AT = 24, 8
RUN, A, B, C = range(4)


def weights_of(folder):
    (path,) = folder.glob("hf/latest/*.safetensors")
    return path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()


def main():
    try:
        hosts = network.Hosts(4)
    except network.NotAllowed as error:
        print(f"skipped: {error}")
        sys.exit(77)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, contextlib.ExitStack() as cleanup:
        cleanup.callback(hosts.clean_up)
        folder = pathlib.Path(name)
        (folder / "secret").write_text("a secret of the chain of hosts, 0123456789abcdef")
        (folder / "secret").chmod(0o600)
        subprocess.run([sys.executable, "examples/arithmetic/make_problems.py", name], check=True, capture_output=True)
        words = ["train", "--hf-checkpoint", "examples/arithmetic/checkpoint", "--prompt-data", f"{name}/train.jsonl",
                 "--rm-type", "exact", "--rollout-batch-size", "8", "--n-samples-per-prompt", "4", "--num-rollout",
                 str(NUM_ROLLOUTS), "--rollout-max-response-len", "8", "--lr", "1e-4", "--no-use-tensorboard",
                 "--num-threads", "1", "--sample-dump-interval", "0", "--rollout-health-check-timeout", "6"]  # fmt: skip
        alone = subprocess.run([PROGRAM, *words, "--colocate", "--save", f"{name}/alone"], capture_output=True, text=True)
        assert alone.returncode == 0, alone.stderr
        words += ["--rollout-num-gpus", "0", "--save", f"{name}/run"]
        secret = {"TANDEM_SECRET_FILE": f"{name}/secret"}
        run = hosts.start(RUN, folder / "run.log", [PROGRAM, *words, "--rollout-listen", "29600", "--network-interface", "eth0"], **secret)
        join = [PROGRAM, *words, "--rollout-join-address", "10.79.0.1:29600"]
        workers = [hosts.start(host, folder / f"{host}-{i}.log", join, **secret) for host in (A, B) for i in (0, 1)]
        network.wait_for(run, r"(?s)(has joined.*){4}")
        network.wait_for(run, r"rollout \d+/")
        first, before = max(map(int, re.findall(r"rollout (\d+)/", run.log.read_text()))), hosts.sent_bytes(RUN)
        network.wait_for(run, f"rollout {first + 4}/")
        size, per_update = weights_of(folder / "alone")[0], (hosts.sent_bytes(RUN) - before) / 4
        print(f"4 workers on 2 hosts: {per_update / size:.3f} times the weights leave the run's host an update "
              f"({per_update:,.0f} of {size:,} bytes); one after the other it would be 4")  # fmt: skip
        assert 0.5 < per_update / size < 1.4, "weights leave the run's host more than once"
        network.wait_for(run, f"rollout {JOINS_AT}/")
        workers += [hosts.start(C, folder / f"{C}-{i}.log", join, **secret) for i in (0, 1)]
        network.wait_for(run, r"(?s)(has joined.*){6}")
        hosts.cut(B)
        begin = time.monotonic()
        code = run.wait(timeout=180)
        text = run.log.read_text()
        assert code == 0, text[-3000:]
        lost = re.findall(r"warning: (rollout worker .*?: .*)", text)
        print(f"the cable of a host with 2 workers is cut: the run ends {time.monotonic() - begin:.1f} s later")
        print(*lost, sep="\n")
        assert len(lost) == 2, text[-3000:]
        assert weights_of(folder / "run") == weights_of(folder / "alone"), "the weights are not those of a run alone"
        for worker in workers[:2] + workers[4:]:
            assert worker.wait(timeout=30) == 0, worker.log.read_text()
    print("passed")


if __name__ == "__main__":
    main()
