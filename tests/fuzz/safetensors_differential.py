"""Asks Tandem's safetensors reader and the official library about the same mutants: exit code 1 when they disagree.

    python tests/fuzz/safetensors_differential.py PROGRAM [--count N] [--seed S]

PROGRAM is safetensors_mutants. What only Tandem refuses must break one of the stricter rules that
src/weights/safetensors.h lists, found here with another JSON parser; what both accept must have the same tensors, bytes
and metadata.
"""

import argparse
import collections
import json
import struct
import subprocess
import sys
import time

try:
    import safetensors
except ImportError:
    sys.exit("the package safetensors is not installed: run `make setup`")

FIELDS = {"dtype", "shape", "data_offsets"}
SHOWN = 10  # disagreements


class Pairs(list):
    """A JSON object with all that it says, twice or not."""

    def keys(self):
        return [key for key, _ in self]

    def has_twins(self):
        return len(set(self.keys())) < len(self)


def header_of(file):
    (length,) = struct.unpack("<Q", file[:8])
    return file[8 : 8 + length]


def stricter_rules(file):
    """The rules of Tandem alone that a file which the official library accepts breaks."""
    text = header_of(file)
    if not text.startswith(b"{"):
        yield "does not begin with {"
    # strict=False and bytes that are no UTF-8 cannot occur: the official library has accepted the text.
    header = json.loads(text, object_pairs_hook=Pairs)
    if header.has_twins():
        yield "name twice"
    for name, value in header:
        if len(name.encode()) > 4096:
            yield "long name"
        if name == "__metadata__":
            if value is None:
                yield "metadata null"
            elif value.has_twins():
                yield "metadata key twice"
            continue
        if not isinstance(value, Pairs):
            yield "tensor as a list"
            continue
        if set(value.keys()) - FIELDS:
            yield "unknown field"
        shape = next(dims for field, dims in value if field == "shape")
        if len(shape) > 32:
            yield "more than 32 dims"
        if any(dim > 2**63 - 1 for dim in shape):
            yield "dim above 2^63 - 1"


def content_of(file):
    """What the official library reads, as Tandem states it; None where it refuses."""
    try:
        tensors = safetensors.deserialize(file)
    except safetensors.SafetensorError:
        return None
    return {name: (tensor["dtype"], tensor["shape"], bytes(tensor["data"])) for name, tensor in tensors}


def same_content(file, official, answer):
    header = header_of(file)
    data = file[8 + len(header) :]
    ours = {name: (dtype, shape, data[begin:end]) for name, (dtype, shape, begin, end) in answer["tensors"].items()}
    metadata = json.loads(header).get("__metadata__") or {}
    return ours == official and answer["metadata"] == metadata


def judge(file, answer):
    """(what the pair of answers is, is it a disagreement)"""
    official = content_of(file)
    if official is None:
        return ("both refuse", False) if "refused" in answer else ("only Tandem accepts", True)
    if "refused" not in answer:
        is_same = same_content(file, official, answer)
        return ("both accept", False) if is_same else ("accepted, but read otherwise", True)
    rules = sorted(set(stricter_rules(file)))
    return (f"stricter: {rules[0]}", False) if rules else ("only Tandem refuses, by no rule", True)


def read_piece(stream):
    length = stream.read(4)
    return stream.read(struct.unpack("<I", length)[0]) if length else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"safetensors {safetensors.__version__}, {arguments.count} mutants of --seed {arguments.seed}", flush=True)
    start = time.monotonic()
    kinds, num_wrong = collections.Counter(), 0
    command = [arguments.program, str(arguments.count), str(arguments.seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        while (file := read_piece(child.stdout)) is not None:
            answer = json.loads(read_piece(child.stdout))
            kind, is_wrong = judge(file, answer)
            kinds[kind] += 1
            num_wrong += is_wrong
            if is_wrong and num_wrong <= SHOWN:
                print(f"{kind}: {file!r}\n  Tandem: {answer}", file=sys.stderr)
    for kind, count in sorted(kinds.items()):
        print(f"{count:9d}  {kind}")
    print(f"{num_wrong} disagreements in {sum(kinds.values())} mutants, {time.monotonic() - start:.0f} s")
    complete = child.returncode == 0 and sum(kinds.values()) == arguments.count
    if not complete:
        print(f"safetensors_mutants ended with code {child.returncode}", file=sys.stderr)
    return 0 if complete and num_wrong == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
