"""What transformers computes with a sparse golden model, in the format of every tests/golden/reference/<model>: logits,
log-probs, entropies, hidden states, routing, greedy text, gradients and three steps of AdamW; and how far float32 is from
float64.py."""

import json

import float64
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

TEMPERATURES = (1.0, 0.7)
NUM_GREEDY, NUM_VALUES, STEPS = 32, 16, 3
DETAILED = 2  # the sequence whose hidden states and routing are kept
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.1}
CLIP = 1.0


def load(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def checkpoint_tensors(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def by_checkpoint_name(named):
    """transformers holds the experts of a layer as two tensors, gate_up_proj [X, 2F, E] and down_proj [X, E, F]; the checkpoint
    has one of each expert and projection."""
    result = {}
    for name, tensor in named:
        at, _, kind = name.rpartition(".")
        for j in range(tensor.shape[0] if at.endswith("mlp.experts") else 0):
            if kind == "down_proj":
                result[f"{at}.{j}.down_proj.weight"] = tensor[j].clone()
            else:
                gate, up = tensor[j].chunk(2)
                result |= {f"{at}.{j}.gate_proj.weight": gate.clone(), f"{at}.{j}.up_proj.weight": up.clone()}
        if not at.endswith("mlp.experts"):
            result[name] = tensor.clone()
    return dict(sorted(result.items()))


def scores(logits, ids, temperature):
    """Log-probabilities of the tokens that follow, and entropies."""
    logp = (logits / temperature).log_softmax(-1)
    return logp[:-1].gather(-1, ids[1:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def score_tensors(prefix, logits, ids, suffix=""):
    result = {}
    for temperature in TEMPERATURES:
        logp, entropy = scores(logits, ids, temperature)
        result |= {f"{prefix}logp_t{temperature}{suffix}": logp, f"{prefix}entropy_t{temperature}{suffix}": entropy}
    return result


def detailed_tensors(prefix, model, output):
    result = {f"{prefix}hidden.{j}": hidden[0] for j, hidden in enumerate(output.hidden_states)}
    for layer, logits in enumerate(output.router_logits):
        gate = model.model.layers[layer].mlp.gate
        # The router's own weights and choice, of the logits that it returned.
        probabilities = logits.softmax(-1, dtype=torch.float32)
        weights, experts = probabilities.topk(gate.top_k, -1)
        if gate.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        result |= {f"{prefix}router_logits.{layer}": logits, f"{prefix}router_weights.{layer}": weights,
                   f"{prefix}router_experts.{layer}": experts}
    return result


def greedy_tensors(prefix, model, weights, config, ids):
    output = model.generate(ids[None], attention_mask=torch.ones_like(ids)[None], do_sample=False, max_new_tokens=NUM_GREEDY,
                            eos_token_id=None, pad_token_id=0, use_cache=True)
    text = output[0]
    logits = model(text[None]).logits[0, len(ids) - 1 : -1]
    chosen = text[len(ids):]
    exact = float64.forward(weights, config, text).logits[len(ids) - 1 : -1]
    best = exact.topk(2, -1)
    assert torch.equal(best.indices[:, 0], chosen), "float64 would have chosen another token"
    return {f"{prefix}greedy_ids": chosen, f"{prefix}greedy_logp": logits.log_softmax(-1).gather(-1, chosen[:, None])[:, 0],
            f"{prefix}greedy_margin": (best.values[:, 0] - best.values[:, 1]).float()}, text


def batch_of(inputs):
    return {name: inputs[f"batch.{name}"] for name in ("input_ids", "attention_mask", "labels")}


def choose_places(gradients, generator):
    """Chooses the places of each parameter whose values are kept after AdamW, where the gradient is no rounding noise. Where a
    gradient is 0 everywhere, any place will do."""
    places = {}
    for name, gradient in gradients.items():
        flat = gradient.flatten().abs()
        clear = torch.where(flat >= 0.1 * flat.max())[0]
        chosen = clear[torch.randperm(len(clear), generator=generator)[:NUM_VALUES]]
        places[name] = {"shape": list(gradient.shape), "index": chosen.sort().values.tolist()}
    return places


def summary(parameters, places):
    return {name: {"sum": tensor.sum(dtype=torch.float64).item(), "abs_sum": tensor.double().abs().sum().item(),
                   "values": tensor.flatten()[places[name]["index"]].tolist()} for name, tensor in parameters.items()}


def train(parameters, loss_of):
    """Returns (loss, norm) of each step, the first gradients, and the weights after the first and the last step."""
    optimizer = torch.optim.AdamW(parameters.values(), **ADAMW)
    steps, first, after = [], None, {}
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
        if step == 1:
            first = by_checkpoint_name(gradients.items())
        for p, gradient in zip(parameters.values(), gradients.values()):
            p.grad = gradient  # weight decay also moves what no token reached
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP)
        optimizer.step()
        steps.append({"step": step, "loss": loss.item(), "grad_norm": norm.item()})
        after[step] = by_checkpoint_name((name, p.detach()) for name, p in parameters.items())
    return steps, first, after


def error(pairs):
    """Returns how far apart pairs of float32 and float64 tensors are: the largest difference, and the largest rms difference
    of one tensor."""
    pairs = [(a.double() - b, b) for a, b in pairs if b.numel() > 0]
    rms = [(d.square().mean().sqrt().item(), b.square().mean().sqrt().item()) for d, b in pairs]
    return {"max_abs": max(d.abs().max().item() for d, _ in pairs), "rms": max(d for d, _ in rms),
            "rel_rms": max(d / b for d, b in rms if b > 0)}


def adamw_error(after, exact):
    checksum = max(abs(after[name].sum(dtype=torch.float64).item() - exact[name].sum().item()) for name in after)
    differences = torch.cat([(after[name].double() - exact[name]).flatten() for name in after]).abs()
    return error([(after[name], exact[name]) for name in after]) | {
        "elements_off_by_more_than_1e-5": int((differences > 1e-5).sum()), "elements": len(differences),
        "max_abs_checksum_sum": checksum}


def make(folder, inputs, places=None, seed=0):
    """Returns the tensors of reference.safetensors, the content of reference.json, and the float64 forward of each sequence.
    inputs: the ids and labels of inputs.py; places: where values are kept, or None to choose them."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stored = checkpoint_tensors(folder)
    weights = {name: tensor.double() for name, tensor in stored.items()}
    model = load(folder, torch.float32)
    tensors, texts, exact = dict(inputs), [], []
    errors = {"logits": [], "logp": [], "entropy": [], "hidden": []}
    sequences = [inputs[f"seq{i}.input_ids"] for i in range(sum(name.startswith("seq") for name in inputs))]
    with torch.no_grad():
        for i, ids in enumerate(sequences):
            prefix = f"seq{i}."
            output = model(ids[None], output_hidden_states=True, output_router_logits=True)
            exact.append(float64.forward(weights, config, ids))
            theirs, ours = score_tensors(prefix, output.logits[0], ids), score_tensors(prefix, exact[i].logits, ids, "_f64")
            tensors |= {f"{prefix}logits": output.logits[0]} | theirs | ours
            errors["logits"].append((output.logits[0], exact[i].logits))
            for name, tensor in theirs.items():
                errors[name.split(".")[1].split("_")[0]].append((tensor, ours[name + "_f64"]))
            if i == DETAILED:
                tensors |= detailed_tensors(prefix, model, output)
                errors["hidden"] = [(a[0], b) for a, b in zip(output.hidden_states, exact[i].hidden)]
            greedy, text = greedy_tensors(prefix, model, weights, config, ids)
            tensors |= greedy
            texts.append(text)
        padded = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(ids) for ids in sequences], batch_first=True)
        together = model(padded, attention_mask=mask).logits
        padded_difference = max((together[i, : len(ids)] - tensors[f"seq{i}.logits"]).abs().max().item()
                                for i, ids in enumerate(sequences))
    margins = [tensors[f"seq{i}.greedy_margin"].min().item() for i in range(len(sequences))]
    errors = {name: error(pairs) for name, pairs in errors.items()}
    report = {"model": folder.name,
              "sequences": [{"length": len(ids), "min_greedy_margin": m} for ids, m in zip(sequences, margins)]}

    batch = batch_of(inputs)
    rows = [ids[: int(mask.sum())] for ids, mask in zip(batch["input_ids"], batch["attention_mask"])]
    with torch.no_grad():
        gap = min(routing.probability_gap().min().item() for ids in texts + rows
                  for routing in float64.forward(weights, config, ids).routing)
    if config.get("dtype", config.get("torch_dtype")) == "bfloat16":
        differs = [0, 0]
        errors["logits_bf16"], errors["logp_bf16"] = [], []
        narrow = load(folder, torch.bfloat16)
        for i, ids in enumerate(sequences):
            with torch.no_grad():
                logits = narrow(ids[None]).logits[0]
            logp, _ = scores(logits.float(), ids, 1.0)
            tensors |= {f"seq{i}.logits_bf16": logits, f"seq{i}.logp_t1.0_bf16": logp}
            errors["logits_bf16"].append((logits, exact[i].logits))
            errors["logp_bf16"].append((logp, tensors[f"seq{i}.logp_t1.0_f64"]))
            differs[0] += int((logits.argmax(-1) != exact[i].logits.argmax(-1)).sum())
            differs[1] += len(ids)
        errors |= {name: error(errors[name]) for name in ("logits_bf16", "logp_bf16")}

    parameters = dict(model.named_parameters())
    steps, gradients, after = train(parameters, lambda: model(**batch).loss)
    leaves = {name: tensor.clone().requires_grad_(True) for name, tensor in sorted(weights.items())}
    exact_steps, exact_gradients, exact_after = train(leaves, lambda: float64.mean_loss(leaves, config, batch))
    tensors |= {f"grad.{name}": gradient for name, gradient in gradients.items()}
    places = places or choose_places(gradients, torch.Generator().manual_seed(seed))
    initial = {name: stored[name].float() for name in sorted(stored)}
    report |= {
        "loss": steps[0]["loss"], "loss_f64": exact_steps[0]["loss"],
        "optimizer": {"class": "torch.optim.AdamW", "lr": ADAMW["lr"], "betas": list(ADAMW["betas"]), "eps": ADAMW["eps"],
                      "weight_decay": ADAMW["weight_decay"],
                      "weight_decay_on": "every parameter, norms and embeddings included", "clip_grad_norm": CLIP,
                      "dtype": "float32 parameters, gradients and moments", "steps": steps, "steps_f64": exact_steps},
        "parameters": places, "initial": summary(initial, places), "after_1": summary(after[1], places),
        "after_3": summary(after[STEPS], places)}
    errors |= {
        "grad": error([(gradients[name], exact_gradients[name]) for name in gradients]),
        "adamw_step1": adamw_error(after[1], exact_after[1]), "adamw_step3": adamw_error(after[STEPS], exact_after[STEPS]),
        "loss": max(abs(a["loss"] - b["loss"]) for a, b in zip(steps, exact_steps)),
        "grad_norm_rel": max(abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in zip(steps, exact_steps)),
        "adamw_sampled_elements": max((after[s][name].flatten()[p["index"]].double() - exact_after[s][name].flatten()[p["index"]])
                                      .abs().max().item() for s in (1, STEPS) for name, p in places.items())}
    report |= {"error_of_reference": errors, "largest_gradient_element": max(g.abs().max().item() for g in gradients.values()),
               "min_greedy_margin": min(margins), "min_router_gap": gap}
    if "logits_bf16" in errors:
        report["bf16_argmax_differs"] = differs
    report["padded_batch_max_abs_diff"] = padded_difference
    return tensors, report, exact
