"""Makes the files beside it with PEFT: an adapter of random numbers for the golden model qwen3-moe, with matrices of its experts,
and what transformers and PEFT compute with it. Ran with peft 0.21.2, transformers 4.57.6 (in which each matrix of an expert is a
Linear) and torch 2.11.0, from the repository's root: python3 tests/golden/lora_experts/make.py. With a directory that Tandem saved it
prints what PEFT makes of that; transformers 5, which holds the experts of a layer as two parameters, does that too."""

import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "lora"))
import peft_reference
from peft_reference import IDS, by_file_name

BASE = "tests/golden/models/qwen3-moe"
# An update is then the gradient's size over its size plus eps, so that the rounding of a small gradient changes it little.
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.98), "eps": 1e-4, "weight_decay": 0.1}
CLIP = 1.0
MIN_ROUTER_GAP = 1e-4  # between the last expert that is chosen and the next: no rounding decides


def smallest_gap(model, ids):
    logits = model(input_ids=torch.tensor([ids]), output_router_logits=True).router_logits
    top = torch.cat(logits).topk(model.config.num_experts_per_tok + 1, -1).values
    return (top[:, -2] - top[:, -1]).min().item()


def step(model):
    """One step of AdamW on the mean loss of all tokens that follow another; returns the loss, and the adapter after it."""
    losses = [torch.nn.functional.cross_entropy(model(input_ids=torch.tensor([ids])).logits[0, :-1], torch.tensor(ids[1:]),
                                                reduction="sum") for ids in IDS]
    loss = sum(losses) / sum(len(ids) - 1 for ids in IDS)
    loss.backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:  # torch leaves out those without a gradient: experts that no token chose, which decay too
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    torch.nn.utils.clip_grad_norm_(trained, CLIP)
    torch.optim.AdamW(trained, **ADAMW).step()
    return loss.detach().reshape(1), by_file_name(model, lambda p: p)


def make():
    # A scale that is no power of two.
    config = LoraConfig(r=2, lora_alpha=3, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                        target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"])
    model = peft_reference.random_adapter(BASE, config, 0.2, HERE)
    assert min(smallest_gap(model, ids) for ids in IDS) >= MIN_ROUTER_GAP
    tensors = peft_reference.of_each_sequence(model)
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    merged = get_peft_model(peft_reference.base_model(BASE), config)
    merged.load_state_dict(model.state_dict())
    tensors[f"merged.{name}"] = merged.merge_and_unload().state_dict()[name].clone()
    tensors["step.loss"], after = step(model)
    tensors |= {f"step.after.{name}": tensor for name, tensor in after.items()}
    save_file(tensors, HERE / "reference.safetensors")


if len(sys.argv) > 1:
    peft_reference.print_log_probs(BASE, sys.argv[1])
else:
    make()
