"""What transformers computes with a dense golden model, in the format of every tests/golden/reference/<model>: logits, log-probs,
entropies, hidden states, greedy text, gradients and three steps of AdamW. Numbers that end in _f64 are those of the same class with
weights in float64; transformers computes its norms' means, angles and softmaxes in float32 there too."""

import pathlib
import sys

import torch

sys.path.append(str(pathlib.Path(__file__).parent.parent / "moe"))
from reference import (ADAMW, CLIP, NUM_GREEDY, STEPS, checkpoint_tensors, choose_places, load, score_tensors, scores,  # noqa: E402
                       summary, train)

LENGTHS = [1, 5, 11, 24, 40]
BATCH_LENGTHS = [19, 7, 27, 12]
DETAILED = 2  # the sequence whose hidden states are kept


def draw_inputs(num_tokens, pad, seed):
    """The tensors that are given, not computed: five sequences, and a right-padded batch with labels. No id is that of padding, whose
    row of the embedding has no gradient in transformers."""
    generator = torch.Generator().manual_seed(seed)

    def draw(length):
        ids = torch.randint(0, num_tokens - 1, (length,), generator=generator)
        return ids + (ids >= pad)

    tensors = {f"seq{i}.input_ids": draw(length) for i, length in enumerate(LENGTHS)}
    shape = (len(BATCH_LENGTHS), max(BATCH_LENGTHS))
    ids, mask, labels = torch.full(shape, pad), torch.zeros(shape, dtype=torch.int64), torch.full(shape, -100)
    for row, length in enumerate(BATCH_LENGTHS):
        ids[row, :length] = draw(length)
        mask[row, :length] = 1
        labels[row, :length] = ids[row, :length]
    labels[0, : BATCH_LENGTHS[0] // 3] = -100
    return tensors | {"batch.input_ids": ids, "batch.attention_mask": mask, "batch.labels": labels}


@torch.no_grad()
def add_sequences(tensors, models):
    for i, ids in enumerate(tensors[f"seq{j}.input_ids"] for j in range(len(LENGTHS))):
        prefix = f"seq{i}."
        logits = models["float32"](ids[None]).logits[0]
        tensors |= {f"{prefix}logits": logits} | score_tensors(prefix, logits, ids)
        tensors |= score_tensors(prefix, models["float64"](ids[None]).logits[0], ids, "_f64")
        if "bfloat16" in models:
            narrow = models["bfloat16"](ids[None]).logits[0]
            tensors |= {f"{prefix}logits_bf16": narrow, f"{prefix}logp_t1.0_bf16": scores(narrow.float(), ids, 1.0)[0]}
        if i == DETAILED:
            hidden_states = models["float32"](ids[None], output_hidden_states=True).hidden_states
            tensors |= {f"{prefix}hidden.{j}": hidden[0] for j, hidden in enumerate(hidden_states)}


@torch.no_grad()
def add_greedy_texts(tensors, models):
    """Returns by how much a chosen token's logit is above the next one's, at the least."""
    margins = []
    for i in range(len(LENGTHS)):
        ids = tensors[f"seq{i}.input_ids"]
        text = models["float32"].generate(ids[None], attention_mask=torch.ones_like(ids)[None], do_sample=False, use_cache=True,
                                          max_new_tokens=NUM_GREEDY, eos_token_id=None, pad_token_id=0)[0]
        chosen = text[len(ids):]
        logits = models["float32"](text[None]).logits[0, len(ids) - 1 : -1]
        best = models["float64"](text[None]).logits[0, len(ids) - 1 : -1].topk(2, -1)
        margin = best.values[:, 0] - best.values[:, 1]
        margins.append(margin.min().item() if torch.equal(best.indices[:, 0], chosen) else 0.0)
        tensors |= {f"seq{i}.greedy_ids": chosen, f"seq{i}.greedy_margin": margin.float(),
                    f"seq{i}.greedy_logp": logits.log_softmax(-1).gather(-1, chosen[:, None])[:, 0]}
    return min(margins)


def mean_loss(model, batch):
    """The mean cross-entropy over all labels of the batch that are not -100. A row at a time: with a window, padding would attend to
    nothing, and its gradient be NaN."""
    losses = []
    for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"]):
        length = int(mask.sum())
        logits = model(ids[None, :length], use_cache=False).logits[0, : length - 1]
        losses.append(torch.nn.functional.cross_entropy(logits, labels[1:length], ignore_index=-100, reduction="none"))
    count = int((batch["labels"][:, 1:] != -100).sum())
    return torch.cat(losses).sum() / count


def make(folder, dtype, num_tokens, pad, seed):
    """Returns the tensors of reference.safetensors and the content of reference.json."""
    tensors = draw_inputs(num_tokens, pad, seed)
    models = {name: load(folder, getattr(torch, name)) for name in {"float32", "float64", dtype}}
    add_sequences(tensors, models)
    report = {"model": folder.name, "min_greedy_margin": add_greedy_texts(tensors, models)}
    batch = {name: tensors[f"batch.{name}"] for name in ("input_ids", "attention_mask", "labels")}
    initial = {name: tensor.float() for name, tensor in sorted(checkpoint_tensors(folder).items())}

    def trained(name):
        model = models[name]
        return train(dict(model.named_parameters()), lambda: mean_loss(model, batch))

    steps, gradients, after = trained("float32")
    exact_steps, exact_gradients, _ = trained("float64")
    tensors |= {f"grad.{name}": gradient for name, gradient in gradients.items()}
    places = choose_places(gradients, torch.Generator().manual_seed(seed))
    report |= {
        "error_of_gradients": max((gradients[name].double() - exact_gradients[name]).abs().max().item() for name in gradients),
        "loss": steps[0]["loss"], "loss_f64": exact_steps[0]["loss"],
        "optimizer": {"class": "torch.optim.AdamW", **ADAMW, "betas": list(ADAMW["betas"]), "clip_grad_norm": CLIP,
                      "dtype": "float32 parameters, gradients and moments", "steps": steps, "steps_f64": exact_steps},
        "parameters": places, "initial": summary(initial, places), "after_1": summary(after[1], places),
        f"after_{STEPS}": summary(after[STEPS], places)}
    return tensors, report
