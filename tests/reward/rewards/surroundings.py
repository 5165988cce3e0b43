"""A verl function that needs what the sandbox may not have: its response says what. A variable that it looks for when it
is imported, too."""

import mmap
import os

FOLDER = os.getenv("FOLDER_OF_IMPORT")
GIB = 1 << 30
NORESERVE = 0x4000  # which the module has no name for before Python 3.13


def fill(block):
    for offset in range(0, len(block), 4096):
        block[offset] = 1
    return 1.0


def map_code():
    """Address space that is not its own, as the code of libraries is: more than any limit here."""
    block = mmap.mmap(-1, 64 * GIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE, prot=mmap.PROT_READ)
    return float(len(block) > 0)


NEEDS = {
    "key": lambda: float(os.environ["FOLDER_OF_A_TEST"]),
    "get": lambda: float(os.environ.get("FOLDER_OF_A_TEST")),
    "getenv": lambda: float(len(os.getenv("FOLDER_OF_A_TEST").strip())),
    "import": lambda: float(len(os.path.join(FOLDER, "x"))),
    "other_key": lambda: {}["FOLDER_OF_A_TEST"],
    "none": lambda: None + 1,
    "code": map_code,
    "own": lambda: fill(mmap.mmap(-1, GIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)),
    "list": lambda: float(len([0.0] * GIB)),
    "library": lambda: (_ for _ in ()).throw(ImportError("libx.so: failed to map segment from shared object")),
}


def score(data_source, solution_str, ground_truth):
    return NEEDS[solution_str]()


def without_lookups(data_source, solution_str, ground_truth):
    return float(None)
