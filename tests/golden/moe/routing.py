"""Draws router logits, planted ties among them, and computes in float64 which experts they choose, with which weights, and the
gradient of the logits."""

import float64
import torch

EXPERTS, CHOSEN, ROWS = (8, 16, 128), (1, 2, 4, 8), 24
KINDS = ("normal", "wide", "tie at the cut", "all equal", "zeros of both signs", "large")


def draw_row(kind, experts, chosen, generator):
    row = torch.empty(experts).normal_(generator=generator)
    order = torch.argsort(row, descending=True)
    cut = order[max(chosen - 2, 0) : chosen + 2]  # the last chosen ones and the first rejected ones
    if kind == "wide":
        row *= 20.0
    elif kind == "tie at the cut":
        row[cut] = row[order[chosen - 1]].item()
    elif kind == "all equal":
        row[:] = row[0].item()
    elif kind == "zeros of both signs":
        # All that is larger stays positive, all that is smaller negative, and the cut is among zeros; the lowest id has -0.
        row = torch.where(torch.isin(torch.arange(experts), order[: max(chosen - 2, 0)]), row.abs() + 0.1, -row.abs() - 0.1)
        for place, expert in enumerate(cut.sort().values):
            row[expert] = -0.0 if place % 2 == 0 else 0.0
    elif kind == "large":
        row *= 10.0 ** torch.randint(4, 38, (1,), generator=generator).item()
    return row


def by_rising_id(routing):
    ids, order = routing.ids.sort(dim=-1)
    return ids, routing.weights.gather(-1, order)


def check_choice(logits, ids, chosen):
    """Python's own sort by (-logit, id) chooses the same."""
    for row, got in zip(logits.tolist(), ids.tolist()):
        assert sorted(sorted(range(len(row)), key=lambda j: (-row[j], j))[:chosen]) == got


def make(seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for experts in EXPERTS:
        for chosen in CHOSEN:
            at = f"x{experts}.k{chosen}."
            logits = torch.stack([draw_row(KINDS[r % len(KINDS)], experts, chosen, generator) for r in range(ROWS)])
            dweights = torch.empty(ROWS, chosen).normal_(generator=generator)
            for rule, normalises in (("normed", True), ("unnormed", False)):
                exact = logits.double().requires_grad_(True)
                ids, weights = by_rising_id(float64.route(exact, chosen, normalises))
                weights.backward(dweights.double())
                tensors |= {f"{at}{rule}.weights": weights.detach(), f"{at}{rule}.dlogits": exact.grad}
            check_choice(logits, ids, chosen)
            tensors |= {f"{at}logits": logits, f"{at}dweights": dweights, f"{at}ids": ids.to(torch.int32)}
    return tensors
