"""Hosts for tests and benches: network namespaces of this machine on one switch. A program started on one has a /tmp of its
own, as machines have. Needs root and network namespaces."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import time


class NotAllowed(Exception):
    pass


def ip(*words, check=True):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check).stdout


class Hosts:
    """Host i has the address 10.79.0.(i + 1) at eth0. `rate`: what its cable carries in each direction, as tc writes it
    ("1gbit"); none: what the kernel can."""

    def __init__(self, count, rate=None):
        own = os.getpid()
        self.switch, self.names = f"tandem_s_{own}", [f"tandem_{i}_{own}" for i in range(count)]
        try:
            ip("netns", "add", self.switch)
            ip("-n", self.switch, "link", "add", "hub", "type", "bridge")
            ip("-n", self.switch, "link", "set", "hub", "up")
            for i, host in enumerate(self.names):
                port = f"port{i}"
                ip("netns", "add", host)
                ip("link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", port, "netns", self.switch)
                ip("-n", self.switch, "link", "set", port, "master", "hub")
                ip("-n", self.switch, "link", "set", port, "up")
                ip("-n", host, "addr", "add", f"10.79.0.{i + 1}/24", "dev", "eth0")
                for link in ("lo", "eth0"):
                    ip("-n", host, "link", "set", link, "up")
                for namespace, link in ((host, "eth0"), (self.switch, port)) if rate else ():
                    subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", link, "root", "tbf", "rate", rate, "burst",
                                    "1mb", "latency", "100ms"], check=True, capture_output=True)  # fmt: skip
            self.keepers = [self._keeper_of(host) for host in self.names]
        except (OSError, subprocess.CalledProcessError) as error:
            self.clean_up()
            raise NotAllowed(f"network namespaces are not allowed here ({error})") from error

    @staticmethod
    def _keeper_of(host):
        """A process that keeps the host's namespaces, in which its others are started."""
        keeper = subprocess.Popen(["ip", "netns", "exec", host, "unshare", "--mount", "sh", "-c",
                                   "mount -t tmpfs tmpfs /tmp && echo ready && exec sleep infinity"],
                                  stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)  # fmt: skip
        if keeper.stdout.readline() != b"ready\n":
            raise OSError("a mount namespace")
        return keeper

    def clean_up(self):
        for name in [*self.names, self.switch]:
            for process in ip("netns", "pids", name, check=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            ip("netns", "del", name, check=False)

    def start(self, host, log, words, **variables):
        """A process whose `log` is the path of all that it says."""
        with open(log, "w") as file:
            process = subprocess.Popen(
                ["nsenter", "--target", str(self.keepers[host].pid), "--mount", "--net", f"--wd={os.getcwd()}", *map(str, words)],
                stdout=file, stderr=file, env={**os.environ, "OMP_WAIT_POLICY": "passive", **variables})  # fmt: skip
        process.log = pathlib.Path(log)
        return process

    def cut(self, host):
        ip("-n", self.names[host], "link", "set", "eth0", "down")

    def sent_bytes(self, host):
        words = ["ip", "netns", "exec", self.names[host], "cat", "/proc/net/dev"]
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        return int(re.search(r"eth0:(.*)", text)[1].split()[8])


def wait_for(process, pattern, patience_s=180):
    end = time.monotonic() + patience_s
    while not re.search(pattern, process.log.read_text()):
        if time.monotonic() > end or process.poll() is not None:
            raise AssertionError(f"no {pattern!r} in {process.log}:\n{process.log.read_text()[-3000:]}")
        time.sleep(0.02)
