"""The limit of processes of a room. The kernel refuses one below 8 ids for each core, so it depends on the machine."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from tandem_worker import room  # noqa: E402


class LargestProcessId(unittest.TestCase):
    def test_leaves_room_for_the_processes_on_a_small_machine(self):
        for cores in ("0\n", "0-1\n", "0-44\n"):
            self.assertEqual(room.largest_process_id(64, cores), 364, cores)

    def test_is_what_the_kernel_takes_at_least_on_a_large_one(self):
        for cores, least in {"0-63\n": 512, "0-45\n": 368, "0-63,128-191\n": 1024, "0,2,4-97\n": 768}.items():
            self.assertEqual(room.largest_process_id(64, cores), least, cores)


if __name__ == "__main__":
    unittest.main()
