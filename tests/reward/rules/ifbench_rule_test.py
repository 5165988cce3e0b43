"""The reward `ifbench`: each instruction as the published checks judge it (tests/golden/instructions), lines that cannot
be checked, and responses that attack the checks. Lines are refused through the program in labels_test.cc."""

import json
import os
import pathlib
import subprocess
import sys
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "python"))
from tandem_worker.protocol import MachineFault  # noqa: E402
from tandem_worker.rules import english, ifbench_rule, instructions, rules  # noqa: E402

RULE = rules.make("ifbench")
CASES = [
    json.loads(line)
    for name in ("cases", "ifrlvr")
    for line in (ROOT / f"tests/golden/instructions/{name}.jsonl").read_text().splitlines()
]
TAGGED = "words:start_verb"


def graded(response, names, kwargs=None):
    metadata = {"instruction_id_list": names, "kwargs": kwargs}
    return RULE({"response": response, "label": None, "own_metadata": metadata, "prompt_text": ""})


def arguments_of_each():
    """One set of arguments for each instruction that can be checked here."""
    arguments = {case["names"][0]: case["kwargs"][0] for case in CASES if len(case["names"]) == 1}
    return {name: given for name, given in arguments.items() if name != TAGGED or english.has_tagger()}


class Ifbench(unittest.TestCase):
    def test_judges_as_the_published_checks_do(self):
        with_verdict = set()
        for case in CASES:
            if TAGGED in case["names"] and not english.has_tagger():
                continue
            checks = ifbench_rule.checks_of({"instruction_id_list": case["names"], "kwargs": case["kwargs"]})
            text, forms = case["response"], ifbench_rule.loose_forms(case["response"])
            self.assertEqual([ifbench_rule.follows(check, text) for check in checks], case["strict"], case)
            if "loose" in case:
                loose = [any(ifbench_rule.follows(check, form) for form in forms) for check in checks]
                self.assertEqual(loose, case["loose"], case)
            if len(case["names"]) == 1:
                with_verdict.add((case["names"][0], case["strict"][0]))
        self.assertEqual(len(instructions.CHECKS), 112)
        for name in arguments_of_each():
            self.assertLessEqual({(name, True), (name, False)}, with_verdict)

    def test_pays_for_all_and_says_how_many(self):
        names, kwargs = ["punctuation:no_comma", "count:numbers"], [None, {"N": 1.0, "keyword": None}]
        for response, expected in (
            ("One is 1.", (1, 1, 1, 1)),
            ("One, is 1.", (0, 0.5, 0, 0.5)),
            ("Sure, here:\nOne is 1.", (0, 0.5, 1, 1)),
            ("", (0, 0, 0, 0)),
            (" \n", (0, 0, 0, 0)),
            ("<think>1, 2, 3</think>One is 1.", (1, 1, 1, 1)),
            ("<think>One is 1.", (0, 0, 0, 0)),
        ):
            value = graded(response, names, kwargs)
            self.assertEqual(tuple(value[key] for key in ("score", "followed", "loose", "loose_followed")), expected, response)

    def test_reads_the_label_of_if_rlvr(self):
        line = {"instruction_id": ["punctuation:no_comma", "count:count_unique"], "kwargs": [None, {}]}
        for label in (str([line]), [line], json.dumps([line]), json.dumps([json.dumps(line)]), str([json.dumps(line)])):
            for metadata in ({}, {"dataset": "if"}):
                value = RULE({"response": "One, two", "label": label, "own_metadata": metadata, "prompt_text": ""})
                self.assertEqual(value["followed"], 0.5, label)
        for label in (None, "", "text", "[" * 10**5, str([line, line]), [], [[line]], {"instruction_id": "x"}, "{1: 2}", 3):
            with self.assertRaises(ifbench_rule.BadLine, msg=str(label)[:40]):
                RULE({"response": "One, two", "label": label, "own_metadata": {}, "prompt_text": ""})

    def test_refuses_lines_that_cannot_be_checked(self):
        name = "length_constraints:number_words"
        for names, kwargs, message in (
            (None, None, "instruction_id_list is to be a list"),
            ([], [], "instruction_id_list is to be a list"),
            ("punctuation:no_comma", None, "instruction_id_list is to be a list"),
            (["no:such"], [{}], r"instruction_id_list\[0\]: 'no:such' is none of the 112"),
            ([None], [{}], "None is none of the 112"),
            ([["x"]], [{}], "none of the 112"),
            ([name], None, f"{name} needs the argument num_words"),
            ([name], [], "kwargs is to be a list of 1 objects"),
            ([name], {}, "kwargs is to be a list of 1 objects"),
            ([name], ["{}"], r"kwargs\[0\] is to be an object"),
            ([name], [{"num_words": 3}], "needs the argument relation"),
            ([name], [{"num_words": 3, "relation": "about"}], "relation of .* is to be 'less than' or 'at least'"),
            ([name], [{"num_words": -1, "relation": "at least"}], "a whole number of 0 or more"),
            ([name], [{"num_words": 2.5, "relation": "at least"}], "a whole number of 0 or more"),
            ([name], [{"num_words": True, "relation": "at least"}], "a whole number of 0 or more"),
            ([name], [{"num_words": "3", "relation": "at least"}], "a whole number of 0 or more"),
            ([name], [{"num_words": float("inf"), "relation": "at least"}], "a whole number of 0 or more"),
            ([name], [{"num_words": 3, "relation": "at least", "N": 2}], "has no argument 'N'; it has num_words, relation"),
            (["punctuation:no_comma"], [{"x": 1}], "has no argument 'x'; it has none"),
            (["keywords:existence"], [{"keywords": []}], "a list of texts"),
            (["keywords:existence"], [{"keywords": ["a", "(b"]}], "a regular expression"),
            (["keywords:existence"], [{"keywords": ["(" * 5000]}], "a regular expression"),
            (["keywords:existence"], [{"keywords": ["a{99999999999}"]}], "a regular expression"),
            (["keywords:frequency"], [{"keyword": " ", "frequency": 1, "relation": "at least"}], "not blank"),
            (["keywords:letter_frequency"], [{"letter": "ab", "let_frequency": 1, "let_relation": "at least"}], "single"),
            (["language:response_language"], [{"language": "xx"}], "languages that langdetect tells: af, ar"),
            (["language:response_language"], [{"language": ["en"]}], "languages that langdetect tells"),
            (["keywords:word_once"], [{"keyword": "tide\\ "}], "a regular expression"),
            (["keywords:frequency"], [{"keyword": "tide\\ ", "frequency": 1, "relation": "at least"}], "a regular expression"),
            (["count:words_japanese"], [{"N": 0}], "1 or more"),
            (["ratio:stop_words"], [{"percentage": 101}], "from 0 to 100"),
            (["count:word_count_range"], [{"min_words": 5, "max_words": 4}], "more min_words than max_words"),
            (["length_constraints:nth_paragraph_first_word"],
             [{"num_paragraphs": 2, "nth_paragraph": 3, "first_word": "a"}], "beyond num_paragraphs"),
            (["copy:repeat_phrase"], [{"phrase": "(a big tide", "small_n": 2}], "a regular expression"),
            (["copy:repeat_phrase"], [{"phrase": "a big tide"}], "needs the argument small_n"),
            (["copy:copying_multiple"], [{"prompt_to_repeat": "abc", "N": 0}], "1 or more"),
            (["new:copy_span_idx"], [{"prompt_to_repeat": "abc", "n_start": 2, "n_end": 1}], "blank span"),
            (["new:copy_span_idx"], [{"prompt_to_repeat": "abc", "n_start": 0, "n_end": 1}], "1 or more"),
            (["first_word:first_word_sent"], [{"first_word": []}], "not blank"),
            (["last_word:last_word_answer"], [{}], "needs the argument last_word"),
            (["keywords:keyword_specific_position"], [{"keyword": "a", "n": 1, "m": 0}], "1 or more"),
            (["repeat:repeat_span"], [{"prompt_to_repeat": "abc", "n_start": 2, "n_end": 1}], "blank span"),
        ):  # fmt: skip
            for response in ("", "Any response."):
                with self.assertRaisesRegex(ifbench_rule.BadLine, message):
                    graded(response, names, kwargs)

    def test_an_instruction_whose_data_is_missing_is_refused(self):
        with mock.patch.object(english, "TAGGER", "no_such_tagger"):
            with self.assertRaisesRegex(ifbench_rule.BadLine, "start_verb needs NLTK's data averaged_perceptron_tagger_eng"):
                graded("Go.", [TAGGED])

    def test_says_how_to_get_what_is_missing(self):
        with mock.patch.dict(sys.modules, {"langdetect": None}):
            with self.assertRaisesRegex(MachineFault, "--rm-type ifbench: a package is missing .*tools/setup.sh ifbench"):
                rules.make("ifbench")
        code = "from tandem_worker.rules import english, rules; english.DATA_PACKAGE = 'none'; rules.make('ifbench')"
        paths = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
        ended = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True,
                               env={"PYTHONPATH": paths, "HOME": "/nowhere"})  # fmt: skip
        self.assertIn("NLTK finds no data (punkt_tab, stopwords), which llama-index-core has", ended.stderr)

    def test_long_text_takes_no_longer_than_it_is_long(self):
        """Each piece is one over which an expression of a published check, or one like it, tries every place again: over
        50,000 letters that takes half a minute."""
        pieces = ["\n", " ", "[", "<<", "*", "p. ", "Question ", ',"!', "\ud800", "\u200f", "\x00", "1", "\n* ", "'"]
        pieces[pieces.index(',"!')] = "ProductID,Category,Brand,Price,Stock\n" + ',"!' * 20_000
        for name, given in arguments_of_each().items():
            check = instructions.checked_by(name, given)
            names = set(instructions.CHECKS[name].__code__.co_names)
            uses_nltk = "english" in names and {"sentences", "tokens", "language_of"} & names
            check("It is so.")  # the first call may load NLTK's data
            for piece in pieces:
                text = piece * max((500 if uses_nltk else 50_000) // len(piece), 1)
                began = time.process_time()
                self.assertIn(check(text[: 500 if uses_nltk else None]), (True, False), name)
                self.assertLess(time.process_time() - began, 5.0, (name, piece[:40]))

    def test_the_same_text_has_the_same_language(self):
        text = "Das ist also es was is no so."
        self.assertEqual(len({english.language_of(text) for _ in range(10)}), 1)


if __name__ == "__main__":
    unittest.main()
