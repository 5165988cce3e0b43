#!/usr/bin/env python3
"""Which systems a wheel runs on, by the versions of functions and the libraries that its programs ask for.

    python3 tools/wheel_needs.py WHEEL...
    python3 tools/wheel_needs.py PROGRAM...

Prints a line for each. Exit code 1, and one line for each fault, if pip would install the wheel on one of SYSTEMS where
its programs do not start: its name says an older glibc than they need, they need a newer libstdc++ than the oldest of
these systems has, a library that neither the systems nor the wheels that ours asks for bring, or a folder of the machine
that built them. A PROGRAM is asked as if it were in a wheel for the oldest of the systems. Needs readelf.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The systems that wheels are promised for, oldest glibc first, and the newest versions that their libraries have (read off
# libc.so.6, libstdc++.so.6 and libgcc_s.so.1 of the releases as they were published).
SYSTEMS = {
    "Ubuntu 22.04": {"GLIBC": (2, 35), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
    "Debian 12": {"GLIBC": (2, 36), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
    "Ubuntu 24.04": {"GLIBC": (2, 39), "GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14, 0, 0)},
    "Debian 13": {"GLIBC": (2, 41), "GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14, 0, 0)},
}
# What a system has where Python is installed, and the libraries of torch's wheel and of those that it asks for.
LIBRARIES = re.compile(
    r"lib(c|m|stdc\+\+|gcc_s|dl|pthread|rt|z|ssl|crypto)\.so\.\d+|ld-linux-.*|"
    r"lib(torch|c10)\w*\.so|libgomp\S*|lib(cudart|cublasLt)\.so\.\d+")
ELF = b"\x7fELF"


def dotted(version):
    return ".".join(map(str, version))


class Needs:
    """What the dynamic loader is asked for by one program or library."""

    def __init__(self, path):
        text = subprocess.run(["readelf", "--wide", "--dynamic", "--version-info", path], check=True, capture_output=True,
                              text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}).stdout
        self.libraries = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
        self.folders = [folder for found in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", text)
                        for folder in found.split(":") if folder]
        self.versions = {}  # family -> newest version
        for family, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)\b", text):
            found = tuple(map(int, version.split(".")))
            self.versions[family] = max(found, self.versions.get(family, ()))

    def too_new_for(self, system):
        return [f"{family}_{dotted(version)}" for family, version in self.versions.items()
                if version > SYSTEMS[system][family]]


def systems_of_tag(name):
    """The systems on which pip installs a wheel of this name, or None if its name says no glibc."""
    found = re.search(r"manylinux_(\d+)_(\d+)_", name)
    if not found:
        return None
    return [system for system, has in SYSTEMS.items() if has["GLIBC"] >= tuple(map(int, found.groups()))]


def faults_of(needs, systems, is_installed):
    """Why a program does not start on these systems. is_installed: it lies where it will be used, so a path of the
    machine in it is a fault; a program of a build folder has some."""
    for system in systems:
        if too_new := needs.too_new_for(system):
            yield f"needs {', '.join(too_new)}, which {system} does not have: build it on an older system"
    for library in needs.libraries:
        if not LIBRARIES.fullmatch(library):
            yield f"needs {library}, which no system and no wheel that Tandem asks for brings"
    for folder in needs.folders:
        if is_installed and not folder.startswith("$ORIGIN"):
            yield f"looks for libraries in {folder}, a folder of the machine that built it"


def programs_of(wheel, folder):
    """(name, path) of each program and library of a wheel, unpacked into folder."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                is_elf = file.read(len(ELF)) == ELF
            if is_elf:
                yield name, Path(archive.extract(name, folder))


def look_at(path, folder):
    """The faults of a wheel or a program; prints what it needs."""
    if path.suffix == ".whl":
        systems = systems_of_tag(path.name)
        if systems is None:
            yield f"{path.name}: its name says no glibc (manylinux_2_NN): `make wheel` names it"
            return
        programs = list(programs_of(path, folder))
        if not programs:
            yield f"{path.name}: no program and no library in it"
    else:
        systems, programs = list(SYSTEMS), [(path.name, path)]
    newest = {}
    for name, program in programs:
        needs = Needs(program)
        for family, version in needs.versions.items():
            newest[family] = max(version, newest.get(family, ()))
        for fault in faults_of(needs, systems, path.suffix == ".whl"):
            yield f"{path.name}: {name} {fault}"
    print(f"{path.name}: needs {', '.join(f'{family} {dotted(newest[family])}' for family in sorted(newest))}; "
          f"for {', '.join(systems) or 'none of ' + ', '.join(SYSTEMS)}")


def main(arguments):
    if not arguments:
        print("wheel_needs: usage: python3 tools/wheel_needs.py WHEEL|PROGRAM...", file=sys.stderr)
        return 2
    faults = []
    for argument in arguments:
        with tempfile.TemporaryDirectory() as folder:
            faults += look_at(Path(argument), folder)
    for fault in faults:
        print(f"wheel_needs: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
