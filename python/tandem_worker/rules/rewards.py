"""Tandem's own built-in rewards: (sample) -> number, or a dict of numbers with "score". They know nothing of processes.
rules.py has the table of all."""

import json
import re

from tandem_worker.protocol import MachineFault, one_line


class TookTooLong(Exception):
    """A reward gave up on its own clock, before the caller's deadline."""


def label_text(sample):
    """The label that a response is compared with, without white space around it: a string, or what JSON writes for a
    number or bool. Without one there is nothing to compare with: an empty response must not be right for that."""
    label = sample["label"]
    text = label.strip() if isinstance(label, str) else json.dumps(label)
    if not text or label is None or isinstance(label, (list, dict)):
        raise no_label(sample)
    return text


def no_label(sample):
    """Says that nothing is there to compare a response with; to be raised."""
    label = sample["label"]
    text = label.strip() if isinstance(label, str) else json.dumps(label)
    return ValueError(f"the label is {text[:100] or 'empty'}, which no response can be compared with")


THOUGHT, THOUGHT_END = "<think>", "</think>"


def without_unfinished_thought(sample):
    """The response without a thought that it never ends, and all that follows: a number that a completion happened to
    hold when it was cut is no answer. Some chat templates open the thought at the end of the prompt."""
    response = sample["response"]
    ended = response.rfind(THOUGHT_END)
    if ended < 0 and sample.get("prompt_text", "").rstrip().endswith(THOUGHT):
        return ""
    begun = response.find(THOUGHT, ended + len(THOUGHT_END) if ended >= 0 else 0)
    return response if begun < 0 else response[:begun]


def exact(sample):
    """1 when the response is the label, white space around both aside; else 0."""
    return float(sample["response"].strip() == label_text(sample))


def none(sample):
    """0: whoever learns from a teacher alone needs no reward."""
    return 0.0


# ---------------------------------------------------------------------------------------------------------- math

# A sign belongs to the number only where nothing stands before it to subtract from.
NUMBER = re.compile(
    r"(?:(?<![\w)\].])[-+])?"  # sign
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+)"  # 12, 1,234, 1.5, .5
    r"(?:/\d+(?:\.\d+)?|\\?%)?"  # a denominator or a percent sign
)
INTEGER = re.compile(r"[-+]?\d{1,300}")
BOX = re.compile(r"\\f?boxed\s*\{")
BRACE = re.compile(r"(?<!\\)[{}]")


def last_box(text):
    """What the last \\boxed{...} (or \\fbox{...}) with balanced braces holds; None where there is none. One walk over the
    text, however many boxes are opened and never closed."""
    boxes = {opening.end() - 1 for opening in BOX.finditer(text)}
    last, end = -1, -1
    unclosed = []
    for brace in BRACE.finditer(text) if boxes else ():
        if brace.group() == "{":
            unclosed.append(brace.start())
        elif unclosed and (opening := unclosed.pop()) > last and opening in boxes:
            last, end = opening, brace.start()
    return text[last + 1 : end].strip() if last >= 0 else None


# The most characters of a label or an answer that math-verify is asked about. It takes minutes over longer ones, and no
# exercise has them.
LONGEST_COMPARED = 10_000


def last_number(text):
    numbers = NUMBER.findall(text)
    return numbers[-1] if numbers else None


class Math:
    """1 when the last \\boxed{...}, or else the last number of the response, equals the label by math-verify; else 0.

    A label or an answer of more than LONGEST_COMPARED characters is right when it is the same text, and else wrong.

    math-verify stops itself with SIGALRM after 5 s a parse or comparison, which works because a grader calls it on the
    main thread of its process. Running out of that time says nothing about the answer, so it is a failure, not a 0.
    """

    def __init__(self, rm_type="math"):
        try:
            import math_verify
            import math_verify.errors
        except ImportError as error:
            raise MachineFault(f"--rm-type {rm_type} needs the package math-verify: {one_line(error)}") from None
        self._library = math_verify
        self._timeout = math_verify.errors.TimeoutException

    def __call__(self, sample):
        label = label_text(sample)
        answer = last_box(sample["response"])
        if answer is None:
            answer = last_number(sample["response"])
        if not answer:
            return 0.0
        box = last_box(label)
        return float(self.equal(label if box is None else box, answer))

    def equal(self, label, answer):
        """Whether two formulas mean the same. TookTooLong where that cannot be found out in time."""
        if label == answer:
            return True
        if INTEGER.fullmatch(label) and INTEGER.fullmatch(answer):
            return int(label) == int(answer)
        if max(len(label), len(answer)) > LONGEST_COMPARED:
            return False
        try:
            golds, targets = self._parse(label), self._parse(answer)
        except self._timeout:
            raise TookTooLong("math-verify did not finish reading the answer in 5 s") from None
        timed_out = False
        for gold in golds:
            for target in targets:
                try:
                    if self._library.verify(gold, target, raise_on_error=True):
                        return True
                except self._timeout:
                    timed_out = True
                except MemoryError:
                    raise
                except Exception:  # two things that sympy cannot compare are not equal
                    pass
        if timed_out:
            raise TookTooLong("math-verify did not finish comparing the answer in 5 s")
        return False

    def _parse(self, text):
        """What the text may mean; nothing where math-verify cannot read it. Raises where its time ran out."""
        boxed = "\\boxed{" + re.sub(r"(?<!\\)%", r"\%", text) + "}"  # a bare % opens a comment
        try:
            return self._library.parse(boxed, raise_on_error=True)
        except MemoryError:
            raise
        except Exception:
            return []


# ---------------------------------------------------------------------------------------------------------- dapo

# Normal form of a short answer: Minerva (Lewkowycz et al. 2022, appendix D.1), with the lists that verl and slime use.
# Order matters.
REPLACED = (
    ("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text"),
    (",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}"),
)  # fmt: skip
DROPPED = (
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}",
    "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots",
    "<|im_end|>", "<|endoftext|>",
)  # fmt: skip
UNWRAPPED = ("\\text{", "\\textbf{", "\\overline{")
BRACED = (
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
)
ANSWER_LINE = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
DAPO_TAIL_CHARACTERS = 300


# The next three are regular expressions of the form, each in one walk over the line: as expressions they try every
# opening to the line's end, which on a degenerate answer or label takes longer than a grader may.


def first_formula(line):
    """re.sub(r".*?\\$(.*?)\\$.*", r"$\\1$", line)"""
    parts = line.split("$", 2)
    return line if len(parts) < 3 else f"${parts[1]}$"


def unwrapped(line, opening):
    """re.sub(opening + r"(.*?)\\}", r"\\1", line)"""
    pieces, done = [], 0
    while (begin := line.find(opening, done)) >= 0:
        inside = begin + len(opening)
        end = line.find("}", inside)
        if end < 0:
            break
        pieces += line[done:begin], line[inside:end]
        done = end + 1
    return "".join(pieces) + line[done:]


def unboxed(line):
    """re.sub(r"\\\\boxed\\{(.*)\\}", r"\\1", line)"""
    opening = "\\boxed{"
    begin, end = line.find(opening), line.rfind("}")
    inside = begin + len(opening)
    return line if begin < 0 or end < inside else line[:begin] + line[inside:end] + line[end + 1 :]


def minerva_form(answer):
    answer = answer.split("=")[-1]
    for before, after in REPLACED:
        answer = answer.replace(before, after)
    for unit in DROPPED:
        answer = answer.replace(unit, "")
    lines = [first_formula(line) for line in answer.split("\n")]
    for opening in UNWRAPPED:
        lines = [unwrapped(line, opening) for line in lines]
    answer = "\n".join(unboxed(line) for line in lines)
    for pattern, replacement in BRACED:
        answer = pattern.sub(replacement, answer)
    answer = answer.replace("$", "")
    if answer.replace(",", "").isdigit():
        answer = answer.replace(",", "")
    return answer.strip()


def dapo(sample):
    """score +1 or -1 and acc, for the last "Answer: ..." among the last 300 characters (DAPO, Yu et al. 2025; slime's
    rm-type dapo).

    As in slime, a whole-numbered label is compared as an integer ("34.0" is "34"); other labels, which slime cannot
    take, are compared in normal form, as in verl.
    """
    found = ANSWER_LINE.findall(sample["response"][-DAPO_TAIL_CHARACTERS:])
    prediction = minerva_form(found[-1] if found else "[INVALID]")
    label = minerva_form(label_text(sample))
    if not label:
        raise ValueError(f"nothing is left of the label {label_text(sample)[:100]} in normal form")
    try:
        if float(label).is_integer():
            label = str(int(float(label))) if not INTEGER.fullmatch(label) else str(int(label))
    except (ValueError, OverflowError):
        pass
    correct = prediction == label
    return {"score": 1.0 if correct else -1.0, "acc": correct, "pred": prediction}
