"""Makes the files beside it with PEFT: an adapter of random numbers for the golden model qwen3-tied, and what
transformers and PEFT compute with it. Ran with peft 0.21.2, transformers 5.23.0 and torch 2.11.0, from the repository's
root: python3 tests/golden/lora/make.py. It also loads what Tandem saved, if a directory is named."""

import pathlib
import sys

import peft_reference
from peft import LoraConfig
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
BASE = "tests/golden/models/qwen3-tied"


def make():
    # A scale that is no power of two, and modules that leave a window out of every packed matrix.
    config = LoraConfig(r=4, lora_alpha=6, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                        target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"])
    model = peft_reference.random_adapter(BASE, config, 0.05, HERE)
    tensors = peft_reference.of_each_sequence(model)
    merged = model.merge_and_unload()
    weight = merged.model.layers[1].mlp.up_proj.weight.detach()
    tensors["merged.model.layers.1.mlp.up_proj.weight"] = weight.clone()
    save_file(tensors, HERE / "reference.safetensors")


if len(sys.argv) > 1:
    peft_reference.print_log_probs(BASE, sys.argv[1])
else:
    make()
