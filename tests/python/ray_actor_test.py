"""An actor of python -m tandem.ray and its driver, with a stub in Ray's place: the environment in which an actor starts the
program, and what becomes of lines that nobody can be shown. ray_test.py has whole runs on a cluster."""

import contextlib
import importlib
import io
import os
import pathlib
import queue
import shutil
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

REPOSITORY = pathlib.Path.cwd()
PROGRAM = """#!/bin/sh
env
"""


def stub_of_ray():
    """The modules that tandem.ray imports of Ray. A stream of an actor is a list."""
    ray, util, groups, strategies = (types.ModuleType(name) for name in (
        "ray", "ray.util", "ray.util.placement_group", "ray.util.scheduling_strategies"))  # fmt: skip
    ray.get = lambda value: value
    ray.exceptions = types.SimpleNamespace(RayError=type("RayError", (Exception,), {}))
    groups.PlacementGroup = groups.placement_group = groups.remove_placement_group = None
    strategies.PlacementGroupSchedulingStrategy = None
    return {module.__name__: module for module in (ray, util, groups, strategies)}


class WithoutRay(unittest.TestCase):
    """With a package as a wheel installs it, and torch in another folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        package, self.torch = self.folder / "site/tandem", self.folder / "other/torch"
        shutil.copytree(REPOSITORY / "python/tandem", package)
        (package / "bin").mkdir()
        (package / "bin/tandem").write_text(PROGRAM)
        (package / "bin/tandem").chmod(0o755)
        (self.torch / "lib").mkdir(parents=True)
        (self.torch / "__init__.py").touch()
        paths = [str(self.folder / "site"), str(self.folder / "other"), *sys.path]
        kept = {name: module for name, module in sys.modules.items() if not name.startswith(("tandem", "torch"))}
        for patch in (mock.patch.object(sys, "path", paths), mock.patch.dict(os.environ),
                      mock.patch.dict(sys.modules, {**kept, **stub_of_ray()}, clear=True)):  # fmt: skip
            patch.start()
            self.addCleanup(patch.stop)
        self.ray = importlib.import_module("tandem.ray")

    def test_the_program_gets_the_libraries_of_torch_and_no_variable_of_a_launcher(self):
        of_launchers = {"OMP_NUM_THREADS": "1", "SLURM_PROCID": "3", "RANK": "7", "MASTER_ADDR": "x", "RAY_ADDRESS": "y"}
        os.environ.update(of_launchers, LD_LIBRARY_PATH="/opt/site/lib", OF_THE_MACHINE="here")
        os.environ.pop("OF_THE_DRIVER", None)
        given = {"OF_THE_DRIVER": "there", "OF_THE_MACHINE": "there", "LD_LIBRARY_PATH": "/opt/driver/lib"}
        actor = self.ray._Host(given, str(self.folder), "CPU")
        *lines, code = actor.run(["train"], "secret", {"CUDA_VISIBLE_DEVICES": "2"})
        self.assertEqual(code, 0)
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
        first, *_, last = variables["LD_LIBRARY_PATH"].split(":")
        self.assertEqual((first, last), (str(self.torch / "lib"), "/opt/site/lib"))
        self.assertEqual([name for name in of_launchers if name in variables], [])
        found = [variables.get(name) for name in ("OF_THE_DRIVER", "OF_THE_MACHINE", "CUDA_VISIBLE_DEVICES")]
        self.assertEqual(found, ["there", "here", "2"])

    def follow(self, stream, stdout):
        """The member of an actor whose process says what the stream has, once it has ended."""
        events = queue.Queue()
        method = mock.Mock()
        method.options.return_value.remote.return_value = stream
        member = self.ray._Member("host 0", types.SimpleNamespace(run=method), events)
        with mock.patch.object(sys, "stdout", stdout), mock.patch.object(threading, "excepthook", lambda _: None):
            member.start([], "", {})
            self.assertIs(events.get(timeout=10), member)
        return member

    def test_a_process_ends_for_the_driver_also_if_nobody_can_be_shown_its_lines(self):
        reader, writer = os.pipe()
        os.close(reader)
        closed = open(os.devnull, "w")
        closed.close()
        for stdout in (open("/dev/full", "w", buffering=1), open(writer, "w", buffering=1), closed, None):
            member = self.follow(["a line", "tandem: error: too little memory", "another line", 2], stdout)
            self.assertEqual(member.code, 2)
            self.assertEqual(member.end(), "host 0 ended with code 2: too little memory")
            with contextlib.suppress(OSError, AttributeError):  # what it could not write is still in its buffer
                stdout.close()

    def test_a_restart_is_told_what_was_saved_before_the_first_start(self):
        program = self.folder / "site/tandem/bin/tandem"
        program.write_text('#!/bin/sh\necho "{\\"saved\\": \\"run\\", \\"train\\": [\\"$*\\"]}"\n')
        actor = self.ray._Host({}, str(self.folder), "CPU")
        self.assertEqual(actor.saved(["train", "--save", "x"]), "run")
        self.assertEqual(actor.words_of_restart(["train", "--save", "x"], "run"),
                         ["placement --restart --saved-before run train --save x"])  # fmt: skip
        program.write_text("#!/bin/sh\necho 'tandem: error: no such model' >&2\nexit 2\n")
        self.assertIsNone(actor.saved(["train", "--save", "x"]), "the run itself says so")

    def test_an_actor_ends_for_the_driver_whatever_its_lines_end_with(self):
        def stream():
            yield "a line"
            raise ValueError("not of Ray")

        self.assertEqual(self.follow(stream(), None).code, 3)

    def test_an_engine_that_finds_no_machine_is_tried_again(self):
        """Its actor may die before it says where it is: the engine once was gone for the rest of the run."""
        spec = {"hosts": 1, "devices_per_engine": 1, "verb": "train", "join": [], "visible_devices": ""}
        attempt = self.ray._Attempt(spec, [], None, lambda: False)
        attempt._door = "10.0.0.1:1"
        attempt._engines[0] = types.SimpleNamespace(actor="the old one")
        attempt._starts[0] = 1
        lost, found = mock.Mock(), mock.Mock()
        lost.place.remote.side_effect = self.ray.ray.exceptions.RayError()
        found.place.remote.return_value = ("node", "10.0.0.2", [])
        found.run.options.return_value.remote.return_value = ["a line", 0]
        with mock.patch.object(attempt, "_actor", side_effect=[lost, found]), \
                mock.patch.object(self.ray.ray, "kill", create=True), \
                mock.patch.object(sys, "stderr", io.StringIO()) as said, mock.patch.object(sys, "stdout", io.StringIO()):
            for is_tried_again in (True, False):
                before = time.monotonic()
                attempt._replace_engine(0)
                self.wait_until(lambda: attempt._due if is_tried_again else attempt._engines[0].actor is found)
                if is_tried_again:
                    [(when, engine)] = attempt._due
                    self.assertEqual(engine, 0)
                    self.assertGreater(when, before + 1.0, "a cluster without a machine is not asked all the time")
                    attempt._due.clear()
            self.assertEqual(attempt._due, [])
            self.assertIs(attempt._events.get(timeout=10), attempt._engines[0])
        self.assertIn("engine 0 has no machine (RayError)", said.getvalue())

    def wait_until(self, is_true):
        for _ in range(1000):
            if is_true():
                return
            time.sleep(0.01)
        self.fail("it waited in vain")


if __name__ == "__main__":
    unittest.main()
