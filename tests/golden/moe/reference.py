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


def detailed_tensors(prefix, model, ids):
    """Hidden states, and what each router returned: logits, and weights and experts as the experts used them."""
    routed = []
    hooks = [layer.mlp.gate.register_forward_hook(lambda _module, _inputs, returned: routed.append(returned))
             for layer in model.model.layers]
    hidden_states = model(ids[None], output_hidden_states=True).hidden_states
    for hook in hooks:
        hook.remove()
    result = {f"{prefix}hidden.{j}": hidden[0] for j, hidden in enumerate(hidden_states)}
    for layer, (logits, weights, experts) in enumerate(routed):
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


class Reference:
    """Tensors of reference.safetensors and the content of reference.json, filled piece by piece; `exact` has float64's forward of
    each sequence. inputs: the ids and labels of inputs.py."""

    def __init__(self, folder, inputs):
        self.folder, self.tensors = folder, dict(inputs)
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.stored = checkpoint_tensors(folder)
        self.weights = {name: tensor.double() for name, tensor in self.stored.items()}
        self.model = load(folder, torch.float32)
        self.sequences = [inputs[name] for name in sorted(inputs) if name.startswith("seq")]
        self.batch = {name: inputs[f"batch.{name}"] for name in ("input_ids", "attention_mask", "labels")}
        self.exact, self.errors, self.report = [], {}, {"model": folder.name}

    @torch.no_grad()
    def add_sequences(self):
        pairs = {"logits": [], "logp": [], "entropy": [], "hidden": []}
        for i, ids in enumerate(self.sequences):
            prefix = f"seq{i}."
            logits = self.model(ids[None]).logits[0]
            self.exact.append(float64.forward(self.weights, self.config, ids))
            theirs = score_tensors(prefix, logits, ids)
            ours = score_tensors(prefix, self.exact[i].logits, ids, "_f64")
            self.tensors |= {f"{prefix}logits": logits} | theirs | ours
            pairs["logits"].append((logits, self.exact[i].logits))
            for name, tensor in theirs.items():
                pairs[name.split(".")[1].split("_")[0]].append((tensor, ours[name + "_f64"]))
            if i == DETAILED:
                self.tensors |= detailed_tensors(prefix, self.model, ids)
                pairs["hidden"] = [(self.tensors[f"{prefix}hidden.{j}"], h) for j, h in enumerate(self.exact[i].hidden)]
        self.errors |= {name: error(of) for name, of in pairs.items()}

    @torch.no_grad()
    def add_greedy_texts(self):
        texts, margins = [], []
        for i, ids in enumerate(self.sequences):
            greedy, text = greedy_tensors(f"seq{i}.", self.model, self.weights, self.config, ids)
            self.tensors |= greedy
            texts.append(text)
            margins.append(greedy[f"seq{i}.greedy_margin"].min().item())
        rows = [ids[: int(mask.sum())] for ids, mask in zip(self.batch["input_ids"], self.batch["attention_mask"])]
        gap = min(routing.probability_gap().min().item() for ids in texts + rows
                  for routing in float64.forward(self.weights, self.config, ids).routing)
        self.report |= {"min_greedy_margin": min(margins), "min_router_gap": gap, "sequences": [
            {"length": len(ids), "min_greedy_margin": margin} for ids, margin in zip(self.sequences, margins)]}

    @torch.no_grad()
    def add_padded(self):
        pad = torch.nn.utils.rnn.pad_sequence
        mask = pad([torch.ones_like(ids) for ids in self.sequences], batch_first=True)
        together = self.model(pad(self.sequences, batch_first=True), attention_mask=mask).logits
        self.report["padded_batch_max_abs_diff"] = max(
            (together[i, : len(ids)] - self.tensors[f"seq{i}.logits"]).abs().max().item() for i, ids in enumerate(self.sequences))

    @torch.no_grad()
    def add_bfloat16(self):
        if self.config.get("dtype", self.config.get("torch_dtype")) != "bfloat16":
            return
        logits_pairs, logp_pairs, differs = [], [], 0
        narrow = load(self.folder, torch.bfloat16)
        for i, ids in enumerate(self.sequences):
            logits = narrow(ids[None]).logits[0]
            logp, _ = scores(logits.float(), ids, 1.0)
            self.tensors |= {f"seq{i}.logits_bf16": logits, f"seq{i}.logp_t1.0_bf16": logp}
            logits_pairs.append((logits, self.exact[i].logits))
            logp_pairs.append((logp, self.tensors[f"seq{i}.logp_t1.0_f64"]))
            differs += int((logits.argmax(-1) != self.exact[i].logits.argmax(-1)).sum())
        self.errors |= {"logits_bf16": error(logits_pairs), "logp_bf16": error(logp_pairs)}
        self.report["bf16_argmax_differs"] = [differs, sum(len(ids) for ids in self.sequences)]

    def add_training(self, places, seed):
        """Trains the model itself: nothing else can be added after."""
        steps, gradients, after = train(dict(self.model.named_parameters()), lambda: self.model(**self.batch).loss)
        leaves = {name: tensor.clone().requires_grad_(True) for name, tensor in sorted(self.weights.items())}
        exact_steps, exact_gradients, exact_after = train(leaves, lambda: float64.mean_loss(leaves, self.config, self.batch))
        self.tensors |= {f"grad.{name}": gradient for name, gradient in gradients.items()}
        places = places or choose_places(gradients, torch.Generator().manual_seed(seed))
        initial = {name: tensor.float() for name, tensor in sorted(self.stored.items())}
        self.report |= {
            "loss": steps[0]["loss"], "loss_f64": exact_steps[0]["loss"],
            "optimizer": {"class": "torch.optim.AdamW", **ADAMW, "betas": list(ADAMW["betas"]),
                          "weight_decay_on": "every parameter, norms and embeddings included", "clip_grad_norm": CLIP,
                          "dtype": "float32 parameters, gradients and moments", "steps": steps, "steps_f64": exact_steps},
            "parameters": places, "initial": summary(initial, places), "after_1": summary(after[1], places),
            "after_3": summary(after[STEPS], places),
            "largest_gradient_element": max(gradient.abs().max().item() for gradient in gradients.values())}
        sampled = [(after[s][name].flatten()[p["index"]].double(), exact_after[s][name].flatten()[p["index"]])
                   for s in (1, STEPS) for name, p in places.items()]
        self.errors |= {
            "grad": error([(gradients[name], exact_gradients[name]) for name in gradients]),
            "adamw_step1": adamw_error(after[1], exact_after[1]), "adamw_step3": adamw_error(after[STEPS], exact_after[STEPS]),
            "loss": max(abs(a["loss"] - b["loss"]) for a, b in zip(steps, exact_steps)),
            "grad_norm_rel": max(abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in zip(steps, exact_steps)),
            "adamw_sampled_elements": max((a - b).abs().max().item() for a, b in sampled)}


def make(folder, inputs, places=None, seed=0):
    """Returns the Reference of a model. places: where values are kept after AdamW, or None to choose them."""
    made = Reference(folder, inputs)
    made.add_sequences()
    made.add_greedy_texts()
    made.add_padded()
    made.add_bfloat16()
    made.add_training(places, seed)
    made.report["error_of_reference"] = made.errors
    return made
