"""Computes what transformers and PEFT make of a model with an adapter: for the make.py of this folder, of lora_experts and of
lora_saved."""

import json

import torch
from peft import PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

IDS = [[5, 9, 300, 41, 7, 7, 250, 12, 471, 90, 33, 2, 60, 18], [100, 3, 3, 77]]


def base_model(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")


def random_adapter(directory, config, deviation, folder):
    """Returns the model with an adapter whose B matrices are random numbers of that deviation, which are also added to modules
    that are trained whole; saves it in the folder."""
    torch.manual_seed(7)
    model = get_peft_model(base_model(directory), config).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0.0, deviation)
        elif "modules_to_save" in name:
            parameter.data += torch.randn_like(parameter) * deviation
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    return model


def by_file_name(model, of):
    return {name.replace(".modules_to_save", "").replace(".default", ""): of(p).detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def of_each_sequence(model):
    """Logits, loss and gradients of each sequence by itself, by the names of reference.safetensors."""
    tensors = {}
    for i, ids in enumerate(IDS):
        batch = torch.tensor([ids])
        output = model(input_ids=batch, labels=batch)
        output.loss.backward()
        tensors[f"seq{i}.input_ids"] = batch[0].to(torch.int32)
        tensors[f"seq{i}.logits"] = output.logits[0].detach()
        tensors[f"seq{i}.loss"] = output.loss.detach().reshape(1)
        # An expert that no token chose has no gradient.
        grads = by_file_name(model, lambda p: torch.zeros_like(p) if p.grad is None else p.grad)
        tensors |= {f"seq{i}.grad.{name}": grad for name, grad in grads.items()}
        model.zero_grad()
    return tensors


def print_log_probs(directory, adapter):
    """Prints what PEFT makes of an adapter: log-probs of each sequence, with and without it."""
    base = base_model(directory)
    plain = [base(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1) for ids in IDS]
    model = PeftModel.from_pretrained(base, adapter).eval()
    for ids, without in zip(IDS, plain):
        logits = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        targets = torch.tensor(ids[1:])[:, None]
        of = lambda values: values[:-1].gather(1, targets).squeeze(1).tolist()
        print(json.dumps({"tokens": ids, "log_probs": of(logits), "without_adapter": of(without)}))
