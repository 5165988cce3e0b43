"""What is told of a wheel before pip takes it to another system, and that images are installed by the script that was tried.

    python3 -B tests/tools/packaging_test.py [PROGRAM]

PROGRAM is the tandem of this build: it may need no newer functions than the oldest system that wheels are for has. A
system newer than Debian 12 compiles in newer ones, and there that is not asked.
"""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import wheel_needs

PROGRAM = Path(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None


class Asked:
    """A Needs with these answers, without a program."""

    def __init__(self, versions=None, libraries=(), folders=()):
        self.versions, self.libraries, self.folders = versions or {}, libraries, folders

    too_new_for = wheel_needs.Needs.too_new_for


def tell(*paths):
    """(exit code, standard output, stderr) of tools/wheel_needs.py."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = wheel_needs.main([str(path) for path in paths])
    return code, output.getvalue(), errors.getvalue()


class WheelNeeds(unittest.TestCase):
    def test_a_tag_names_the_systems_that_pip_installs_it_on(self):
        every = list(wheel_needs.SYSTEMS)
        self.assertEqual(wheel_needs.systems_of_tag("tandem-0.1.0-py3-none-manylinux_2_35_x86_64.whl"), every)
        self.assertEqual(wheel_needs.systems_of_tag("tandem-0.1.0-py3-none-manylinux_2_39_x86_64.whl"),
                         ["Ubuntu 24.04", "Debian 13"])
        self.assertEqual(wheel_needs.systems_of_tag("tandem-0.1.0-py3-none-manylinux_2_42_x86_64.whl"), [])
        self.assertIsNone(wheel_needs.systems_of_tag("tandem-0.1.0-py3-none-linux_x86_64.whl"))

    def test_what_does_not_start_on_a_system_is_a_fault(self):
        every = list(wheel_needs.SYSTEMS)
        newest_of_22_04 = {"GLIBC": (2, 35), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13)}
        for needs, systems, says in [
            (Asked(newest_of_22_04, ["libc.so.6", "libtorch_cpu.so", "libssl.so.3"], ["$ORIGIN/../../torch/lib"]), every, []),
            (Asked({"GLIBC": (2, 38)}), every, ["GLIBC_2.38, which Ubuntu 22.04", "GLIBC_2.38, which Debian 12"]),
            (Asked({"GLIBC": (2, 38)}), every[2:], []),
            # Debian 13's compiler asks for this one beside a glibc of 2.34: the name's glibc alone does not tell it.
            (Asked({"GLIBC": (2, 34), "GLIBCXX": (3, 4, 32)}), ["Ubuntu 22.04"], ["GLIBCXX_3.4.32, which Ubuntu 22.04"]),
            (Asked(libraries=["libtbb.so.12"]), every, ["libtbb.so.12"]),
            (Asked(folders=["/usr/x/.venv/torch/lib"]), every, ["/usr/x/.venv/torch/lib"]),
        ]:
            faults = list(wheel_needs.faults_of(needs, systems, True))
            self.assertEqual(len(faults), len(says), faults)
            for fault, text in zip(faults, says):
                self.assertIn(text, fault)

    def test_the_programs_of_a_wheel_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            honest, early, unnamed, empty = (Path(folder, f"x-1-py3-none-{tag}_x86_64.whl")
                                             for tag in ("manylinux_2_99", "manylinux_2_5", "linux", "manylinux_2_35"))
            for wheel in (honest, early, unnamed):
                with zipfile.ZipFile(wheel, "w") as archive:
                    archive.write("/usr/bin/env", "x/bin/env")
                    archive.writestr("x/__init__.py", "")
            zipfile.ZipFile(empty, "w").close()
            code, output, errors = tell(honest)
            self.assertEqual((code, errors), (0, ""))
            self.assertRegex(output, r"needs GLIBC 2\.\d+; for none of Ubuntu 22\.04, Debian 12")
            self.assertRegex(tell(unnamed)[2], "its name says no glibc")
            self.assertRegex(tell(empty)[2], "no program and no library in it")
            # Every function is of glibc 2.35 or older on the systems that tests run on, so what a system lacks is made up.
            oldest = wheel_needs.SYSTEMS["Ubuntu 22.04"]
            kept, oldest["GLIBC"] = oldest["GLIBC"], (2, 5)
            try:
                code, _, errors = tell(early)
            finally:
                oldest["GLIBC"] = kept
            self.assertEqual(code, 1)
            self.assertRegex(errors, r"x/bin/env needs GLIBC_2\.\d+, which Ubuntu 22\.04 does not have")

    @unittest.skipIf(PROGRAM is None, "no program was given")
    def test_the_program_asks_for_nothing_newer_than_the_oldest_system_has(self):
        glibc = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")))
        if glibc > wheel_needs.SYSTEMS["Debian 12"]["GLIBC"]:
            self.skipTest(f"glibc {wheel_needs.dotted(glibc)} of this system: a wheel for all is built on Debian 12")
        needs = wheel_needs.Needs(PROGRAM)
        self.assertIn("GLIBCXX", needs.versions)
        needs.libraries = [library for library in needs.libraries if not re.match(r"lib(a|ub)san\.", library)]
        self.assertEqual([fault for system in wheel_needs.SYSTEMS
                          for fault in wheel_needs.faults_of(needs, [system], False)], [])


def write_wheel(folder, name, version, files, entry_points=""):
    """A wheel of these files, as pip installs it."""
    info = f"{name}-{version}.dist-info"
    files = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
             f"{info}/entry_points.txt": entry_points}
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))


def steps_of_the_image():
    """The lines of the Dockerfile, each whole."""
    return re.sub(r"\\\n\s*", "", (ROOT / "packaging/Dockerfile").read_text()).splitlines()


class Images(unittest.TestCase):
    def test_are_made_of_pinned_bytes_and_run_as_a_user(self):
        lines = steps_of_the_image()
        (base,) = [line for line in lines if line.startswith("FROM ")]
        self.assertRegex(base, r"^FROM debian:trixie-\d{8}-slim@sha256:[0-9a-f]{64}$")
        user = lines.index("USER tandem")
        self.assertTrue(any(line.startswith("RUN useradd ") and " tandem " in line for line in lines[:user]))
        self.assertFalse([line for line in lines[user:] if line.startswith("RUN ")], "what installs is root's")
        self.assertIn('ENTRYPOINT ["tandem"]', lines)
        self.assertIn("ENV PATH=/opt/tandem/bin:$PATH", lines)

    def test_the_step_that_installs_runs(self):
        """The Dockerfile's own line, on wheels that stand for ours and for torch's, without a network."""
        (step,) = [line for line in steps_of_the_image() if line.startswith("RUN ") and "/opt/tandem" in line]
        command = re.sub(r"--mount=\S+", "", step.removeprefix("RUN "))
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            dist, environment = place / "dist", place / "opt/tandem"
            dist.mkdir()
            write_wheel(dist, "tandem", "0.1.0", {"tandem/__init__.py": "def main():\n    print('it runs')\n"},
                        "[console_scripts]\ntandem = tandem:main\n")
            libraries = {f"torch/lib/{name}.so": "" for name in ("libtorch_cpu", "libtorch_cuda", "libtorch_cuda_linalg")}
            write_wheel(dist, "torch", "2.11.0", {"torch/__init__.py": "", "torch/not_python.py": "{{ template }", **libraries})
            (dist / "requirements-cpu.txt").write_text("torch==2.11.0\n")
            for of_image, here in {"/usr/local/lib/tandem/install.sh": ROOT / "packaging/install.sh", "$VARIANT": "cpu",
                                   "/dist": dist, "/opt/tandem": environment}.items():
                self.assertIn(of_image, command)
                command = re.sub(rf"(?<!\S){re.escape(of_image)}(?!\S)", str(here), command)
            offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(dist)}
            done = subprocess.run(["sh", "-c", command], env=offline, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
            said = subprocess.run([environment / "bin/tandem"], capture_output=True, text=True)
            self.assertEqual((said.returncode, said.stdout), (0, "it runs\n"), said.stderr)
            installed = {str(path.relative_to(environment)).split("site-packages/")[-1]: path for path in environment.rglob("*")}
            # Workers write no compiled files, and the image's user cannot.
            self.assertTrue(any(re.match(r"tandem/__pycache__/__init__\..*\.pyc$", name) for name in installed))
            self.assertFalse(any(name.startswith("torch/__pycache__/") for name in installed))
            self.assertEqual([name for name in installed if name.startswith("torch/lib/")], ["torch/lib/libtorch_cpu.so"])

    def test_their_system_calls_are_enough_for_the_sandbox(self):
        profile = json.loads((ROOT / "packaging/seccomp.json").read_text())
        self.assertEqual(profile["defaultAction"], "SCMP_ACT_ALLOW")
        (refused,) = profile["syscalls"]
        self.assertEqual(refused["action"], "SCMP_ACT_ERRNO")
        names = refused["names"]
        self.assertEqual(names, sorted(set(names)))
        # The sandbox makes all of these calls (sandbox/kernel.py). It makes keyctl, too, which may be refused: it does
        # without a keyring.
        needed = {"unshare", "setns", "mount", "umount2", "mount_setattr", "prctl", "seccomp", "capset", "clone", "clone3",
                  "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "ioctl", "socket"}  # fmt: skip
        self.assertEqual(needed & set(names), set())
        self.assertLessEqual({"init_module", "kexec_load", "bpf", "perf_event_open", "keyctl", "open_by_handle_at"}, set(names))
        page = (ROOT / "docs/IMAGES.md").read_text()
        self.assertIn("--security-opt seccomp=packaging/seccomp.json --security-opt systempaths=unconfined", page)

    def test_install_by_the_script_that_was_tried(self):
        lines = steps_of_the_image()
        runs = [line for line in lines if line.startswith("RUN ")]
        self.assertEqual(len(runs), 3)
        script = "/usr/local/lib/tandem/install.sh"
        for run in runs:
            self.assertNotRegex(run, r"\b(pip|apt|apt-get) ")
        self.assertRegex(runs[0], rf"^RUN {script} system && ")
        self.assertRegex(runs[1], rf" {script} \$VARIANT /dist /opt/tandem$")
        self.assertIn(f"COPY packaging/install.sh {script}", lines)
        for name in ("Dockerfile", "try_system.sh"):
            self.assertIn("install.sh", (ROOT / "packaging" / name).read_text())
        # The context has what the commands read, and nothing else.
        ignore = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
        self.assertEqual(ignore, ["*", "!dist", "!packaging/install.sh"])

    def test_the_script_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            dist = Path(folder, "dist")
            dist.mkdir()
            environment = Path(folder, "environment")

            def refusal(*arguments):
                done = subprocess.run(["packaging/install.sh", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)
                return done.stderr

            self.assertIn("usage: packaging/install.sh", refusal())
            self.assertIn("usage: packaging/install.sh", refusal("cpu", dist))
            self.assertIn("usage: packaging/install.sh", refusal("gpu", dist, environment))
            self.assertIn(f"{dist} holds no wheel of tandem: make wheel writes it", refusal("cpu", dist, environment))
            (dist / "tandem-0.1.0-py3-none-manylinux_2_35_x86_64.whl").touch()
            self.assertIn("no wheel of tandem_cuda: make wheel-cuda writes it", refusal("cuda", dist, environment))
            (environment / "bin").mkdir(parents=True)
            (environment / "bin/tandem").touch()
            self.assertIn("has a Tandem already", refusal("cpu", dist, environment))
            (dist / "tandem-0.1.0-py3-none-manylinux_2_38_x86_64.whl").touch()
            self.assertIn("several wheels of tandem (", refusal("cpu", dist, environment))


if __name__ == "__main__":
    unittest.main()
