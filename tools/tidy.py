#!/usr/bin/env python3
"""The rules of layout and style that a program can check, over the whole tree: exit code 1 and one line per breach.

    python3 tools/tidy.py [ROOT]

A rule is a generator in RULES; tests/tools/tidy_test.py plants a breach of each and sees it found.
"""

import fnmatch
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path


def rows_of_includes():
    """Who may include whom besides itself and include/tandem, in the order of the table of docs/ARCHITECTURE.md."""
    rows = {
        "base": set(),
        "options": {"base"},
        "device": {"base"},
        "mesh": {"base", "device"},
        "memory": {"base", "device"},
        "weights": {"base", "device", "memory"},
        "model": {"base", "device", "weights"},
        "data": {"base"},
        "rl": {"base"},
        "worker": {"base"},
        "text": {"base", "worker"},
        "reward": {"base", "worker"},
        "trainer": {"base", "device", "memory", "weights", "model", "rl"},
        "rollout": {"base", "device", "memory", "model", "rl"},
        "config": {"base", "options", "data", "device", "rl", "rollout", "text", "reward", "trainer", "weights"},
        "plan": {"base", "device", "memory", "weights", "model", "trainer", "rollout", "config"},
        "checkpoint": {"base", "memory", "weights", "data", "trainer", "config"},
        "report": {"base", "rl", "text", "reward"},
    }
    for module in ("session", "groups", "sampling", "evaluation", "rollout_worker"):
        rows[module] = set(rows)  # all that come before it
    up_to_session = {"session"} | rows["session"]
    rows["scorer"] = up_to_session
    rows["bench"] = up_to_session - {"options", "data", "checkpoint"}
    rows["device_check"] = ({"bench"} | rows["bench"]) - {"memory", "text", "reward", "plan"}
    rows["run"] = set(rows) - {"bench", "device_check"}
    rows["cli"] = {"base", "options", "device", "worker", "config", "mesh", "plan", "session", "scorer", "bench",
                   "device_check", "run"}
    return rows


MAY_INCLUDE = rows_of_includes()
TABLE_OF_INCLUDES = "docs/ARCHITECTURE.md"

SKIPPED_FOLDERS = {"build", "runs", "__pycache__", "golden", "results"}  # and those that begin with a dot
CODE = {".cc", ".h", ".cu", ".cuh"}
TEXT = CODE | {".py", ".md", ".cmake", ".sh", ".txt", ".toml", ".json", ".supp", ""}

# Split, so that this file does not break its own rules.
LEFT_OVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w./$}])/(work|root|home)/[\w.]")
TORCH_INCLUDE = re.compile(r'#\s*include\s*[<"](ATen|c10|torch)/')
TEST = re.compile(r"\bTEST(?:_F|_P)?\((\w+),\s*(\w+)\)")
NAMED_TEST = re.compile(r"`([A-Z]\w*[a-z]\w*\.(?:[A-Z]\w*)?\*?)`")  # `Suite.Name`, `Suite.*`, `Suite.Begi*`
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

# (pattern, files it may be in, what to do instead); code only.
BANNED = [
    (re.compile(r"torch/torch\.h"), (), "include the narrow <ATen/...> header; this one takes 20 s a file"),
    (re.compile(r"\b(secure_)?getenv\s*\("), ("src/base/env.cc", "tests/*"),
     "take it as an argument; variables are read in base/env.cc"),
    (re.compile(r"(?<![_\w])(quick_)?exit\s*\("), ("src/cli/*", "tests/*"), "throw; only src/cli ends the process"),
    (re.compile(r"\bstd::source_location\b"), (), "use __FILE__ and __LINE__; clang-tidy 14 cannot read it"),
]
LEANING_WORDS = r"\b([Ll]ikewise|as above)\b"  # say it where it stands
HALF_SENTENCES = {"Of", "That", "Those", "Beside", "Behind", "Whoever"}
QUESTIONS = {"What", "Which", "How"}
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "manager"}


@dataclass(frozen=True)
class Breach:
    path: str
    line: int
    what: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.what}"


class Tree:
    """The text files under a root, read once."""

    def __init__(self, root):
        self.root = Path(root)
        self.texts = {}
        for folder, subfolders, names in os.walk(self.root):
            subfolders[:] = sorted(name for name in subfolders if name not in SKIPPED_FOLDERS and
                                   (name == ".ci" or not name.startswith(".")))
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix not in TEXT or path.is_symlink() or name == ".git":  # a file in a second work tree
                    continue
                try:
                    self.texts[path.relative_to(self.root).as_posix()] = path.read_text(encoding="utf-8")
                except UnicodeDecodeError:
                    continue  # data, not text

    def files(self, *folders, suffixes=CODE):
        for path, text in self.texts.items():
            if Path(path).suffix in suffixes and (not folders or path.split("/")[0] in folders):
                yield path, text


def numbered(text):
    return enumerate(text.splitlines(), start=1)


def module_of(path):
    parts = path.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "src" else None


def check_includes(tree):
    """Modules include what their row names."""
    for path, text in tree.files("src"):
        module = module_of(path)
        if module not in MAY_INCLUDE:
            yield Breach(path, 1, f"src/{module} has no row in the table of includes of tools/tidy.py")
            continue
        for number, line in numbered(text):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            target = match[1].split("/")[0]
            if "/" not in match[1]:
                yield Breach(path, number, f'"{match[1]}": include by the path from src/')
            elif target not in MAY_INCLUDE[module] | {module, "tandem"}:
                yield Breach(path, number, f"{module} may not include {target}")


def named_modules(cell, above):
    """The modules that a cell of the table's last column names; `above` has the rows before it."""
    named, _, left_out = cell.replace("`", "").partition(" but ")
    words = set(re.findall(r"\w+", named))
    modules = words & set(MAY_INCLUDE)
    if "all above it" in named:  # "session and all above it"
        modules |= set().union(*(set(list(above)[: list(above).index(name)]) for name in modules if name in above))
    elif "all above" in named:
        modules |= set(above)
    elif "what that knows" in named:  # "bench and what that knows"
        modules |= set().union(*(above[name] for name in modules if name in above))
    return modules - set(re.findall(r"\w+", left_out))


def check_table_of_includes(tree):
    """The document's table of who may include whom says what MAY_INCLUDE says."""
    rows = {}
    for number, line in numbered(tree.texts.get(TABLE_OF_INCLUDES, "")):
        match = re.fullmatch(r"\| `(\w+)` \| .* \| ([^|]*) \|", line)
        if not match:
            continue
        module = match[1]
        rows[module] = named_modules(match[2], rows)
        for name in sorted(rows[module] ^ MAY_INCLUDE.get(module, set())):
            says, does_not = ("the table", "MAY_INCLUDE") if name in rows[module] else ("MAY_INCLUDE", "the table")
            yield Breach(TABLE_OF_INCLUDES, number, f"{says} lets {module} include {name}, and {does_not} does not")
    for module in MAY_INCLUDE:
        if module not in rows:
            yield Breach(TABLE_OF_INCLUDES, 1, f"the table of modules has no row of {module}")


def cmake_calls(text, function):
    """Arguments of each call of `function`, comments left out."""
    text = re.sub(r"#[^\n]*", "", text)
    for match in re.finditer(rf"\b{function}\s*\(([^)]*)\)", text):
        yield match[1].split()


def source_arguments(arguments):
    """What stands between SOURCES and the next keyword."""
    if "SOURCES" not in arguments:
        return []
    after = arguments[arguments.index("SOURCES") + 1 :]
    return after[: next((i for i, word in enumerate(after) if word.isupper()), len(after))]


def listed_sources(tree):
    """(CMakeLists.txt, path as listed, is it a glob, is it of a CORE target) of every source that a target lists."""
    for path, text in tree.texts.items():
        if not path.endswith("CMakeLists.txt"):
            continue
        folder = os.path.dirname(path)
        for function in ("tandem_module", "tandem_test", "tandem_program_test", "tandem_cuda_kernels", "tandem_fuzz_target",
                         "tandem_fuzz_program", "add_executable", "add_library"):
            for arguments in cmake_calls(text, function):
                names = source_arguments(arguments) if function.startswith("tandem") else arguments[1:]
                # tandem_run_doubled brings a stand-in for torch's headers.
                is_core = ("CORE" in arguments or function.startswith("tandem_fuzz")) and \
                    "tandem_run_doubled" not in arguments
                for name in names:
                    if name.endswith((".cc", ".cu")):
                        yield path, os.path.normpath(os.path.join(folder, name)), False, is_core
        for arguments in cmake_calls(text, "file"):
            for name in arguments[1:] if arguments and arguments[0].startswith("GLOB") else []:
                if name.endswith((".cc", ".cu")):
                    yield path, os.path.join(folder, name), True, False


def check_targets(tree):
    """Every source is built, and what a target lists exists."""
    exact, globs = set(), []
    for cmake, name, is_glob, _ in listed_sources(tree):
        if is_glob:
            globs.append(name)
            continue
        exact.add(name)
        if name not in tree.texts:
            yield Breach(cmake, 1, f"lists {name}, which does not exist")
    for path, _ in tree.files("src", "tests", "bench", suffixes={".cc", ".cu"}):
        # A glob of CMake stays within its folder.
        in_glob = any(fnmatch.fnmatch(path, g) and os.path.dirname(path) == os.path.dirname(g) for g in globs)
        if path not in exact and not in_glob:
            yield Breach(path, 1, "no CMake target lists this file")


def check_core(tree):
    """A CORE target includes no torch, not even through our headers."""
    def torch_path(path, seen):
        text = tree.texts.get(path)
        if text is None or path in seen:
            return None
        seen.add(path)
        for number, line in numbered(text):
            if TORCH_INCLUDE.search(line):
                return [(path, number)]
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            for candidate in (f"src/{match[1]}", f"include/{match[1]}", match[1]) if match else ():
                found = torch_path(candidate, seen)
                if found:
                    return [(path, number)] + found
        return None

    for _, name, _, is_core in listed_sources(tree):
        found = torch_path(name, set()) if is_core else None
        if found:
            way = " -> ".join(path for path, _ in found)
            yield Breach(*found[0], f"a CORE target includes torch: {way}")


def check_words(tree):
    for path, text in tree.texts.items():
        for number, line in numbered(text):
            if LEFT_OVER.search(line):
                yield Breach(path, number, f"{LEFT_OVER.search(line)[0]}: finish it or write it into an issue")
            if MACHINE_PATH.search(line):
                yield Breach(path, number, f"a path of one machine: {line.strip()[:80]}")
    for path, text in tree.files("src", "include", "tests", "bench"):
        for number, line in numbered(text):
            code = line.split("//")[0]
            for pattern, exceptions, instead in BANNED:
                if pattern.search(code) and not any(fnmatch.fnmatch(path, e) for e in exceptions):
                    yield Breach(path, number, f"{pattern.search(code)[0].strip('(')}: {instead}")


def check_names(tree):
    for path in tree.texts:
        words = set(re.split(r"[_.\-]", os.path.basename(path).lower())) | set(path.lower().split("/")[:-1])
        if path.split("/")[0] in {"src", "include", "tests", "python", "bench", "tools"} and words & VAGUE_NAMES:
            yield Breach(path, 1, f"'{(words & VAGUE_NAMES).pop()}' says nothing: name it for what it does")


def check_openings(tree):
    """A file opens with what it is for. A .cc beside a .h of its name may leave it to that and include it first."""
    for path, text in tree.files():
        header = path.removesuffix(".cc") + ".h"
        if header in tree.texts and text.startswith(f'#include "{header.removeprefix("src/")}"'):
            continue
        if not text.startswith("// ") or len(text.split("\n")[0]) < 20:
            yield Breach(path, 1, "must open with a comment that says what the file is for")
        if path.endswith(".h") and "#pragma once" not in text:
            yield Breach(path, 1, "has no #pragma once")
    for path, text in tree.files("src", "python", "tools", "tests", "bench", "examples", suffixes={".py", ".sh"}):
        if path.startswith("tests/") and not path.endswith("_test.py"):
            continue  # what a test feeds to the program, on purpose as users write it
        body = re.sub(r"\A#!.*\n", "", text).lstrip()
        if body and not body.startswith(('"""', 'r"""', "# ")):
            yield Breach(path, 1, "must open with a comment or docstring that says what the file is for")


def comment_openings(text):
    """(line, text) of the first line of each comment that stands on lines of its own."""
    before = None  # column of the comment in the line before
    for number, line in numbered(text):
        column = line.find("//")
        is_own = column >= 0 and not line[:column].strip()
        if is_own and column != before:
            yield number, line[column + 2 :].strip()
        before = column if column >= 0 else None


def check_comments(tree):
    """A comment is a sentence: it does not begin with a word that leans on the name below it or on nothing."""
    for path, text in tree.files("src", "tests"):
        for number, opening in comment_openings(text):
            word = re.match(r"\w*", opening)[0]
            if word in HALF_SENTENCES:
                yield Breach(path, number, f"a comment that begins with '{word}': write a sentence with its subject")
            if number == 1 and path.endswith(".h") and word in QUESTIONS:
                yield Breach(path, number, f"a header that opens with '{word}': name what it holds or does")

def check_leaning(tree):
    """A comment or a line of a page says what it means where it stands, and leans on no other one."""
    for what, pattern, files in [("a comment", "//.*" + LEANING_WORDS, tree.files("src", "tests")),
                                 ("a line", LEANING_WORDS, tree.files("docs", suffixes={".md"}))]:
        for path, text in files:
            for number, line in numbered(text):
                if word := re.search(pattern, line):
                    yield Breach(path, number, f"{what} with '{word[1]}': say it where it stands")


def check_namespaces(tree):
    """Folder = namespace."""
    for path, text in tree.files("src", suffixes={".h"}):
        module = module_of(path)
        declares = re.search(r"^(class|struct|enum|template|inline|namespace)\b", text, re.MULTILINE)
        if module and declares and not re.search(rf"namespace tandem::{module}\b", text):
            yield Breach(path, 1, f"declares nothing in namespace tandem::{module}")


def check_links(tree):
    """Links of documents lead to files that are there."""
    for path, text in tree.files(suffixes={".md"}):
        for number, line in numbered(text):
            for target in LINK.findall(line):
                if re.match(r"[a-z]+:|#", target):
                    continue
                file = os.path.normpath(os.path.join(os.path.dirname(path), target.split("#")[0]))
                if not (tree.root / file).exists():
                    yield Breach(path, number, f"links to {target}, which does not exist")


def check_named_tests(tree):
    """Documents name tests that are there."""
    tests = {".".join(test) for _, text in tree.files("tests", suffixes={".cc"}) for test in TEST.findall(text)}
    for path, text in tree.files(suffixes={".md"}):
        for number, line in numbered(text):
            for name in NAMED_TEST.findall(line):
                if not fnmatch.filter(tests, name):
                    yield Breach(path, number, f"names the test {name}, which does not exist")


RULES = [check_includes, check_table_of_includes, check_targets, check_core, check_words, check_names, check_openings, check_comments, check_leaning,
         check_namespaces, check_links, check_named_tests]


def find_breaches(root):
    tree = Tree(root)
    return sorted({breach for rule in RULES for breach in rule(tree)}, key=lambda b: (b.path, b.line, b.what))


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    breaches = find_breaches(root)
    for breach in breaches:
        print(breach)
    print(f"tidy: {len(breaches)} breaches" if breaches else "tidy: nothing to say", file=sys.stderr)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
