"""Writes C functions that stand for those of CANN which a wheel of torch_npu asks for and the fakes do not play.

    python3 make_stubs.py runtime OUT.cc FAKE_OBJECT... -- TORCH_NPU_FOLDER
    python3 make_stubs.py opapi   OUT.cc FAKE_OBJECT... -- TORCH_NPU_FOLDER

`runtime`: the functions of CANN that torch_npu's libraries link; the stubs answer 0. `opapi`: the operators (aclnn...)
that they name; a stub says its name and answers an error, since an operator that is missing would be computed by the
older path, in silence.
"""

import re
import subprocess
import sys
from pathlib import Path

CANN = re.compile(r"^(acl[a-z]*[A-Z]|rt[A-Z]|Hccl[A-Z]|Msprof)\w*$")
OPERATOR = re.compile(rb"\b(aclnn[A-Z]\w+)\0")


def symbols(file, option):
    lines = subprocess.run(["nm", option, file], check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.strip() and not line.endswith(":")}


def linked(folder):
    names = set()
    for library in folder.rglob("*.so"):
        names |= symbols(library, "-uD")
    return {name for name in names if CANN.match(name)}


def named_operators(folder):
    names = set()
    for library in (folder / "lib").glob("libtorch_npu.so"):
        names |= {name.decode() for name in OPERATOR.findall(library.read_bytes())}
    return {name for name in names if not name.endswith("GetWorkspaceSize")}


def main():
    kind, out, *rest = sys.argv[1:]
    objects, folder = rest[: rest.index("--")], Path(rest[-1])
    defined = set().union(*(symbols(file, "--defined-only") for file in objects))
    wanted = (linked(folder) if kind == "runtime" else named_operators(folder)) - defined
    lines = ["#include <cstdio>", 'extern "C" {']
    for name in sorted(wanted):
        if kind == "runtime":
            lines.append(f"long {name}() {{ return 0; }}")
            continue
        lines.append(f'int {name}GetWorkspaceSize() {{ std::fputs("fake_opapi: no {name}\\n", stderr); return 161002; }}')
        lines.append(f"int {name}() {{ return 161002; }}")
    Path(out).write_text("\n".join(lines) + "\n}\n")
    print(f"{out}: {len(wanted)} stubs")


main()
