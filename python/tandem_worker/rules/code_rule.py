"""The built-in reward `code`: the share of a line's tests that the sample's program passes.

Each test has a process of this rule, a fork of the grader, and one of the program (program.py). What a program should
answer is known to the first alone, which no process of the user's can read, so a program cannot answer for its tests: it
does not find out what they expect, and what it prints or returns is compared elsewhere.

    shape of the label                                            a test is
    {"inputs": [...], "outputs": [...]}                           standard input and output (APPS, TACO)
    the same with "fn_name"                                       a call of that function
    [{"input": ..., "output": ...}, ...]                          standard input and output (LiveCodeBench, DeepCoder)
    the same with "testtype": "functional" or "fn_name"           a call; metadata has "func_name" where no test names it
    ["assert f(1) == 2", ...], {"assert_case": [...]}             an assertion (MBPP, KodCode)
    text of Python that has assertions                            one program of tests (HumanEval; with "entry_point" of
                                                                  the metadata, check(entry_point) is called)

Each may also be the JSON text of such a value. The line's metadata may have "time_limit", seconds of processor time for a
test, "memory_limit", MB, each as a number or with its unit, and "test_imports", lines of Python that each assertion needs."""

import ast
import builtins
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import symtable
import sys
import tempfile
import time
from decimal import Decimal, InvalidOperation

from tandem_worker.outcomes import BadLine
from tandem_worker.protocol import one_line
from tandem_worker.rules import program
from tandem_worker.rules.rewards import no_label

SECONDS, MEMORY_MB = 6, 512  # of a test that says nothing
LONGEST_SECONDS, MOST_MB = 60, 1 << 16
# How many seconds, or MB, each unit of a limit has. A limit without a unit is in seconds, or in MB.
SECONDS_OF = {"": 1, "s": 1, "sec": 1, "second": 1, "seconds": 1, "ms": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3}
MB_OF = {"": 1, "mb": 1, "megabyte": 1, "megabytes": 1, "gb": 1024, "gigabyte": 1024, "gigabytes": 1024, "kb": 2**-10,
         "kilobyte": 2**-10, "kilobytes": 2**-10, "byte": 2**-20, "bytes": 2**-20}  # fmt: skip
WALL_SECONDS = 3  # for each second of processor time: tests run beside each other
GRACE_SECONDS = 1  # by which a test's process may end later than its own alarm
MOST_AT_ONCE = 8
PASSED, FAILED, OUT_OF_TIME = 0, 1, 2
# The same program prints a set in the same order each time.
ENVIRONMENT = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0"}
FENCE = "```"
BUILT_IN = frozenset(dir(builtins))
# A test calls these to write down a value or to look at a result, so another built-in function that it calls is more
# likely the one that it tests.
SELDOM_TESTED = (
    "abs", "bool", "bytes", "dict", "enumerate", "float", "frozenset", "int", "isinstance", "len", "list", "print", "range",
    "repr", "round", "set", "sorted", "str", "tuple", "type",
)  # fmt: skip


def program_of(response):
    """What the last fenced block of the response holds; None without one that is closed."""
    lines = response.split("\n")
    last, begun = None, None
    for i, line in enumerate(lines):  # one walk over the text, however many blocks are begun and never closed
        mark = line.strip()
        if begun is not None and mark == FENCE:
            last, begun = lines[begun + 1 : i], None
        elif begun is None and mark.startswith(FENCE) and "`" not in mark[len(FENCE) :]:
            begun = i
    return None if last is None else "\n".join(last) + "\n"


# ---------------------------------------------------------------------------------------------------------- tests


class Reads:
    """A test by standard input and output."""

    def __init__(self, given, expected):
        self.given, self.expected = as_text(given), as_text(expected)

    def passes(self, started):
        return same_output(started.output_for(self.given), self.expected)


class Calls:
    """A test that calls a function of the program."""

    def __init__(self, name, arguments, expected):
        self.name, self.arguments, self.expected = name, arguments, expected

    def passes(self, started):
        value = listed(started.call(self.name, self.arguments, {}))
        # APPS wraps some of its results in a list of their own.
        wrapped = isinstance(self.expected, list) and len(self.expected) == 1 and value == self.expected[0]
        return value == self.expected or wrapped


class Asserts:
    """A test that is Python, after lines of imports. Names that it has from nowhere else are functions of the program,
    as are those that it imports from `solution`. A test with an entry point, an expression of such names, defines check(),
    which is given the value of that."""

    def __init__(self, imports, source, entry_point=""):
        try:
            self._tree, self._imported = without_solution(ast.parse(imports + source))
            names = undefined_names(ast.unparse(self._tree))
        except SyntaxError as error:
            raise ValueError(f"a test of the label is no Python: {one_line(error)}") from None
        self._names = names - BUILT_IN | set(self._imported)
        self._entry_point = None
        if entry_point:
            self._entry_point, self._entry_names = parsed_entry_point(entry_point)
        elif not self._names:
            self._names = tested_built_in(ast.parse(source), names)
            if not self._names:
                raise ValueError(f"a test of the label calls no function of the program: {one_line(source, 100)}")

    def passes(self, started):
        names = {name: Function(started, self._imported.get(name, name)) for name in self._names}
        exec(compile(self._tree, "test", "exec"), names)
        if self._entry_point is not None:
            programs = {name: Function(started, name) for name in self._entry_names}
            names["check"](eval(compile(self._entry_point, "entry_point", "eval"), programs))
        return True


def without_solution(tree):
    """The test without its imports from the module `solution`, as KodCode's tests call the program; and what they import,
    the program's name for each of the test's."""
    imported = {}

    class Without(ast.NodeTransformer):
        def visit_ImportFrom(self, node):
            if node.module != "solution" or node.level:
                return node
            imported.update({one.asname or one.name: one.name for one in node.names if one.name != "*"})
            return ast.Pass()

    return ast.fix_missing_locations(Without().visit(tree)), imported


def undefined_names(source):
    """The names that a test uses and does not define, those of Python's built-in functions included."""
    top = symtable.symtable(source, "test", "exec")
    tables, used, defined = [top], set(), set()
    for table in tables:  # grows while it is gone through
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table is top or symbol.is_global()):
                used.add(symbol.get_name())
            binds = symbol.is_assigned() or symbol.is_imported()
            if binds and (table is top or symbol.is_declared_global()):
                defined.add(symbol.get_name())
    return used - defined


def tested_built_in(tree, names):
    """The built-in function that a test without a name of the program's own calls, in a set, which is empty where it
    calls none: the first one in an assertion, or else in the test. Those of SELDOM_TESTED come after all others. So the
    program answers for one built-in name of a test, which the program cannot choose."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    calls = [node.func for node in nodes if node.func.id in names and not is_exception(node.func.id)]
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    asserted = {node for one in asserts for node in ast.walk(one)}

    def rank(name):
        return name.id in SELDOM_TESTED, name not in asserted, name.lineno, name.col_offset

    return {min(calls, key=rank).id} if calls else set()


def is_exception(name):
    value = getattr(builtins, name)
    return isinstance(value, type) and issubclass(value, BaseException)


def parsed_entry_point(entry_point):
    """The expression and its names, which are the program's even where Python has a function of the same name."""
    try:
        tree = ast.parse(entry_point.strip(), mode="eval")
    except (SyntaxError, AttributeError):
        raise ValueError(f"metadata.entry_point is {entry_point!r:.40}; name the function to give check()") from None
    return tree, {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


class Function:
    """A function of the program, or its class Solution, as a test sees it."""

    def __init__(self, started, name):
        self._started, self._name = started, name

    def __call__(self, *arguments, **named):
        if self._name == "Solution" and not arguments and not named:
            return self
        return self._started.call(self._name, arguments, named)

    def __getattr__(self, name):
        if self._name != "Solution" or name.startswith("_"):
            raise AttributeError(name)
        return Function(self._started, name)


def as_text(value):
    """Some data sets give the lines of an input as a list."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def listed(value):
    """As JSON has it, which knows no tuples."""
    if isinstance(value, (list, tuple)):
        return [listed(entry) for entry in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else json.dumps(key): listed(entry) for key, entry in value.items()}
    return value


def same_output(output, expected):
    """Line by line without the white space around lines and after the last one; in a line that differs, word by word
    as decimal numbers."""
    lines, others = ([line.strip() for line in text.strip().split("\n")] for text in (output, expected))
    return len(lines) == len(others) and all(map(same_line, lines, others))


def same_line(line, other):
    if line == other:
        return True
    try:
        return [Decimal(word) for word in line.split()] == [Decimal(word) for word in other.split()]
    except InvalidOperation:
        return False


def arguments_of(given):
    """Returns the arguments of a call: a list holds them, a text has one in each line, as JSON."""
    if isinstance(given, str):
        return [json.loads(line) for line in given.split("\n") if line.strip()]
    return given if isinstance(given, list) else [given]


def value_of(expected):
    """LiveCodeBench writes the result of a call as JSON text."""
    try:
        return json.loads(expected) if isinstance(expected, str) else expected
    except ValueError:
        return expected


def pairs_of(label, fn_name):
    name = label.get("fn_name") or fn_name
    if len(label["inputs"]) != len(label["outputs"]):
        raise ValueError(f"the label has {len(label['inputs'])} inputs and {len(label['outputs'])} outputs")
    pairs = zip(label["inputs"], label["outputs"])
    if name:
        # verl writes both as JSON text; a value beside a list of arguments is meant as it is.
        return [Calls(name, arguments_of(given), value_of(expected) if isinstance(given, str) else expected)
                for given, expected in pairs]  # fmt: skip
    return [Reads(given, expected) for given, expected in pairs]


def test_of(entry, fn_name):
    given, expected = field_of(entry, "input"), field_of(entry, "output")
    name = entry.get("fn_name") or fn_name
    kind = entry.get("testtype") or entry.get("type") or ("functional" if name else "stdin")
    if kind in ("functional", "function_call"):
        if not name:
            raise ValueError("a test of the label calls a function, and neither it nor metadata.func_name names one")
        return Calls(name, arguments_of(given), value_of(expected))
    return Reads(given, expected)


def imports_of(lines):
    lines = [lines] if isinstance(lines, str) else lines
    if not (isinstance(lines, list) and all(isinstance(line, str) for line in lines)):
        raise ValueError("metadata.test_imports: expects a text, or a list of texts")
    return "".join(f"{line}\n" for line in lines)


def calls_of(tests):
    """The calls of each test function, as pytest makes them, after a program of tests that only defines functions.
    ValueError where the program would test nothing."""
    try:
        statements = ast.parse(tests).body
    except SyntaxError:
        return ""  # Asserts says what is wrong
    silent = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
    is_text = [isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) for statement in statements]
    if not all(text or isinstance(statement, silent) for text, statement in zip(is_text, statements)):
        return ""
    functions = [statement.name for statement in statements if isinstance(statement, ast.FunctionDef)]
    calls = [f"{name}()\n" for name in functions if name.startswith("test_")]
    if not calls:
        raise ValueError("the tests of the label define functions and call none: metadata.entry_point names the function "
                         "that check() is given")
    return "".join(calls)


def field_of(entry, key):
    if not isinstance(entry, dict) or key not in entry:
        raise ValueError(f"a test of the label is no object with the key {key}; docs/REWARDS.md has the shapes that "
                         "--rm-type code reads")
    return entry[key]


def tests_of(label, metadata):
    """The tests of a line. ValueError where its label has none of the shapes above."""
    if isinstance(label, str):
        try:
            label = json.loads(label)
        except ValueError:
            pass  # a program of tests
    fn_name = metadata.get("func_name") or metadata.get("fn_name")
    imports = imports_of(metadata.get("test_imports") or [])
    if isinstance(label, str) and "assert" in label:
        entry_point = metadata.get("entry_point")
        return [Asserts(imports, label + "\n" + ("" if entry_point else calls_of(label)), entry_point)]
    if isinstance(label, dict) and isinstance(label.get("inputs"), list) and isinstance(label.get("outputs"), list):
        tests = pairs_of(label, fn_name)
    else:
        entries = label.get("assert_case") if isinstance(label, dict) else label
        if not isinstance(entries, list):
            raise ValueError("the label is no list of tests; docs/REWARDS.md has the shapes that --rm-type code reads")
        tests = [Asserts(imports, entry) if isinstance(entry, str) else test_of(entry, fn_name) for entry in entries]
    if not tests:
        raise ValueError("the label has no tests")
    return tests


# ---------------------------------------------------------------------------------------------------------- running


class ProgramFailed(Exception):
    """The program ended before it answered, or answered with what is no value."""


class Started:
    """The program in its own process, in a folder of its own."""

    def __init__(self, source, limits, folder):
        self._limits, self._folder = limits, folder
        self._source = tempfile.TemporaryFile()
        self._source.write(source.encode("utf-8", "replace"))
        self._source.flush()
        self._process = None

    def _start(self, stdin, stdout, *answers):
        self._source.seek(0)
        seconds, memory_mb = self._limits
        words = [sys.executable, "-s", "-B", program.__file__, str(seconds), str(memory_mb << 20),
                 str(self._source.fileno()), *map(str, answers)]  # fmt: skip
        self._process = subprocess.Popen(
            words, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL, cwd=self._folder, start_new_session=True,
            env={**ENVIRONMENT, "HOME": self._folder, "TMPDIR": self._folder},
            pass_fds=(self._source.fileno(), *answers))  # fmt: skip

    def output_for(self, given):
        """What the program prints when it reads `given`. ProgramFailed where it ends with another exit code than 0."""
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout:
            stdin.write(given.encode("utf-8", "replace"))
            stdin.seek(0)
            self._start(stdin, stdout)
            code = self._process.wait()
            if code != 0:
                raise ProgramFailed(f"exit code {code}")
            stdout.seek(0)
            return stdout.read().decode("utf-8", "replace")

    def call(self, name, arguments, named):
        """What a function of the program gives. Raises what it raised, where that is an exception of Python's own."""
        if self._process is None:
            answers, ours = os.pipe()
            self._start(subprocess.PIPE, subprocess.DEVNULL, ours)
            os.close(ours)
            self._answers = open(answers, encoding="utf-8", errors="replace")
        call = {"name": name, "args": [program.encoded(entry) for entry in arguments],
                "kwargs": {key: program.encoded(entry) for key, entry in named.items()}}  # fmt: skip
        try:
            self._process.stdin.write(json.dumps(call).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._answers.readline(program.MAX_FILE_BYTES))
            if "value" in answer:
                return program.decoded(answer["value"])
            error = getattr(builtins, answer["error"], ProgramFailed)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as fault:
            raise ProgramFailed("no answer") from fault
        raise error if isinstance(error, type) and issubclass(error, Exception) else ProgramFailed("an error")

    def kill(self):
        """Kills the program with all of its group."""
        try:
            if self._process is not None:
                os.killpg(self._process.pid, signal.SIGKILL)
        except OSError:
            pass  # it has ended

    def end(self):
        """Ends the program with all of its group. The processor time that it took, in seconds."""
        self.kill()
        if self._process is None:
            return 0.0
        self._process.wait()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


def outcome_of(test, source, limits):
    """PASSED, FAILED or OUT_OF_TIME. In a process of its own: it waits, takes the time of its children, and ends where the
    test runs out of time."""
    seconds = limits[0]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        started = Started(source, limits, folder)

        def end_late(*_):
            # An exception would be the test's to catch, which may then wait for ever.
            try:
                started.kill()
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os._exit(OUT_OF_TIME)

        signal.signal(signal.SIGALRM, end_late)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS * seconds)
        try:
            passed = test.passes(started)
        except BaseException:
            passed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        late = started.end() >= seconds
    return PASSED if passed else OUT_OF_TIME if late else FAILED


def begin(test, source, limits):
    """The process that makes a test."""
    child = os.fork()
    if child != 0:
        return child
    try:
        outcome = outcome_of(test, source, limits)
    except BaseException:
        outcome = FAILED
    os._exit(outcome)


def number_passed(tests, source, limits):
    """Several tests at once. After one that runs out of time no other begins: a program that is too slow is wrong."""
    at_once = max(1, min(MOST_AT_ONCE, len(os.sched_getaffinity(0))))
    waiting, running, passed, late = list(reversed(tests)), {}, 0, False  # running: when each is to have ended
    try:
        while running or (waiting and not late):
            while waiting and not late and len(running) < at_once:
                running[begin(waiting.pop(), source, limits)] = time.monotonic() + WALL_SECONDS * limits[0] + GRACE_SECONDS
            for child, latest in list(running.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    del running[child]
                    outcome = os.waitstatus_to_exitcode(status)
                    passed += outcome == PASSED
                    late = late or outcome == OUT_OF_TIME
                elif time.monotonic() > latest:  # its own alarm waits for a call in C that does not end
                    os.kill(child, signal.SIGKILL)
                    late = True
            time.sleep(0.002)
    finally:
        for child in running:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return passed


def limit_of(metadata, name, default, worth, most, unit):
    """A limit of each test, as a whole number. Data sets write it as a number or a text, with or without a unit (TACO:
    "2.0 seconds", "256.0 megabytes"), and null where they know none."""
    value = metadata.get(name) or default
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", str(value))
    try:
        limit = math.ceil(float(match[1]) * worth[match[2].lower()])
    except (TypeError, ValueError, KeyError, OverflowError):  # no number, or no unit that is known
        limit = 0
    if not 1 <= limit <= most:
        raise ValueError(f"{name} of the metadata is {value!r:.40}; give 1 to {most} {unit}")
    return limit


def limits_of(metadata):
    """Seconds and MB of each test."""
    seconds = limit_of(metadata, "time_limit", SECONDS, SECONDS_OF, LONGEST_SECONDS, "seconds")
    memory_mb = limit_of(metadata, "memory_limit", MEMORY_MB, MB_OF, MOST_MB, "MB")
    return seconds, max(memory_mb, 64)  # less does not start Python


def code(sample):
    """{"score": 1 where all tests pass, else 0; "passed": share of the tests that do}."""
    label = sample["label"]
    if not (label.strip() if isinstance(label, str) else label):
        raise no_label(sample)
    metadata = sample["own_metadata"]
    try:
        tests, limits = tests_of(label, metadata), limits_of(metadata)
    except ValueError as error:
        raise BadLine(str(error)) from None
    source = program_of(sample["response"])
    passed = number_passed(tests, source, limits) if source is not None else 0
    return {"score": float(passed == len(tests)), "passed": passed / len(tests)}
