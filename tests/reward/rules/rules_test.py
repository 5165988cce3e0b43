"""The built-in rules on text that no exercise has: as fast as the text is long, with the results of the expressions that
they are written down as. A response of 8,000 unclosed boxes once took 18 s, and a label of a megabyte was a plain 0."""

import pathlib
import random
import re
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python"))
from tandem_worker.rules import rewards, rules  # noqa: E402

SEED = 20


def last_box_by_definition(text):
    for opening in reversed(list(rewards.BOX.finditer(text))):
        depth = 1
        for position in range(opening.end(), len(text)):
            if text[position] == "{" and text[position - 1] != "\\":
                depth += 1
            elif text[position] == "}" and text[position - 1] != "\\":
                depth -= 1
                if depth == 0:
                    return text[opening.end() : position].strip()
    return None


# Minerva's, as verl and slime have them.
UNWRAPPED = (
    (re.compile(r".*?\$(.*?)\$.*"), r"$\1$"),
    (re.compile(r"\\text\{(.*?)\}"), r"\1"),
    (re.compile(r"\\textbf\{(.*?)\}"), r"\1"),
    (re.compile(r"\\overline\{(.*?)\}"), r"\1"),
    (re.compile(r"\\boxed\{(.*)\}"), r"\1"),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
)


def minerva_form_by_definition(answer):
    answer = answer.split("=")[-1]
    for before, after in rewards.REPLACED:
        answer = answer.replace(before, after)
    for unit in rewards.DROPPED:
        answer = answer.replace(unit, "")
    for pattern, replacement in UNWRAPPED:
        answer = pattern.sub(replacement, answer)
    answer = answer.replace("$", "")
    if answer.replace(",", "").isdigit():
        answer = answer.replace(",", "")
    return answer.strip()


BOX_PIECES = ("\\boxed{", "\\fbox{", "\\boxed  {", "\\boxed", "{", "}", "\\{", "\\}", "\\", "x", " ", "\n")
FORM_PIECES = (
    "\\text{", "\\textbf{", "\\overline{", "\\boxed{", "}", "{", "$", "\n", "\\", "frac", "sqrt", "text", "1", ",",
    "x", " ", "=", "mbox{", "\r", "\u2028", "an ",
)  # fmt: skip
DEGENERATE = (
    "\\boxed{", "\\overline{", "\\text{", "\\textbf{", "\\boxed{}", "{", "}", "$", "a", "\\boxed ", "1,", "1", ".", "1/",
    "12,345", "\\frac", "sqrt", "answer:", " ", "\\", "-1", "%", "{\\boxed{", "\n", "\\boxed{1}",
)  # fmt: skip


class Rules(unittest.TestCase):
    def drawn(self, pieces, count):
        draw = random.Random(SEED)
        for _ in range(count):
            yield "".join(draw.choice(pieces) for _ in range(draw.randrange(14)))

    def test_box_is_as_defined(self):
        for text in self.drawn(BOX_PIECES, 20_000):
            self.assertEqual(rewards.last_box(text), last_box_by_definition(text), f"{text!r}, seed {SEED}")

    def test_normal_form_is_as_defined(self):
        for text in self.drawn(FORM_PIECES, 20_000):
            self.assertEqual(rewards.minerva_form(text), minerva_form_by_definition(text), f"{text!r}, seed {SEED}")

    def assert_linear(self, call, name):
        """`call(n)` of eight times as long a text takes about eight times as much of the processor, not sixty-four times.
        The processor's time, since a busy machine makes any bound in seconds a matter of luck."""
        times = []
        for length in (32_000, 256_000):
            begin = time.process_time()
            call(length)
            times.append(time.process_time() - begin)
        self.assertLess(times[1], 24 * times[0] + 0.5, name)

    def test_time_is_linear_in_the_text(self):
        for piece in DEGENERATE:
            for tail in ("", "}", "$1$"):
                for rule in (rewards.last_box, rewards.last_number, rewards.minerva_form):
                    self.assert_linear(
                        lambda length: rule(piece * (length // len(piece)) + tail),
                        f"{rule.__name__} of many {piece!r} and {tail!r}",
                    )

    def test_long_answers_are_compared_as_text(self):
        math = rewards.Math()
        for piece in ("1+", "9", "\\frac{", "x^"):

            def grade(length):
                label = piece * (length // len(piece)) + "1"
                self.assertEqual(math({"label": label, "response": "\\boxed{2}"}), 0.0)
                self.assertEqual(math({"label": "2", "response": "\\boxed{" + label + "}"}), 0.0)
                if piece in ("1+", "9", "x^"):  # braces that balance
                    self.assertEqual(math({"label": label, "response": "\\boxed{" + label + "}"}), 1.0)

            self.assert_linear(grade, piece)

    # A completion that is cut while it thinks held every intermediate result once.
    def test_an_answer_inside_an_unfinished_thought_is_none(self):
        inside = {
            "math": ("<think> 2+2 is 4", "<think>maybe \\boxed{4} or", "<think>a</think>b<think>\\boxed{4}", "a <think>4"),
            "boxed_math": ("<think>\\boxed{4}",),
            "boxed_exact": ("<think>\\boxed{4}",),
            "boxed_f1": ("<think>\\boxed{4}",),
            "f1": ("<think>4",),
            "gpqa": ("<think>the answer is 4",),
            "dapo": ("<think>Answer: 4",),
            "deepscaler": ("<think>a</think>b<think>\\boxed{4}", "<think>###Response \\boxed{4}"),
            "exact": ("<think>4", "4<think>"),
        }
        right = {
            "math": ("<think>5</think>4", "It is 4. <think>or 5", "4"),
            "boxed_math": ("<think>\\boxed{5}</think>\\boxed{4}",),
            "f1": ("4",),
            "gpqa": ("<think>no</think>the answer is 4",),
            "dapo": ("<think>a</think>Answer: 4",),
            "deepscaler": ("<think>a</think>\\boxed{4}",),
        }
        for name, responses in inside.items():
            for response in responses:
                self.assertLessEqual(self.score(name, response), 0.0, f"{name}: {response}")
        for name, responses in right.items():
            for response in responses:
                self.assertEqual(self.score(name, response), 1.0, f"{name}: {response}")
        # A template that begins the thought at the end of the prompt.
        for name in right:
            unfinished = self.score(name, "Answer: \\boxed{4}", prompt_text="What? assistant\n<think>\n")
            self.assertLessEqual(unfinished, 0.0, name)
        self.assertEqual(self.score("math", "hm</think>4", prompt_text="assistant\n<think>\n"), 1.0)
        self.assertEqual(self.score("math", "4", prompt_text="assistant\n<think>\n\n</think>\n\n"), 1.0)

    def score(self, name, response, prompt_text=""):
        sample = {"label": "4", "response": response, "prompt_text": prompt_text, "own_metadata": {}}
        reward = rules.make(name)(sample)
        return reward["score"] if isinstance(reward, dict) else reward

    # The library answers "nothing found" where its time ran out, unless it is told to raise.
    def test_running_out_of_time_is_no_wrong_answer(self):
        math = rewards.Math()

        def too_long(text, raise_on_error=False):
            if raise_on_error:
                raise math._timeout("Timeout during parsing")
            return []

        math._library = type("Library", (), {"parse": staticmethod(too_long)})
        with self.assertRaises(rewards.TookTooLong):
            math({"label": "1/2", "response": "\\boxed{0.5}"})

    def test_what_cannot_be_read_is_wrong(self):
        math = rewards.Math()

        def cannot(text, raise_on_error=False):
            raise RecursionError

        math._library = type("Library", (), {"parse": staticmethod(cannot)})
        self.assertEqual(math({"label": "1/2", "response": "\\boxed{0.5}"}), 0.0)


if __name__ == "__main__":
    unittest.main()
