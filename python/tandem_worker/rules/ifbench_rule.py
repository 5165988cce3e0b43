"""The built-in reward `ifbench`: whether a response follows the instructions of its line (IFEval, IFBench, IF-RLVR), which
programs can check.

    shape of a line                                                             as in
    {"instruction_id_list": ["...", ...], "kwargs": [{...}, ...]}               the files of IFEval and IFBench
    the same under "metadata"                                                   slime's data for rm_type ifbench
    a label [{"instruction_id": [...], "kwargs": [...]}], or its text in        the data of IF-RLVR: its ground_truth
    Python or JSON

Each entry of "kwargs" has the arguments of the instruction at its place; null and an argument that is null say nothing.
What cannot be checked as published is refused: a line is read when the run starts, and again with each response."""

import ast
import json

from tandem_worker.outcomes import BadLine
from tandem_worker.rules import english, ifbench, ifeval, ifrlvr  # noqa: F401  the checks enter themselves into a table
from tandem_worker.rules.instructions import BadInstruction, checked_by

THOUGHT_END = "</think>"


def value_of(text):
    """What a text says in JSON or as a literal of Python."""
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


def instructions_of(sample):
    """The metadata of a line, or what its label says in its place."""
    metadata, label = sample["own_metadata"], sample["label"]
    if "instruction_id_list" in metadata:
        return metadata
    try:
        if isinstance(label, str):
            label = value_of(label)
        if isinstance(label, list) and len(label) == 1:
            label = label[0]
        if isinstance(label, str):
            label = value_of(label)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return metadata
    if not isinstance(label, dict) or "instruction_id" not in label:
        return metadata
    return {"instruction_id_list": label["instruction_id"], "kwargs": label.get("kwargs")}


def checks_of(metadata):
    """The functions (text) -> bool of a line. BadLine where it has none that can be checked."""
    names, arguments = metadata.get("instruction_id_list"), metadata.get("kwargs")
    if not isinstance(names, list) or not names:
        raise BadLine(
            "instruction_id_list is to be a list of the names of instructions, in the line or its metadata, or instruction_id in "
            "its label"
        )
    if arguments is None:
        arguments = [None] * len(names)
    if not isinstance(arguments, list) or len(arguments) != len(names):
        raise BadLine(f"kwargs is to be a list of {len(names)} objects, one for each of instruction_id_list")
    checks = []
    for i, (name, given) in enumerate(zip(names, arguments)):
        if not isinstance(given, (dict, type(None))):
            raise BadLine(f"kwargs[{i}] is to be an object with the arguments of {name!r:.80}")
        try:
            checks.append(checked_by(name, given or {}))
        except BadInstruction as error:
            raise BadLine(f"instruction_id_list[{i}]: {error}") from None
    return checks


def loose_forms(text):
    """The text without its first line, its last, both, and each of them without stars (IFEval, section 2.2)."""
    lines = text.split("\n")
    whole = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [form for plain in whole for form in (plain, plain.replace("*", ""))]


def follows(check, text):
    return bool(text.strip()) and check(text)


class Ifbench:
    """{"score": 1 where all instructions are followed, else 0; "followed": the share that are; "loose", "loose_followed":
    the same where one of the loose forms of the response is enough for an instruction}."""

    def __init__(self):
        english.load("--rm-type ifbench")

    def __call__(self, sample):
        checks = checks_of(instructions_of(sample))
        text = sample["response"].rpartition(THOUGHT_END)[2]
        strict = [follows(check, text) for check in checks]
        forms = loose_forms(text)
        loose = [kept or any(follows(check, form) for form in forms) for kept, check in zip(strict, checks)]
        return {
            "score": float(all(strict)),
            "followed": sum(strict) / len(strict),
            "loose": float(all(loose)),
            "loose_followed": sum(loose) / len(loose),
        }
