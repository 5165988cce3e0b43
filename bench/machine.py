"""What every figure carries: machine, commit, build type, and the share of the machine that others were using."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers" / "bin" / "python"


def _first(path, key):
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        if line.startswith(key):
            return line.split(":", 1)[1].strip()
    return "unknown"


def describe(build="release"):
    flags = _first("/proc/cpuinfo", "flags").split()
    isa = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return {
        "processor": _first("/proc/cpuinfo", "model name"),
        "isa": isa,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": [round(x, 2) for x in os.getloadavg()],
        "commit": commit or "unknown",
        "build": build,
    }


def tandem(build="release"):
    return str(ROOT / "build" / build / "src" / "cli" / "tandem")


def peer(script, *arguments, environment=None):
    """The JSON that bench/peers/SCRIPT prints last, or None, said on stderr, where it fails."""
    result = subprocess.run([str(PEERS), str(ROOT / "bench" / "peers" / script), *map(str, arguments)], capture_output=True, text=True,
                            env={**os.environ, **(environment or {}), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"})
    if result.returncode != 0:
        print(f"{script}: left out, exit code {result.returncode}: {result.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    return json.loads(result.stdout.strip().splitlines()[-1])
