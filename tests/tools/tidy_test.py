"""Every rule of tools/tidy.py finds a breach planted in a small tree, at its place, and nothing without it."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import tidy

# The table of modules as a document has it, with each row written out.
TABLE = "".join(f"| `{module}` | something | {', '.join(sorted(others)) or '—'} |\n"
                for module, others in tidy.MAY_INCLUDE.items())

# A tree that keeps every rule.
GOOD = {
    "include/tandem/error.h": "// What is thrown, and whose fault it is.\n#pragma once\n",
    "src/base/CMakeLists.txt": "tandem_module(base CORE SOURCES json.cc)\n",
    "src/base/json.h": "// Strict JSON in and out.\n#pragma once\nnamespace tandem::base {\nclass Json;\n}\n",
    "src/base/json.cc": '// Strict JSON, as the header says.\n#include "base/json.h"\n#include "tandem/error.h"\n',
    "src/device/CMakeLists.txt": "file(GLOB sources *.cc cpu/*.cc)\ntandem_module(device SOURCES ${sources})\n",
    "src/device/ops.h": "// The operations of a device.\n#pragma once\n#include <ATen/core/Tensor.h>\n"
                        '#include "base/json.h"\nnamespace tandem::device {\nclass Ops;\n}\n',
    "src/device/cpu/gemm.cc": '// Matrix products on the CPU.\n#include "device/ops.h"\n',
    "tests/base/CMakeLists.txt": "tandem_test(base_test CORE\n  SOURCES json_test.cc  # one\n  DEPENDS tandem_base)\n",
    "tests/base/json_test.cc": '// What JSON refuses.\n#include "base/json.h"\nTEST(Json, RefusesTwoValues) {}\n',
    "docs/STYLE.md": "See [the layout](ARCHITECTURE.md#tree) and [the web](https://example.com).\n",
    "docs/ARCHITECTURE.md": "Paths such as /tmp/x and build/work/x are nobody's: `Json.RefusesTwoValues`, `Json.*`.\n"
                            + TABLE,
}

# (file, its text or what is appended to it with "+", line, part of the message)
TO_DO = "TO" + "DO"
BREACHES = [
    ("src/base/json.cc", '+#include "device/ops.h"\n', 4, "base may not include device"),
    ("src/base/json.cc", '+#include "json.h"\n', 4, "include by the path from src/"),
    ("src/base/json.h", '+#include "device/ops.h"\n', 6, "base may not include device"),
    ("src/other/x.h", "// A module that is in no table.\n#pragma once\n", 1, "src/other has no row"),
    ("docs/ARCHITECTURE.md", TABLE.replace("| `data` | something | base |", "| `data` | something | base, device |"), 8,
     "the table lets data include device, and MAY_INCLUDE does not"),
    ("docs/ARCHITECTURE.md", TABLE.replace("| `mesh` | something | base, device |", "| `mesh` | something | base |"), 4,
     "MAY_INCLUDE lets mesh include device, and the table does not"),
    ("docs/ARCHITECTURE.md", TABLE.replace("| `rl` |", "rl"), 1, "the table of modules has no row of rl"),
    ("src/base/new.cc", "// A file that nobody builds.\n", 1, "no CMake target lists this file"),
    ("src/device/npu/gemm.cc", "// A folder that the glob does not reach.\n", 1, "no CMake target lists this file"),
    ("src/base/CMakeLists.txt", "tandem_module(base CORE SOURCES json.cc gone.cc)\n", 1,
     "src/base/gone.cc, which does not"),
    ("src/base/json.cc", "+#include <ATen/ops/mm.h>\n", 4, "a CORE target includes torch"),
    ("tests/base/json_test.cc", '+#include "device/ops.h"\n', 4,
     "includes torch: tests/base/json_test.cc -> src/device/ops.h"),
    ("src/base/json.cc", f"+// {TO_DO}: later\n", 4, f"{TO_DO}: finish it"),
    ("docs/STYLE.md", f"+{TO_DO}\n", 2, f"{TO_DO}: finish it"),
    ("docs/STYLE.md", "+Look into /wo" "rk/main.\n", 2, "a path of one machine"),
    ("src/base/json.cc", '+const char* p = "/ho' 'me/me/x";\n', 4, "a path of one machine"),
    ("src/device/ops.h", "+#include <torch/torch.h>\n", 8, "torch/torch.h: include the narrow"),
    ("src/base/json.cc", '+auto v = std::getenv("X");\n', 4, "getenv: take it as an argument"),
    ("src/base/json.cc", "+void f() { std::exit(1); }\n", 4, "exit: throw"),
    ("src/base/string_utils.h", "// Things with strings.\n#pragma once\n", 1, "'utils' says nothing"),
    ("python/common/x.py", '"""Things."""\n', 1, "'common' says nothing"),
    ("src/base/json.h", "#pragma once\nnamespace tandem::base {\nclass Json;\n}\n", 1, "must open with a comment"),
    ("src/base/json.cc", '#include "base/files.h"\n', 1, "must open with a comment"),
    ("tests/base/json_test.cc", '#include "base/json.h"\n', 1, "must open with a comment"),
    ("src/base/json.h", "// JSON.\n#pragma once\nnamespace tandem::base {\nclass Json;\n}\n", 1,
     "must open with a comment"),
    ("src/base/json.h", "// Strict JSON in and out.\nnamespace tandem::base {\nclass Json;\n}\n", 1, "no #pragma once"),
    ("python/x.py", "#!/usr/bin/env python3\nimport os\n", 1, "must open with a comment or docstring"),
    ("src/base/json.h", "+  // Of a number: its digits.\n", 6, "a comment that begins with 'Of'"),
    ("src/base/json.cc", "+int n;  // digits\n// That many.\n", 5, "a comment that begins with 'That'"),
    ("tests/base/json_test.cc", "+\n// Whoever reads it.\n", 5, "a comment that begins with 'Whoever'"),
    ("src/base/json.h", "+int n;  // likewise\n", 6, "a comment with 'likewise'"),
    ("docs/GUIDE.md", "# Guide\n\nPrompts are read as above.\n", 3, "a line with 'as above'"),
    ("tests/base/json_test.cc", "+\n// Reads a number. Errors are as above.\n", 5, "a comment with 'as above'"),
    ("src/base/json.h", "// What JSON may be.\n#pragma once\nnamespace tandem::base {\nclass Json;\n}\n", 1,
     "a header that opens with 'What'"),
    ("src/base/json.h", "// Strict JSON in and out.\n#pragma once\nnamespace tandem::rl {\nclass Json;\n}\n", 1,
     "declares nothing in namespace tandem::base"),
    ("docs/STYLE.md", "+[gone](GONE.md)\n", 2, "links to GONE.md"),
    ("docs/STYLE.md", "+`Json.RefusesThree*` proves it.\n", 2, "names the test Json.RefusesThree*"),
]


def breaches_of(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tidy.find_breaches(root)


class Tidy(unittest.TestCase):
    def test_finds_nothing_in_a_good_tree(self):
        self.assertEqual(breaches_of(GOOD), [])

    def test_finds_each_planted_breach(self):
        for name, text, line, what in BREACHES:
            with self.subTest(name=name, what=what):
                files = dict(GOOD)
                files[name] = files[name] + text[1:] if text.startswith("+") else text
                found = breaches_of(files)
                self.assertTrue(any(b.path == name and b.line == line and what in b.what for b in found),
                                "found only: " + "; ".join(map(str, found)))

    def test_has_a_breach_for_every_rule(self):
        planted = set()
        for name, text, _, what in BREACHES:
            files = dict(GOOD)
            files[name] = files[name] + text[1:] if text.startswith("+") else text
            with tempfile.TemporaryDirectory() as root:
                for file, content in files.items():
                    path = Path(root, file)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(content, encoding="utf-8")
                tree = tidy.Tree(root)
                planted |= {rule.__name__ for rule in tidy.RULES if any(what in b.what for b in rule(tree))}
        self.assertEqual(planted, {rule.__name__ for rule in tidy.RULES})

    def test_reads_the_words_of_the_table(self):
        above = {"base": set(), "model": {"base"}, "session": {"base", "model"}, "bench": {"session", "model"}}
        self.assertEqual(tidy.named_modules("—", above), set())
        self.assertEqual(tidy.named_modules("base, and the torch-free headers of model", above), {"base", "model"})
        self.assertEqual(tidy.named_modules("all above", above), set(above))
        self.assertEqual(tidy.named_modules("all above but bench and model", above), {"base", "session"})
        self.assertEqual(tidy.named_modules("`session` and all above it", above), {"session", "base", "model"})
        self.assertEqual(tidy.named_modules("`session` and all above it but base", above), {"session", "model"})
        self.assertEqual(tidy.named_modules("bench and what that knows but model", above), {"bench", "session"})

    def test_lets_exceptions_be(self):
        files = dict(GOOD)
        files["src/base/env.cc"] = '// Launcher variables, read once.\nauto v = std::getenv("RANK");\n'
        files["src/base/CMakeLists.txt"] = "tandem_module(base CORE SOURCES json.cc env.cc)\n"
        files["src/base/json.cc"] += "void f() { ::_exit(1); }  // not exit(1)\n"
        files["tests/base/json_test.cc"] += 'void f() { std::exit(getenv("SEED") == nullptr); }\n'
        files["src/device/cpu/gemm.cc"] = '#include "device/cpu/gemm.h"\n'
        files["src/device/cpu/gemm.h"] = "// Matrix products on the CPU.\n#pragma once\n"
        files["src/base/json.cc"] += "// Members stay in order.\n// Those of a list do too.\n// Often.\n"
        files["src/base/json.cc"] += "int n;  // digits of a number,\n        // Of either sign\n"
        files["src/cli/CMakeLists.txt"] = "add_executable(tandem main.cc)\n"
        files["src/cli/main.cc"] = "// Exit codes of the program.\nvoid f() { std::exit(2); }\n"
        files["build/x.cc"] = files[".venv-other/x.py"] = f"// {TO_DO}\n"
        self.assertEqual(breaches_of(files), [])


if __name__ == "__main__":
    unittest.main()
