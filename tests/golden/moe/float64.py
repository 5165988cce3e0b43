"""A forward of Qwen3-MoE in float64, written apart from transformers: it measures how exact a float32 reference is.

Weights are a dict of float64 tensors by their names in the checkpoint, `config` is config.json as a dict. One sequence at a
time, without padding and without a cache."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F


@dataclass
class Routing:
    """One sparse layer's choice: logits [T, X], and of the k chosen experts, largest logit first, ids and weights [T, k]."""

    logits: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    def margin(self):
        """How far the last chosen expert's logit is above the first rejected one's, [T]."""
        return self._gap(self.logits)

    def probability_gap(self):
        return self._gap(self.logits.softmax(-1))

    def _gap(self, scores):
        ordered = scores.sort(-1, descending=True).values
        k = self.ids.shape[-1]
        return ordered[:, k - 1] - ordered[:, k]


@dataclass
class Forward:
    logits: torch.Tensor
    hidden: list = field(default_factory=list)  # the embedding, the output of each layer but the last, the final norm's
    routing: list = field(default_factory=list)


def route(logits, chosen, normalises):
    """The rule: the larger logit, among equal ones the lower expert id; -0 equals 0."""
    ids = torch.argsort(logits, dim=-1, descending=True, stable=True)[:, :chosen]
    if normalises:
        weights = logits.gather(-1, ids).softmax(-1)
    else:
        weights = logits.softmax(-1).gather(-1, ids)
    return Routing(logits, ids, weights)


def sparse_mlp(x, router, expert, chosen, normalises):
    """x [T, E], router [X, E]; expert(j) returns gate [F, E], up [F, E] and down [E, F] of expert j."""
    routing = route(x @ router.T, chosen, normalises)
    out = torch.zeros_like(x)
    for j in range(router.shape[0]):
        tokens, places = torch.where(routing.ids == j)
        if len(tokens) == 0:
            continue
        gate, up, down = expert(j)
        y = (F.silu(x[tokens] @ gate.T) * (x[tokens] @ up.T)) @ down.T
        out = out.index_add(0, tokens, routing.weights[tokens, places, None] * y)
    return out, routing


def norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x, angles):
    """x [T, heads, head_dim]: element i and element i + head_dim / 2 are turned by the i-th angle of the row's position."""
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attention(x, weight, config, angles):
    length, head_dim, eps = x.shape[0], config["head_dim"], config["rms_norm_eps"]
    q = (x @ weight("q_proj.weight").T).view(length, -1, head_dim)
    k = (x @ weight("k_proj.weight").T).view(length, -1, head_dim)
    v = (x @ weight("v_proj.weight").T).view(length, -1, head_dim)
    q, k = rotate(norm(q, weight("q_norm.weight"), eps), angles), rotate(norm(k, weight("k_norm.weight"), eps), angles)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("thd,shd->hts", q, k) / head_dim**0.5
    hidden_future = torch.ones(length, length, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(hidden_future, -torch.inf).softmax(-1)
    return torch.einsum("hts,shd->thd", shares, v).reshape(length, -1) @ weight("o_proj.weight").T


def forward(weights, config, ids):
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    half = config["head_dim"] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(len(ids), dtype=torch.float64)[:, None] * frequencies
    eps, chosen, normalises = config["rms_norm_eps"], config["num_experts_per_tok"], config["norm_topk_prob"]
    result = Forward(logits=None)
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        result.hidden.append(x)
        at = f"model.layers.{layer}."
        normed = norm(x, weights[at + "input_layernorm.weight"], eps)
        x = x + attention(normed, lambda name, at=at: weights[f"{at}self_attn.{name}"], config, angles)
        normed = norm(x, weights[at + "post_attention_layernorm.weight"], eps)

        def expert(j, at=at):
            return (weights[f"{at}mlp.experts.{j}.{name}_proj.weight"] for name in ("gate", "up", "down"))

        out, routing = sparse_mlp(normed, weights[at + "mlp.gate.weight"], expert, chosen, normalises)
        x = x + out
        result.routing.append(routing)
    x = norm(x, weights["model.norm.weight"], eps)
    result.hidden.append(x)
    result.logits = x @ weights["lm_head.weight"].T
    return result


def mean_loss(weights, config, batch):
    """The mean cross-entropy over all labels of the batch that are not -100, a row at a time."""
    total, count = 0.0, 0
    for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"]):
        length = int(mask.sum())
        targets = labels[1:length]
        logits = forward(weights, config, ids[:length]).logits[:-1]
        total = total + F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
        count += int((targets != -100).sum())
    return total / count
