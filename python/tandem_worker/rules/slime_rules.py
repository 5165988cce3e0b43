"""Built-in rewards that answer as slime's of the same names do (slime/rollout/rm_hub; tests/golden/rewards holds slime's
own answers): deepscaler, f1, gpqa, random, and the box that the prefix boxed_ takes its answer from.

Each is (sample) -> number, like those of rewards.py. docs/REWARDS.md says where an answer differs from slime's."""

import math
import random as generators
import re
import string
from collections import Counter

from tandem_worker.rules.rewards import LONGEST_COMPARED, Math, label_text, no_label


def box_of(text):
    """What the last \\boxed{...} of a text holds, None without one that is closed. Unlike rewards.last_box() it does not
    go back to an earlier box, takes no \\fbox and no space before the brace, and counts escaped braces."""
    begin = text.rfind("\\boxed")
    opening = begin + len("\\boxed")
    if begin < 0 or text[opening : opening + 1] != "{":
        return None
    depth = 0
    for brace in re.finditer(r"[{}]", text[opening:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[opening + 1 : opening + brace.start()]
    return None


class Boxed:
    """Another rule, for the box of the response alone: boxed_RULE. Without a box the response is empty."""

    def __init__(self, rule):
        self._rule = rule

    def __call__(self, sample):
        return self._rule({**sample, "response": box_of(sample["response"]) or ""})


def random(sample):
    """0 or 1 by chance: the generators are seeded with the sample's id, so a run draws the same numbers again."""
    return float(generators.randint(0, 1))


# ---------------------------------------------------------------------------------------------------------- f1

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLE = re.compile(r"\b(?:a|an|the)\b")
WHOLE_ANSWERS = (["yes"], ["no"], ["noanswer"])  # of which a part is no half of an answer


def words_of(text):
    """SQuAD's normal form (Rajpurkar et al. 2016): words without case, punctuation and articles."""
    return ARTICLE.sub(" ", text.lower().translate(PUNCTUATION)).split()


def f1(sample):
    """The harmonic mean of the shares of words that response and label have in common."""
    found, expected = words_of(sample["response"]), words_of(label_text(sample))
    if found != expected and (found in WHOLE_ANSWERS or expected in WHOLE_ANSWERS):
        return 0.0
    num_common = sum((Counter(found) & Counter(expected)).values())
    if num_common == 0:
        return 0.0
    precision, recall = num_common / len(found), num_common / len(expected)
    return 2 * precision * recall / (precision + recall)


# ---------------------------------------------------------------------------------------------------------- gpqa

# These patterns find where a response names its letter; the first one that leads to a letter of the question counts.
# Their time grows only linearly with a long run of white space.
LETTER_NAMED = (
    re.compile(r"(?:answer|option|choice)\s*(?:(?:is|:)\s*)?([A-Z])", re.IGNORECASE),
    re.compile(r"([A-Z])\s*is\s*(?:the\s*)?correct", re.IGNORECASE),
    re.compile(r"final\s*(?:answer|option)\s*(?:(?:is|:)\s*)?([A-Z])", re.IGNORECASE),
)
LONE_LETTER = re.compile(r"\b([A-Z])\b")
NUM_LETTERS = 10  # of a question that does not say how many choices it has
NEITHER_LETTER_NOR_DIGIT = re.compile(r"[^a-z0-9]+")


def plain(text):
    return NEITHER_LETTER_NOR_DIGIT.sub(" ", text.lower()).strip()


def named_letter(text, letters):
    """The letter of a choice that the text decides for, or None."""
    for pattern in LETTER_NAMED:
        named = pattern.search(text)
        if named and named.group(1).upper() in letters:
            return named.group(1).upper()
    return next((letter for letter in reversed(LONE_LETTER.findall(text)) if letter in letters), None)


class Choice:
    """The question of a sample: its letters and choices, and the right ones among them, as label and metadata have it.

    metadata keys: choices (a list, or an object of letters to texts), valid_letters, correct_letter, correct_answer,
    answer_text. The label is a letter, the text of a choice or the place of a choice, from 0."""

    def __init__(self, label, metadata):
        choices = metadata.get("choices")
        self.choices = list(choices.values() if isinstance(choices, dict) else choices or ())
        given = [str(letter).upper() for letter in metadata.get("valid_letters") or ()]
        self.letters = given or list(string.ascii_uppercase[: len(self.choices) or NUM_LETTERS])
        self.label = label.strip() if isinstance(label, str) else ""
        letter = metadata.get("correct_letter")
        self.letter = letter.strip().upper() if isinstance(letter, str) else None
        if isinstance(label, (int, float)):
            self.letter = self.letters[int(label)] if 0 <= int(label) < len(self.letters) else self.letter
        elif not self.letter and len(self.label) == 1 and self.label.upper() in self.letters:
            self.letter = self.label.upper()
        answers = [metadata.get("correct_answer"), metadata.get("answer_text"), self.label]
        if not self.letter and self.label:
            for letter, choice in zip(self.letters, self.choices):
                if plain(str(choice)) == plain(self.label):
                    self.letter = letter
                    break
        elif self.letter in self.letters and self.letters.index(self.letter) < len(self.choices):
            answers.append(self.choices[self.letters.index(self.letter)])
        self.answers = {plain(str(answer)) for answer in answers if answer} - {""}


def gpqa(sample):
    """1 when the response decides for the right letter of a multiple-choice question, or, where it names no letter, holds
    the text of the right choice; else 0. Thoughts before </think> do not count."""
    choice = Choice(sample["label"], sample["own_metadata"])
    if not choice.letter and not choice.answers:
        raise no_label(sample)
    text = sample["response"].rpartition("</think>")[2]
    letter = named_letter(text, set(choice.letters))
    if letter and choice.letter:
        return float(letter == choice.letter)
    said = plain(text)
    return float(any(answer in said for answer in choice.answers))


# ---------------------------------------------------------------------------------------------------- deepscaler

# The normal form of the MATH data set (Hendrycks et al. 2021): what is left out, then what is written in one way.
LEFT_OUT = ("\n", "\\!", "\\left", "\\right", "^{\\circ}", "^\\circ", "\\$", "\\%", "$")
WRITTEN_AS = (("tfrac", "frac"), ("dfrac", "frac"), (" .", " 0."), ("{.", "{0."))
ONLY_TEXT = re.compile(r"\\text\{(.+?)\}")
SHORT_FRACTION = re.compile(r"\\frac(?:(\d)|\{([^{}]*)\})(?:(\d)|\{([^{}]*)\})")
SHORT_ROOT = re.compile(r"\\sqrt([^{])")
PLAIN_FRACTION = re.compile(r"(-?\d+)/(\d+)")
ALMOST_FRACTION = re.compile(r"-?\d+.?/\d+.?")  # with a full stop behind it, too

# Words that say in what something is counted.
UNIT = re.compile(
    r"(?:degree|cm|centimeter|meter|mile|second|minute|hour|day|week|month|year|foot|feet|inch|yard)"
    r"(?:es)?s? *(?:\^[0-9]+)?"
)
MIXED_NUMBER = re.compile(r"(\d)(?: +(?=\d+/\d)| *(?=\\[td]?frac))")  # 7 3/4
DIGIT_COMMA = re.compile(r"(?<=\d),(?=\d\d\d(?!\d))")
WHOLE_NUMBER = re.compile(r"[-+]?\d{1,300}")
DECIMAL_NUMBER = re.compile(r"[-+]?(?:\d{1,300}\.?\d{0,300}|\.\d{1,300})(?:e[-+]?\d{1,3})?")
ROUNDING = 1e-7  # as far from a whole number a decimal one still is it
# Answers that match this pattern are only compared as text: equations, powers of two digits or of a power, and a full
# stop behind anything but a whole number.
NO_FORMULA = re.compile(r"=|\^\d\d|\^\(|\^\d+\^|(?:[^\d.]|\.\d+)\.$")
MAX_LETTERS = 2  # in a formula; what has more is words


def math_form(answer):
    """Two answers with the same form are equal."""
    answer = answer.strip()
    whole = ONLY_TEXT.fullmatch(answer)
    answer = whole.group(1).strip() if whole else answer
    answer = answer.replace("\\\\", "\\")
    for text in LEFT_OUT:
        answer = answer.replace(text, "")
    for before, after in WRITTEN_AS:
        answer = answer.replace(before, after)
    answer = answer.partition("\\text{ ")[0]  # a unit
    answer = "0" + answer if answer.startswith(".") else answer
    name, equals, value = answer.partition("=")
    if equals and "=" not in value and len(name) <= 2:  # k = 7
        answer = value
    answer = SHORT_ROOT.sub(r"\\sqrt{\1}", answer).replace(" ", "")
    answer = SHORT_FRACTION.sub(lambda m: f"\\frac{{{m[1] or m[2] or ''}}}{{{m[3] or m[4] or ''}}}", answer)
    answer = "\\frac{1}{2}" if answer == "0.5" else answer
    return PLAIN_FRACTION.sub(r"\\frac{\1}{\2}", answer) if PLAIN_FRACTION.fullmatch(answer) else answer


def plain_form(answer):
    """The answer as one would type it without TeX, units and case."""
    whole = ONLY_TEXT.fullmatch(answer)
    text = whole.group(1) if whole else answer
    for word in ("\\!", "\\%", "%", "\\$", "$", "\\left", "\\right"):
        text = text.replace(word, "")
    for word, sign in ((" or ", ","), (" and ", ","), ("\\cdot", "*"), ("\\times", "*")):
        text = text.replace(word, sign)
    text = UNIT.sub("", re.sub(r"\^ *\{?\\circ\}?", "", text))
    text = re.sub(r"\\[td]frac", r"\\frac", text)
    text = SHORT_FRACTION.sub(lambda m: f"{m[1] or m[2] or ''}/{m[3] or m[4] or ''}", text)
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf|mbox)\{(.*?)\}", r"\1", text)
    text = re.sub(r"[\s{}\\]", "", text).lower()
    text = DIGIT_COMMA.sub("", text)
    if WHOLE_NUMBER.fullmatch(text):
        return str(int(text))
    value = float(text) if DECIMAL_NUMBER.fullmatch(text) else math.nan
    is_near_whole = math.isfinite(value) and abs(value - round(value)) <= ROUNDING
    return str(round(value)) if is_near_whole else text


def is_whole(text):
    return WHOLE_NUMBER.fullmatch(text) is not None


class Deepscaler:
    """1 when the last box behind </think> (or ###Response) is the label, by form or by math-verify; else 0.

    As in slime, a fraction counts only as far reduced as the label is, a whole number only if it is written as one, and
    words only as they are."""

    def __init__(self):
        self._math = Math("deepscaler")

    def __call__(self, sample):
        label, response = label_text(sample), sample["response"]
        if "</think>" in response:
            solution = response.rpartition("</think>")[2]
        elif "###Response" in response:
            solution = response.split("###Response")[1]
        else:
            return 0.0
        answer = box_of(solution)
        truth = box_of(label) if "\\boxed" in label else label
        return float(answer is not None and truth is not None and self._equal(truth, answer))

    def _equal(self, truth, answer):
        if max(len(truth), len(answer)) > LONGEST_COMPARED:
            return truth == answer
        if math_form(truth) == math_form(answer):
            return True
        truth, answer = (MIXED_NUMBER.sub(r"\1+", text) for text in (truth, answer))
        expected, given = plain_form(truth), plain_form(answer)
        if expected == given:
            return True
        if not given or is_whole(expected) != is_whole(given):
            return False
        if ALMOST_FRACTION.fullmatch(expected) and ALMOST_FRACTION.fullmatch(given):
            return False
        if NO_FORMULA.search(expected) or NO_FORMULA.search(given):
            return False
        if "," in expected and expected[0] not in "([{":  # a list without brackets, whose order counts
            return False
        letters = {c for c in (expected + given).replace("sqrt", "").replace("frac", "") if c.isalpha()}
        return len(letters) <= MAX_LETTERS and self._math.equal(truth.rstrip("."), answer.rstrip("."))
