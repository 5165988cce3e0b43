#!/usr/bin/env python3
"""Writes the graph of docs/figures/modules.svg: the modules of src, and an arrow from each to those that it includes.

    python3 tools/modules_figure.py | dot -Tsvg >docs/figures/modules.svg

Arrows between modules that a longer way of arrows joins are left out. Modules that need no LibTorch are grey. dot is
Graphviz's; the figure is kept, so nothing else needs it.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'#include "(\w+)/')
TARGET = re.compile(r"tandem_module\(\w+( CORE)?")


def read_includes() -> dict[str, set[str]]:
    """Returns which other modules each one includes."""
    includes: dict[str, set[str]] = {folder.name: set() for folder in (ROOT / "src").iterdir() if folder.is_dir()}
    for path in (ROOT / "src").rglob("*.[ch]*"):
        module = path.relative_to(ROOT / "src").parts[0]
        includes[module] |= set(INCLUDE.findall(path.read_text())) & set(includes) - {module}
    return includes


def is_without_torch(module: str) -> bool:
    targets = TARGET.findall((ROOT / "src" / module / "CMakeLists.txt").read_text())
    return all(core != "" for core in targets)


def reachable(includes: dict[str, set[str]], module: str) -> set[str]:
    found: set[str] = set()
    waiting = list(includes[module])
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            waiting += includes[one]
    return found


def without_detours(includes: dict[str, set[str]]) -> dict[str, set[str]]:
    """Returns the includes without those that a longer way joins too."""
    below = {module: reachable(includes, module) for module in includes}
    return {
        module: {one for one in ones if not any(one in below[other] for other in ones)}
        for module, ones in includes.items()
    }


def main() -> int:
    includes = read_includes()
    print(
        "digraph modules {\n"
        '  graph [tooltip="The modules of src, and who includes whom" bgcolor=white ranksep=0.4 nodesep=0.3]\n'
        '  node [shape=box style="rounded,filled" fontname="sans-serif" fontsize=14 color="#444444" height=0.5 width=1.2]\n'
        '  edge [color="#444444" arrowsize=0.8]'
    )
    for module in sorted(includes):
        print(f'  {module} [fillcolor="{"#f4f4f4" if is_without_torch(module) else "#dbe9f6"}"]')
    for module, ones in sorted(without_detours(includes).items()):
        for one in sorted(ones):
            print(f"  {module} -> {one}")
    print("}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
