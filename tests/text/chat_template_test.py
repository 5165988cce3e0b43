"""Chat templates that would make something huge in one call, or step by step: refused before the memory is taken. What
published templates do with the same operators is left alone (the golden conversations in golden_test.cc)."""

import os
import pathlib
import resource
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from tandem_worker.protocol import UserFault  # noqa: E402
from tandem_worker.templates import chat_template  # noqa: E402

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x\ny"}]
# Each makes a gigabyte or more of a few characters.
HUGE_CALLS = [
    "'%.1000000000f' % 1", "'%1000000000d' % 1", "'%*d' % (1000000000, 1)", "'%(a)1000000000s' % {'a': 1}",
    "'%1000000000s' | format('a')", "'{:1000000000}'.format(1)", "'{:{}}'.format(1, 1000000000)",
    "'{a:{b}}'.format_map({'a': 1, 'b': 1000000000})", "('x' | safe).format(1) ~ '{:9999999999}'.format(1)",
    "'a'.center(1000000000)", "'a'.ljust(1000000000)", "'a'.rjust(width)", "'a'.zfill(width)", "'a' | center(width)",
    "'a' | center(1000000000)", "long.replace('a', long)", "long | replace('a', long)", "''.join([long] * 99)",
    "range(100000) | join(long)", "long.join(range(99999) | map('string'))", "'x' | indent(width, true)",
    "'x\\n' | indent(long * 9)", "{'a': 1} | tojson(indent=width)", "[1] | batch(width, 0) | list",
    "(5).to_bytes(width, 'big')", "('\\t' * 1000000).expandtabs(width)", "long.translate({97: long})", "long * 99",
    "[1] * width", "('%9999d' * 200000) % 1", "'%s%s%s%s%s%s%s%s%s' % (long, 1, 1, 1, 1, 1, 1, 1, 1)", "9 ** width",
]  # fmt: skip
SETS = "{% set width = 1000000000 %}{% set long = 'a' * 2000000 %}"
GROWS = "{% set ns = namespace(s='abcdefgh') %}{% for i in range(60) %}{% set ns.s = {} %}{% endfor %}{{ ns.s }}"
FINE = [
    ("{{ '%5d|%-8s|%.3f|%%' % (3, 'ab', 1.5) }}", "    3|ab      |1.500|%"),
    ("{{ '%s: %s' | format('a', 1) }}", "a: 1"),
    ("{{ '{0:>5}{x}{0!r}'.format(1, x='y') }}", "    1y1"),
    ("{{ 'a b'.replace(' ', '_').center(7) }}{{ 'a' | center(3) }}", "  a_b   a "),
    ("{{ messages | map(attribute='role') | join(', ') }}{{ '-'.join(['a', 'b']) }}", "user, assistanta-b"),
    ("{{ 7 % 4 }}{{ 2 * 3 }}{{ 2 ** 3 }}{{ 1 + 2 }}{{ 'a' + 'b' }}{{ ([1] + [2]) | length }}", "3683ab2"),
    ("{{ messages[1].content | indent }}{{ {'a': 1} | tojson(indent=1) }}", 'x\n    y{\n "a": 1\n}'),
    ("{% macro f(l) %}{{ l.index }}{% endmacro %}{% for m in messages %}{{ f(loop) }}{% endfor %}", "12"),
    ("{{ 'a\\tb'.expandtabs(2) }}{{ [1, 2, 3] | batch(2) | list }}{{ '7'.zfill(3) }}", "a b[[1, 2], [3]]007"),
]


class ChatTemplates(unittest.TestCase):
    def render(self, source):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "chat_template.jinja").write_text(source, encoding="utf-8")
            template = chat_template.ChatTemplate(folder, {}, chat_template.MAX_MEMORY_BYTES)
            return template.render(MESSAGES, {}, 0)

    def test_refuse_what_one_call_would_make_before_it_is_made(self):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for call in HUGE_CALLS:
            with self.subTest(call), self.assertRaisesRegex(UserFault, "in it makes something too large"):
                self.render(SETS + "{{ " + call + " }}")
        taken_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
        self.assertLess(taken_mib, 200)

    def test_end_where_they_grow_step_by_step(self):
        for step, says in (("ns.s + ns.s", "too large"), ("ns.s ~ ns.s", "takes more memory")):
            with self.subTest(step), self.assertRaisesRegex(UserFault, says):
                self.render(GROWS.replace("{}", step))
        self.assertEqual(self.render("{{ 'a' * 9 }}"), "aaaaaaaaa")  # the process has its memory again

    def test_use_the_same_operations_on_what_is_small(self):
        for source, text in FINE:
            self.assertEqual(self.render(source), text, source)

    def made(self, files, config=None):
        """The templates of a directory with these files."""
        with tempfile.TemporaryDirectory() as folder:
            for name, source in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(source, encoding="utf-8")
            return chat_template.ChatTemplate(folder, config or {})

    def test_of_the_folder_are_named_by_their_files(self):
        template = self.made({"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": "tools",
                              "additional_chat_templates/rag.jinja": "{% no template",
                              "additional_chat_templates/notes.txt": "no template either"})
        self.assertEqual(template.render(MESSAGES, {}, 0), "plain")
        self.assertEqual(template.render(MESSAGES, {"tools": []}, 0), "plain")
        self.assertEqual(template.render(MESSAGES, {"tools": [{"name": "f"}]}, 0), "tools")

    def test_of_the_folder_win_as_in_transformers(self):
        config = {"chat_template": [{"name": "default", "template": "config"}, {"name": "tool_use", "template": "old"}]}
        tools = {"tools": [{"name": "f"}]}
        self.assertEqual(self.made({}, config).render(MESSAGES, tools, 0), "old")
        both = self.made({"chat_template.jinja": "file", "additional_chat_templates/default.jinja": "folder"}, config)
        self.assertEqual(both.render(MESSAGES, {}, 0), "folder")
        self.assertEqual(both.render(MESSAGES, tools, 0), "folder")
        self.assertTrue(both.path.endswith("additional_chat_templates/default.jinja"))
        alone = self.made({"additional_chat_templates/tool_use.jinja": "folder"}, config)
        self.assertTrue(alone.exists)
        self.assertEqual(alone.render(MESSAGES, tools, 0), "folder")
        with self.assertRaisesRegex(UserFault, "no chat template is named 'default', only \\['tool_use'\\]"):
            alone.render(MESSAGES, {}, 0)

    def test_of_the_folder_are_regular_files_of_that_folder_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "chat_template.jinja").write_text("plain", encoding="utf-8")
            inner = pathlib.Path(folder, "additional_chat_templates")
            (inner / "deeper").mkdir(parents=True)
            (inner / "deeper" / "tool_use.jinja").write_text("deeper", encoding="utf-8")
            (inner / "tool_use.jinja").mkdir()
            os.mkfifo(inner / "pipe.jinja")
            template = chat_template.ChatTemplate(folder, {})
            self.assertEqual(template.render(MESSAGES, {"tools": [{"name": "f"}]}, 0), "plain")

    def test_of_the_folder_are_bounded(self):
        long = self.made({"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": " " * (2 << 20)})
        self.assertEqual(long.render(MESSAGES, {}, 0), "plain")
        says = "additional_chat_templates/tool_use.jinja: chat template 'tool_use' is longer than 1048576 characters"
        with self.assertRaisesRegex(UserFault, says):
            long.render(MESSAGES, {"tools": [{"name": "f"}]}, 0)
        with self.assertRaisesRegex(UserFault, "additional_chat_templates: holds 65 chat templates, and 64 are the most"):
            self.made({f"additional_chat_templates/{i}.jinja": "x" for i in range(65)})

    def test_say_without_a_conversation_what_none_could_mend(self):
        broken = self.made({"chat_template.jinja": "{% no template"})
        for template, arguments, says in (
            (broken, {}, "chat template 'default': "),
            (self.made({}), {}, "has no chat template"),
            (self.made({"chat_template.jinja": "x"}), {"add_generation_prompt": True, "continue_final_message": True},
             "add_generation_prompt opens an answer"),
        ):  # fmt: skip
            with self.assertRaisesRegex(UserFault, says):
                template.prepare(arguments)
        refuses = self.made({"chat_template.jinja": "{{ raise_exception('no') }}"})
        self.assertEqual(refuses.prepare({}), "default")
        with self.assertRaisesRegex(UserFault, "refused conversation 7: no"):
            refuses.render(MESSAGES, {}, 7)


if __name__ == "__main__":
    unittest.main()
