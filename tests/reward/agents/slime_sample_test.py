"""What the user's files import: `from slime.utils.types import Sample` works without slime, and takes slime's own where
that is installed; slime's output of filters is there; a torch that cannot be imported has a hint."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PYTHON = str(pathlib.Path(__file__).resolve().parents[3] / "python")
IMPORTS = """
from tandem_worker.user_functions import slime_sample
slime_sample.stand_in_for_slime()
slime_sample.stand_in_for_slime()
from slime.utils.types import Sample
print(Sample is slime_sample.Sample)
"""


FILTER = """
from slime.rollout.filter_hub.base_types import DynamicFilterOutput

def plain(args, samples, **kwargs):
    return DynamicFilterOutput(keep=False, reason="too_hard", keep_when_insufficient=False)

def insufficient(args, samples, **kwargs):
    return DynamicFilterOutput(keep=False, keep_when_insufficient=not samples)

def always_insufficient(args, samples, **kwargs):
    return DynamicFilterOutput(keep=False, keep_when_insufficient=True)

def parameter(args, samples, keep_when_insufficient):
    return True

async def waits(args, samples):
    return True
"""
CALLS_FILTER = """
import json
from tandem_worker.outcomes import WrongType
from tandem_worker.protocol import UserFault
from tandem_worker.user_functions.group_filter import GroupFilter
try:
    call = GroupFilter(sys.argv[1], "metadata", {}, False).call([])
    print(json.dumps([call.values(call.start()), call.logs(0)]))
except (UserFault, WrongType) as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
"""
LOADS = """
import json
from tandem_worker.protocol import UserFault
from tandem_worker.user_functions.reward_file import load_function
try:
    load_function(sys.argv[1], sys.argv[2] == "sandboxed")
except UserFault as error:
    print(json.dumps(str(error)))
"""


def printed(script, path, *arguments):
    """What a script prints that imports from the folders in `path` first."""
    words = [sys.executable, "-B", "-c", f"import sys; sys.path[:0] = {path!r}\n{script}", *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def has_stand_in(folder):
    """Whether a function in the folder gets the stand-in."""
    return printed(IMPORTS, [folder, PYTHON]) == "True"


class SlimeSample(unittest.TestCase):
    def test_a_folder_of_slimes_name_is_not_slime(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertTrue(has_stand_in(folder))
            (pathlib.Path(folder) / "slime").mkdir()  # as a run saved to ./slime
            self.assertTrue(has_stand_in(folder))

    def test_slime_itself_is_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder) / "slime/utils"
            package.mkdir(parents=True)
            (package / "types.py").write_text("class Sample:\n    pass\n")
            self.assertFalse(has_stand_in(folder))


class Filters(unittest.TestCase):
    def test_keep_when_insufficient_is_refused_where_a_filter_asks_for_it(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "filter.py"
            path.write_text(FILTER)

            def said(name):
                return json.loads(printed(CALLS_FILTER, [PYTHON], f"{path}:{name}"))

            self.assertEqual(said("plain"), [[], {"columns": {"reason": "too_hard"}}])
            self.assertRegex(said("insufficient"), "^WrongType: keep_when_insufficient is not supported: a dropped")
            # A filter whose own text has keep_when_insufficient=True is refused as soon as it is loaded.
            refused = "^UserFault: .*:always_insufficient: keep_when_insufficient is not supported: a dropped group"
            self.assertRegex(said("always_insufficient"), refused)
            self.assertRegex(said("parameter"), r"^UserFault: .*:parameter: cannot be called with \(args, samples\);")
            self.assertRegex(said("waits"), "^UserFault: .*:waits: is async")


class Torch(unittest.TestCase):
    """A package that stands for a torch whose libraries are not there."""

    HINT = "is for the program alone: name an interpreter that has torch with --rm-python"

    def error_of(self, text, torch=None):
        """What is said of a user's file with that text, where torch/__init__.py has the text `torch`."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "reward.py"
            path.write_text(text)
            (path.parent / "torch").mkdir()
            (path.parent / "torch/__init__.py").write_text(torch or "")
            said = {printed(LOADS, [PYTHON], f"{path}:score", mode) for mode in ("sandboxed", "off")}
            self.assertEqual(len(said), 1)
            return json.loads(said.pop())

    def test_that_cannot_be_imported_has_a_hint(self):
        missing = "'libcufile.so.0: cannot open shared object file: No such file or directory'"
        for kind in ("ImportError", "OSError"):  # as torch's modules raise it, and as ctypes does
            said = self.error_of("import torch\n", f"raise {kind}({missing})\n")
            self.assertRegex(said, f"{kind}: libcufile.so.0: cannot open .*{self.HINT}$")
        wrapped = "try:\n    import torch\nexcept ImportError:\n    raise RuntimeError('no scores')\n"
        self.assertRegex(self.error_of(wrapped, f"raise ImportError({missing})\n"), f"no scores.*{self.HINT}$")

    def test_other_errors_have_none(self):
        for text in ("import torch\nimport only_there\n", "raise ImportError('libcufile.so.0: cannot open')\n"):
            self.assertNotIn("--rm-python", self.error_of(text))
        self.assertNotIn("--rm-python", self.error_of("import torch\n", "1 / 0\n"))
        late = "def compile():\n    import only_there\n"
        self.assertNotIn("--rm-python", self.error_of("import torch\ntorch.compile()\n", late), "torch is there")


if __name__ == "__main__":
    unittest.main()
