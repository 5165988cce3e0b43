"""Makes the files of this folder and of lora_saved_tied with PEFT: adapters next to which whole modules of the base are trained
(modules_to_save), and what transformers and PEFT compute with them. Embedding and head are two modules in one model and one in the
other, where norms are trained too. Ran with peft 0.21.2, transformers 5.23.0 and torch 2.11.0, from the repository's root:
python3 tests/golden/lora_saved/make.py. With a directory that Tandem saved, and its model, it prints what PEFT makes of that."""

import pathlib
import sys

from peft import LoraConfig
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "lora"))
import peft_reference

MODELS = "tests/golden/models/"


def make(folder, base, modules, **more):
    config = LoraConfig(r=2, lora_alpha=3, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                        target_modules=["q_proj", "down_proj"], modules_to_save=modules, **more)
    model = peft_reference.random_adapter(base, config, 0.05, folder)
    tensors = peft_reference.of_each_sequence(model)
    tensors["merged.model.norm.weight"] = model.merge_and_unload().state_dict()["model.norm.weight"].clone()
    save_file(tensors, folder / "reference.safetensors")


if len(sys.argv) > 1:
    peft_reference.print_log_probs(sys.argv[2], sys.argv[1])
else:
    make(HERE, MODELS + "qwen3-untied-sharded", ["embed_tokens", "lm_head"])
    make(HERE.parent / "lora_saved_tied", MODELS + "qwen3-tied", ["embed_tokens", "norm"], ensure_weight_tying=True)
