"""Compares llama.cpp, reading a GGUF file of write_gguf.py, with transformers: the logits of the sequences of golden models in
float32, each token's best one too.

    .venv-peers/bin/python bench/peers/check_gguf.py [qwen3-tied qwen3-moe]

Attention is in float32 too. Exit code 1 if a logit differs by more than 1e-4."""

import json
import pathlib
import sys
import tempfile

import llama_cpp_generate
import numpy as np
from safetensors import safe_open

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
TOLERANCE = 1e-4


class Logits(llama_cpp_generate.Generator):
    """decode() returns the logits themselves."""

    def sample(self, logits, samples):
        return logits.copy()


def largest_difference(name, path):
    folder = GOLDEN / "models" / name
    llama_cpp_generate.write_gguf(folder, "float32", path)
    model, _quiet = llama_cpp_generate.load(path)
    vocab = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    with safe_open(GOLDEN / "reference" / name / "reference.safetensors", "numpy") as reference:
        sequences = [reference.get_tensor(f"seq{i}.input_ids") for i in range(5)]
        want = np.concatenate([reference.get_tensor(f"seq{i}.logits") for i in range(5)])
    rows = [(int(t), at, i, True) for i, ids in enumerate(sequences) for at, t in enumerate(ids)]
    with Logits(model, vocab, len(sequences), len(rows) + 256, float32_attention=True) as generator:
        got = generator.decode(rows)
    other_best = int((got.argmax(1) != want.argmax(1)).sum())
    return float(np.abs(got - want).max()), other_best, len(rows)


def main():
    failed = False
    for name in sys.argv[1:] or ["qwen3-tied", "qwen3-moe"]:
        with tempfile.TemporaryDirectory() as temporary:
            difference, other_best, tokens = largest_difference(name, pathlib.Path(temporary) / "model.gguf")
        print(f"{name}: {tokens} tokens, largest difference of a logit {difference:.1e}, another best token at {other_best}")
        failed |= difference > TOLERANCE
    sys.exit(failed)


if __name__ == "__main__":
    main()
