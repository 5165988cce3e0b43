"""The loss that balances experts, and its gradients, by autograd in float64 over the forward of float64.py. A sample is a row of a
reference's batch without its last token, which the trainer does not run."""

import float64
import torch

# Gradients that are kept, by the ends of their names.
KEPT = ("mlp.gate.weight", "o_proj.weight", "layernorm.weight", "q_norm.weight")


def loss_of_layer(routing):
    """sum_i f_i P_i of one sample: DeepSeek-V3's sequence-wise balance loss, arXiv 2412.19437, equations 17 to 20."""
    tokens, experts = routing.logits.shape
    chosen = routing.ids.shape[1]
    counts = torch.bincount(routing.ids.flatten(), minlength=experts).double()
    return (counts * experts / (chosen * tokens) * routing.logits.softmax(-1).mean(0)).sum()


def make(name, weights, config, batch):
    """Returns the loss of each layer, a mean over samples, and the gradients of their sum."""
    leaves = {key: tensor.double().clone().requires_grad_(True) for key, tensor in sorted(weights.items())}
    of_samples = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"]):
        routed = float64.forward(leaves, config, ids[: int(mask.sum()) - 1]).routing
        of_samples.append(torch.stack([loss_of_layer(routing) for routing in routed]))
    of_layers = torch.stack(of_samples).mean(0)
    of_layers.sum().backward()
    return {f"{name}.loss": of_layers.detach()} | {
        f"{name}.grad.{key}": leaf.grad.float() for key, leaf in leaves.items() if key.endswith(KEPT)}
