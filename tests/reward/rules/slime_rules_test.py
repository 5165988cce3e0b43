"""The built-in rewards that slime has too give what slime's own code gave (tests/golden/rewards), and take no longer over
text that no exercise has than it is long."""

import json
import pathlib
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "python"))
from tandem_worker import outcomes  # noqa: E402
from tandem_worker.rules import rules, slime_rules  # noqa: E402

LONG = 200_000  # characters


def graded(rule, response, label, metadata=None):
    value = rule({"response": response, "label": label, "own_metadata": metadata or {}})
    return value["score"] if isinstance(value, dict) else value


class SlimeRules(unittest.TestCase):
    def test_they_agree_with_slime(self):
        made, differing = {}, 0
        for line in (ROOT / "tests/golden/rewards/slime_cases.jsonl").read_text().splitlines():
            case = json.loads(line)
            name = case["rm_type"]
            rule = made[name] = made.get(name) or rules.make(name)
            reward = graded(rule, case["response"], case["label"], case["metadata"])
            self.assertEqual(reward, case.get("tandem", case["reward"]), line)
            differing += "tandem" in case
        self.assertEqual(sorted(made), ["boxed_dapo", "boxed_deepscaler", "boxed_f1", "boxed_gpqa", "deepscaler", "f1",
                                        "gpqa"])  # fmt: skip
        self.assertEqual(differing, 8)

    def test_long_text_takes_no_longer_than_it_is_long(self):
        pieces = [" ", "answer", "answer is ", "\\boxed{", "{", "}", "\\text{", "1", "1 ", "1,", "A ", "the ", "\n", "\\frac"]
        began = time.process_time()
        for name in rules.MAKERS:
            if name == "ifbench":  # ifbench_rule_test.py asks it of each instruction
                continue
            rule = rules.make(name)
            for piece in pieces:
                text = piece * (LONG // len(piece))
                for response, label in ((text, "B"), ("</think>\\boxed{" + text + "}", "B"), ("answer", "x" + text)):
                    try:
                        graded(rule, response, label, {"choices": ["one", "two"]})
                    except (ValueError, outcomes.BadLine) as error:  # a label of which nothing is left, or of another form
                        self.assertIn("label", str(error))
        self.assertLess(time.process_time() - began, 60)

    def test_random_draws_from_the_seeded_generators(self):
        rule = rules.make("random")
        drawn = []
        for seed in range(200):
            slime_rules.generators.seed(seed)
            drawn.append(graded(rule, "", None))
            slime_rules.generators.seed(seed)
            self.assertEqual(drawn[-1], graded(rule, "anything", "x"))
        self.assertEqual(set(drawn), {0.0, 1.0})
        self.assertTrue(60 < sum(drawn) < 140, sum(drawn))

    def test_nothing_to_compare_with_is_no_reward(self):
        for name in ("deepscaler", "f1", "gpqa", "boxed_math"):
            for label in ("", " ", None, [], {}):
                with self.assertRaises(ValueError):
                    graded(rules.make(name), "</think>\\boxed{1}", label)


if __name__ == "__main__":
    unittest.main()
