"""Makes the files beside it with PEFT: an adapter of random numbers for the golden model qwen3-tied, and what
transformers and PEFT compute with it. Ran with peft 0.21.2, transformers 5.23.0 and torch 2.11.0, from the repository's
root: python3 tests/golden/lora/make.py. It also loads what Tandem saved, if a directory is named."""

import json
import pathlib
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
BASE = "tests/golden/models/qwen3-tied"
IDS = [[5, 9, 300, 41, 7, 7, 250, 12, 471, 90, 33, 2, 60, 18], [100, 3, 3, 77]]


def base_model():
    return AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32, attn_implementation="eager")


def make():
    torch.manual_seed(7)
    # A scale that is no power of two, and modules that leave a window out of every packed matrix.
    config = LoraConfig(r=4, lora_alpha=6, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                        target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"])
    model = get_peft_model(base_model(), config).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0.0, 0.05)
    model.save_pretrained(HERE)
    (HERE / "README.md").unlink(missing_ok=True)
    tensors = {}
    for i, ids in enumerate(IDS):
        batch = torch.tensor([ids])
        output = model(input_ids=batch, labels=batch)
        output.loss.backward()
        tensors[f"seq{i}.input_ids"] = batch[0].to(torch.int32)
        tensors[f"seq{i}.logits"] = output.logits[0].detach()
        tensors[f"seq{i}.loss"] = output.loss.detach().reshape(1)
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            tensors[f"seq{i}.grad.{name.replace('.default', '')}"] = parameter.grad.clone()
            parameter.grad = None
    merged = model.merge_and_unload()
    weight = merged.model.layers[1].mlp.up_proj.weight.detach()
    tensors["merged.model.layers.1.mlp.up_proj.weight"] = weight.clone()
    save_file(tensors, HERE / "reference.safetensors")


def load(directory):
    """Prints what PEFT makes of an adapter that Tandem wrote: mean log-prob of each sequence, with and without it."""
    base = base_model()
    plain = [base(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1) for ids in IDS]
    model = PeftModel.from_pretrained(base, directory).eval()
    for ids, without in zip(IDS, plain):
        logits = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        targets = torch.tensor(ids[1:])[:, None]
        of = lambda values: values[:-1].gather(1, targets).squeeze(1).tolist()
        print(json.dumps({"tokens": ids, "log_probs": of(logits), "without_adapter": of(without)}))


if len(sys.argv) > 1:
    load(sys.argv[1])
else:
    make()
