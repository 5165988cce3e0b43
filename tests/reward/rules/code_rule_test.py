"""The reward `code`: each shape of tests that data sets have, right and wrong programs, limits, and programs that attack
what tests them. In the sandbox and through the program it runs in graders_test.cc."""

import json
import os
import pathlib
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python"))
from tandem_worker.outcomes import BadLine  # noqa: E402
from tandem_worker.rules import code_rule, program, rules  # noqa: E402

RULE = rules.make("code")
SUM = "a, b = map(int, input().split())\nprint(a + b)"
ADD = "def add(a, b):\n    return a + b"


def graded(source, label, **metadata):
    sample = {"response": f"So:\n```python\n{source}\n```\n", "label": label, "own_metadata": metadata, "prompt_text": ""}
    value = RULE(sample)
    return value["score"], value["passed"]


def is_running(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


KODCODE = "from solution import add\n\ndef test_small():\n    assert add(1, 2) == 3\n\ndef test_list():\n    assert add([1], [2]) == [1, 2]\n"
RENAMED = "from solution import sum as total\nfrom math import inf\nassert total(1, inf) == 6 and sum([1, 2]) == 3"
SHAPES = {  # label, metadata, a right program, a wrong one
    "KodCode": (KODCODE, {}, ADD, "add = max"),
    "KodCode, renamed": (RENAMED, {}, "def sum(*x): return 6", "def sum(*x): return 3"),
    "KodCode, all": ("from solution import *\nassert add(1, 2) == 3", {}, ADD, "add = max"),
    "APPS": ({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}, {}, SUM, "print(3)"),
    "APPS, lines": ({"inputs": [["2", "1 2"]], "outputs": [["3"]]}, {}, "input()\n" + SUM, "print(4)"),
    "APPS, call": ({"fn_name": "add", "inputs": [[1, 2], [[1], [2]]], "outputs": [3, [[1, 2]]]}, {}, ADD, "add = max"),
    "verl, call": ({"fn_name": "add", "inputs": ["1\n2", "[1]\n[2]"], "outputs": ["3", "[1, 2]"]}, {}, ADD, "add = max"),
    "APPS, call of texts": ({"fn_name": "add", "inputs": [["1", "2"]], "outputs": ["12"]}, {}, ADD, "add = max"),
    "text of JSON": ('{"inputs": ["1 2"], "outputs": ["3"]}', {}, SUM, "print(4)"),
    "LiveCodeBench": ([{"input": "1 2", "output": "3", "testtype": "stdin"}], {}, SUM, "print('3 3')"),
    "LiveCodeBench, call": (
        [{"input": "1\n2", "output": "3", "testtype": "functional"}], {"func_name": "add"},
        "class Solution:\n    def add(self, a: List[int], b):\n        return a + b", "class Solution:\n    pass"),
    "DeepCoder": ([{"input": "1 2", "output": "3", "type": "stdin_stdout"}], {}, SUM, "exit(3)"),
    "PrimeIntellect": (
        [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3}], {}, ADD, "def add(a, b): return None"),
    "MBPP": (["assert add(1, 2) == 3", "assert add((1,), (2,)) == (1, 2)"], {}, ADD, "def add(a, b): return [a, b]"),
    "MBPP, imports": (
        ["assert math.isclose(half(3), 1.5, abs_tol=0.001)"], {"test_imports": ["import math"]},
        "def half(x): return x / 2", "def half(x): return x // 2"),
    "verl": ({"assert_case": ["assert set(f()) == {1, 2}"]}, {}, "def f(): return {2, 1}", "def f(): return 1"),
    "HumanEval": (
        "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert [candidate(i, i) for i in range(3)] == [0, 2, 4]\n",
        {"entry_point": "add"}, ADD, "def add(a, b): return 3"),
    "pytest": (
        "def test_small():\n    assert add(1, 2) == 3\n\ndef test_large():\n    assert add(5, 5) == 10\n", {}, ADD,
        "def add(a, b): return 3"),
    "MBPP, one import": (
        ["assert math.isclose(half(3), 1.5, abs_tol=0.001)"], {"test_imports": "import math"},
        "def half(x): return x / 2", "def half(x): return x // 2"),
    "class": (["assert Solution().add(1, 2) == 3"], {}, "class Solution:\n def add(self, a, b): return a + b", "Solution = 1"),
    "an exception": (
        ["try:\n    f(0)\n    assert False\nexcept ZeroDivisionError:\n    pass"], {}, "def f(x): return 1 / x",
        "def f(x): return 0"),
    "numbers": ({"inputs": [""], "outputs": ["0.50 1e3\n\n"]}, {}, "print('.5  1000')", "print('.5 1001')"),
}  # fmt: skip


class Code(unittest.TestCase):
    def test_every_shape_knows_right_from_wrong(self):
        for name, (label, metadata, right, wrong) in SHAPES.items():
            with self.subTest(name):
                self.assertEqual(graded(right, label, **metadata), (1.0, 1.0))
                self.assertEqual(graded(wrong, label, **metadata)[0], 0.0)

    def test_gives_the_share_of_tests_that_pass(self):
        label = {"inputs": ["1 2", "2 2", "4 4", "1 1"], "outputs": ["3", "4", "8", "0"]}
        self.assertEqual(graded(SUM, label), (0.0, 0.75))

    def test_takes_the_last_closed_block(self):
        label = {"inputs": ["1 2"], "outputs": ["3"]}
        for response, score in (
            (f"```py\nprint(1)\n```\nNo:\n```python\n{SUM}\n```", 1.0),
            (f"```\n{SUM}\n```\nor\n```cpp\nint x;\n```", 0.0),
            (f"```python\n{SUM}", 0.0),
            (SUM, 0.0),
            ("", 0.0),
            (f"<think>```python\n{SUM}\n```", 0.0),
        ):
            sample = {"response": response, "label": label, "own_metadata": {}, "prompt_text": ""}
            self.assertEqual(RULE(sample)["score"], score, response)

    def test_finds_the_block_in_the_time_that_the_text_is_long(self):
        began = time.monotonic()
        for line in ("```a\n", "```\n", "`", "```a``` b\n", " \n"):
            code_rule.program_of(line * 300_000)
        self.assertLess(time.monotonic() - began, 10.0)  # an expression took minutes over the first

    def test_ends_programs_that_take_too_much(self):
        for source, count in (
            ("while True: pass", 400),
            ("import time; time.sleep(1000)", 400),
            ("x = bytearray(1 << 31); print(1)", 40),
            ("import sys\nwhile True: sys.stdout.write('1' * 100000)", 40),
            ("import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while 1: pass']).wait()", 40),
        ):
            label = {"inputs": [""] * count, "outputs": ["1"] * count}
            began = time.monotonic()
            self.assertEqual(graded(source, label, time_limit=1)[0], 0.0, source)
            # 3 seconds, on a machine that is busy with other tests 30; all 400 of the first two would take 200 and more.
            self.assertLess(time.monotonic() - began, 100.0, source)

    def test_a_test_that_catches_everything_ends_with_its_time(self):
        """What rings is no exception, which such tests once swallowed: the call then hung until --rm-timeout."""
        sleeps = "import os, time\ndef f(x):\n    open('here', 'w').close()\n    time.sleep(1000)"
        for source, test in (
            (sleeps, "for i in range(5):\n    try:\n        f(i)\n    except Exception:\n        pass\nassert True"),
            (sleeps, "while True:\n    try:\n        f(1)\n    except:\n        pass"),
            (sleeps, "try:\n    f(1)\nfinally:\n    f(2)"),
            ("def f(x): return 1", "try:\n    while f(1): pass\nexcept Exception:\n    while True: pass"),
        ):
            with self.subTest(test), tempfile.TemporaryDirectory() as folder, mock.patch("tempfile.tempdir", folder):
                began = time.monotonic()
                self.assertEqual(graded(source, [test] * 100, time_limit=1), (0.0, 0.0))
                self.assertLess(time.monotonic() - began, 60.0)  # 3 seconds, on a machine that is busy with other tests more
                self.assertEqual(os.listdir(folder), [], "the program's folder is gone, too")

    def test_a_call_in_c_that_does_not_end_is_ended(self):
        """Python's handlers of signals wait until such a call returns."""
        began = time.monotonic()
        endless = "import itertools\nassert 'x' in itertools.cycle([f(1)])"
        self.assertEqual(graded("def f(x): return 1", [endless] * 100, time_limit=1), (0.0, 0.0))
        self.assertLess(time.monotonic() - began, 60.0)  # 4 seconds

    def test_ends_what_the_program_started_when_the_time_is_over(self):
        with tempfile.TemporaryDirectory() as folder:
            mark = os.path.join(folder, "process")
            source = f"import os, time\ndef f():\n    open({mark!r}, 'w').write(str(os.getpid()))\n    time.sleep(1000)"
            graded(source, ["try:\n    f()\nexcept BaseException:\n    f()"], time_limit=1)
            with open(mark) as file:
                process = int(file.read())
            give_up = time.monotonic() + 10
            while is_running(process) and time.monotonic() < give_up:
                time.sleep(0.01)
            self.assertFalse(is_running(process))

    def test_programs_do_not_learn_what_is_expected(self):
        """Each program looks where an answer might be, and writes down what it finds. attacks_test.cc has programs that
        read the memory of those that test them: what stops them is the sandbox."""
        secret = "8675309"
        looks = {
            "frames": "import sys, gc\nf = sys._getframe()\nwhile f:\n  print(f.f_globals, f.f_locals); f = f.f_back\n"
            "print([o for o in gc.get_objects() if isinstance(o, (str, list, dict))])",
            "files": "import os\nfor d, _, fs in os.walk(os.path.dirname(os.getcwd())):\n  for f in fs:\n"
            "    try: print(open(os.path.join(d, f)).read())\n    except Exception: pass",
            "descriptors": "import os\nfor n in range(3, 64):\n  try: print(os.pread(n, 100000, 0))\n  except OSError: pass",
        }
        for name, source in looks.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder, mock.patch("tempfile.tempdir", folder):
                found = os.path.join(folder, "found")
                tell = f"OUT = open({found!r}, 'a')\ndef print(*x): OUT.write(str(x))\n{source}\nOUT.close()\n"
                graded(tell, {"inputs": ["", ""], "outputs": [secret, secret]})
                graded(tell + "def f(): return 1", [f"assert f() == {secret}"])
                with open(found) as file:
                    self.assertFalse(secret in file.read())
                os.remove(found)

    def test_programs_cannot_say_that_they_passed(self):
        label, calls = {"inputs": ["1 2"], "outputs": ["3"]}, ["assert f(1) == 12345"]
        for source in (
            "import os; os._exit(0)",
            "import os, signal; os.kill(os.getppid(), signal.SIGTERM)",
            "import os, signal; os.killpg(os.getpgid(os.getppid()), 0); os.kill(os.getppid(), signal.SIGALRM)",
            "raise SystemExit(0)",
        ):
            self.assertEqual(graded(source, label)[0], 0.0, source)
            self.assertEqual(graded(source, calls)[0], 0.0, source)
        for source in (
            "class Always:\n  def __eq__(self, other): return True\ndef f(x): return Always()",
            "class Number(int):\n  def __eq__(self, other): return True\n  __hash__ = int.__hash__\ndef f(x): return Number(1)",
            "import os\nfor n in range(3, 20):\n  try: os.write(n, b'{\"value\": true}\\n')\n  except OSError: pass\n"
            "def f(x): return 1",
            "def f(x):\n  import os, json\n  print(json.dumps({'value': 12345}))\n  return 0",
            "import builtins\nbuiltins.AssertionError = int\ndef f(x): return 1",
            "def f(x): raise KeyboardInterrupt",
            "def f(x): return [f]",
            "def f(x):\n  a = []\n  a.append(a)\n  return a",
        ):
            self.assertEqual(graded(source, calls)[0], 0.0, source)

    def test_the_same_program_prints_the_same(self):
        source = "print({str(i) for i in range(50)})"
        outputs = set()
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                started = code_rule.Started(source, (6, 512), folder)
                outputs.add(started.output_for(""))
                started.end()
        self.assertEqual(len(outputs), 1)

    def test_built_in_functions_are_not_hidden(self):
        source = "print(pow(3, 4, 5), abs(-1), sum([1, 2]), list(map(str, range(2))), comb(4, 2), deque([1])[0], open)"
        label = {"inputs": [""], "outputs": ["1 1 3 ['0', '1'] 6 1 <built-in function open>"]}
        self.assertEqual(graded(source, label), (1.0, 1.0))

    def test_a_built_in_name_is_the_programs_where_a_test_has_no_other(self):
        f, small = "def f(x): return [2, 1]", "assert abs(g(2) - 1) < 1e-6"
        total = "def sum(a, b): return a + b + 1"
        for test, program_that, score in (
            ("assert sum(10, 15) == 26", total, 1.0),
            ("assert sum(10, 15) == 26", "def sum(a, b): return 0", 0.0),
            ("assert 26 == sum(10, 15)", total, 1.0),
            ("assert sum([1, 2]) == 3", "x = 1", 0.0),  # Python's own would pass
            ("assert sum([1, 2]) == 3", "class Solution:\n def sum(self, x): return 3", 1.0),
            ("assert sum(10, 15) == max([26, 1])", total + "\ndef max(x): return 0", 1.0),
            ("assert len(max('a', 'aa')) == 2", "def max(*x): return 'aa'\ndef len(x): return 0", 1.0),
            ("assert len(max('a', 'aa')) == 2", "def len(x): return 2", 0.0),
            ("assert abs(pow(2, 0.5) - 1.4142) < 1e-4", "def pow(a, b): return 1.4142\ndef abs(x): return 9", 1.0),
            ("assert sorted(list((0, 1))) == [1, 0]", "def sorted(x): return x[::-1]\ndef list(x): return 0", 1.0),
            ("n = list(range(3))\nresult = sum(n, 1)\nassert result == 4\nassert isinstance(result, int)",
             "def sum(x, y): return 4", 1.0),
            ("pairs = list(zip('ab'))\nassert sum(len(pairs), 1) == 4", total, 1.0),
            ("def test_sum():\n    assert sum(1, 2) == 4", total, 1.0),
            ("assert [x for x in filter([0, 1])] == [1]", "def filter(x): return [1]", 1.0),
            ("assert (lambda y: sum(y, 1))(1) == 3", total, 1.0),
            ("try:\n    sum(3, '')\n    raise AssertionError('none')\nexcept TypeError as error:\n    assert error", total, 1.0),
            # With a name of the program's own, Python's names are Python's.
            ("assert sorted(f(1)) == [1, 2]", f, 1.0),
            ("assert sorted(f(1)) == [1, 2]", f + "\ndef sorted(x): return [9]", 1.0),
            (small, "def g(x): return 100\ndef abs(x): return 0", 0.0),
            (small, "def g(x): return 1.0\ndef abs(x): return 9", 1.0),
            ("assert max(f(1)) == 2 and sum(f(1)) == 3", f + "\ndef max(x): return 0\nsum = max", 1.0),
        ):  # fmt: skip
            with self.subTest(test, program=program_that):
                self.assertEqual(graded(program_that, [test])[0], score)
        label = {"fn_name": "sum", "inputs": [[1, 2]], "outputs": [4]}
        self.assertEqual([graded(one, label)[0] for one in (total, "x = 1")], [1.0, 0.0])

    def test_an_entry_point_may_have_a_built_in_name(self):
        check = "def check(candidate):\n    assert sum([candidate('a', 'bb'), 1]) == 4\n    assert max(1, 2) == 2\n"
        for entry_point, source, score in (
            ("max", "def max(*x): return 3", 1.0),
            ("max", "def max(*x): return 2", 0.0),
            ("max", "x = 1", 0.0),
            ("Solution().max", "class Solution:\n def max(self, *x): return 3", 1.0),
        ):
            self.assertEqual(graded(source, check, entry_point=entry_point)[0], score, (entry_point, source))
        for entry_point in ("1 +", 5, ["max"]):
            with self.assertRaisesRegex(BadLine, "metadata.entry_point is .*; name the function"):
                graded("x = 1", check, entry_point=entry_point)

    def test_names_that_a_test_defines_are_its_own(self):
        for source, names in (
            ("import a.b, c as d\nfrom e import f, g as h\na, d, f, h, c", {"c"}),
            ("def f(x, *y, z=w, **v): return x, y, z, v, u\nf", {"w", "u"}),
            ("class A(B):\n    c = 1\n    def d(self): return self, c\nA", {"B", "c"}),
            ("try:\n    a\nexcept B as c:\n    c", {"a", "B"}),
            ("with a as b, c() as (d, e): b, d, e", {"a", "c"}),
            ("[x for x in y if (z := x)], z, {k: v for k, v in w}, lambda i, *j: (i, j, u)", {"y", "w", "u"}),
            ("def f():\n    global a, b\n    a = 1\n    b\na", {"b"}),
            ("def f():\n    a = 1\n    def g(): return a\na", {"a"}),
            ("a: int = 3\nfor b in c: b += a\nassert sum(d) == b", {"int", "c", "d", "sum"}),
        ):
            self.assertEqual(code_rule.undefined_names(source), names, source)

    def test_values_travel_with_their_kind(self):
        for value in (
            None, True, 0, -(10**40), 0.1, float("inf"), "a\n\ud7ff", [1, [2]], (1, (2,)), {1, 2}, frozenset({3}), b"\x00\xff",
            {1: "a", (1, 2): [None]}, 1 + 2j, [], {}, (), set(),
        ):  # fmt: skip
            there = program.decoded(json.loads(json.dumps(program.encoded(value))))
            self.assertEqual((type(there), there), (type(value), value))
        for value in (object(), len, range(3), [object()]):
            self.assertRaises(program.NotPlain, program.encoded, value)

    def test_labels_without_tests_are_refused(self):
        for label, message in (
            (None, "the label is null"), ("", "the label is empty"), ([], "the label is \\[\\]"),
            ({"inputs": [], "outputs": []}, "no tests"), ("eJxz", "docs/REWARDS.md"),
            ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"), (["assert ("], "no Python"),
            ([{"input": "1", "output": "2", "testtype": "functional"}], "func_name"), ({"a": 1}, "docs/REWARDS.md"),
            ([{"in": 1, "output": 2}], "no object with the key input"), ([{"input": 1}], "the key output"),
            ([5], "no object with the key input"),
            ("def check(candidate):\n    assert candidate(1) == 2\n", "metadata.entry_point names the function"),
            (["assert f(1) == 2", "assert 1 == 1"], "calls no function of the program: assert 1 == 1"),
            (["import math\nassert math.sqrt(4) == 2"], "calls no function of the program: import math assert math.sqrt"),
            (["def f(x): return x\nassert f(1) == 1"], "no function of the program"), (["x = 5"], "no function"),
            (["raise ValueError('x')"], "no function"), ("f = 5\nassert f == 5", "no function of the program"),
        ):  # fmt: skip
            with self.assertRaisesRegex((ValueError, BadLine), message):
                graded(SUM, label)

    def test_limits_are_read_as_data_sets_write_them(self):
        for metadata, limits in (
            ({}, (6, 512)), ({"time_limit": None, "memory_limit": None}, (6, 512)), ({"time_limit": 1.5}, (2, 512)),
            ({"time_limit": "2.0 seconds", "memory_limit": "256.0 megabytes"}, (2, 256)), ({"memory_limit": "64000000 bytes"}, (6, 64)),
            ({"time_limit": "1500 ms", "memory_limit": "1 GB"}, (2, 1024)), ({"time_limit": "3", "memory_limit": 1}, (3, 64)),
        ):  # fmt: skip
            self.assertEqual(code_rule.limits_of(metadata), limits, metadata)
        for metadata, message in (
            ({"time_limit": 1e9}, "time_limit of the metadata is 1000000000.0; give 1 to 60 seconds"),
            ({"time_limit": "2 hours"}, "time_limit"), ({"time_limit": [1]}, "time_limit"), ({"time_limit": -1}, "time_limit"),
            ({"memory_limit": 256_000_000}, "memory_limit of the metadata is 256000000; give 1 to 65536 MB"),
        ):  # fmt: skip
            with self.assertRaisesRegex((ValueError, BadLine), message):
                graded(SUM, {"inputs": ["1 2"], "outputs": ["3"]}, **metadata)


if __name__ == "__main__":
    unittest.main()
