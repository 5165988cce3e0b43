"""Makes the golden data of sparse models: the model qwen3-moe-unnormed, its reference, and the files beside this one. README.md
says what each file is. Ran with transformers 5.10.4, torch 2.11.0, safetensors 0.8.0 and tokenizers 0.22.2 on one thread, from the
repository's root: python3 tests/golden/moe/make.py.

First it computes the reference of qwen3-moe anew and compares it with the one in tests/golden/reference, which another program
made; what it writes after that is made in the same way."""

import json
import pathlib

import balance
import inputs
import model
import reference
import routing
import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE.parent
KNOWN, OURS = "qwen3-moe", "qwen3-moe-unnormed"
SEED = 21
# A seed will do if greedy text and chosen experts do not hang on a rounding of float32.
MIN_GREEDY_MARGIN, MIN_ROUTER_GAP = 4e-3, 1e-5
# The known reference's float32 moves by as much on another kind of CPU.
TOLERANCE = 1e-5


def compare(got, want, at=""):
    """Yields the places and differences of numbers, and raises where anything else differs."""
    if isinstance(want, torch.Tensor):
        assert got.dtype == want.dtype and got.shape == want.shape, at
        yield at, (got.double() - want.double()).abs().max().item() if want.numel() else 0.0
    elif isinstance(want, dict):
        assert got.keys() == want.keys(), (at, got.keys() ^ want.keys())
        for key in want:
            yield from compare(got[key], want[key], f"{at}/{key}")
    elif isinstance(want, list):
        assert len(got) == len(want), at
        for i, (a, b) in enumerate(zip(got, want)):
            yield from compare(a, b, f"{at}/{i}")
    elif isinstance(want, float):
        # A sum over all elements of a parameter adds up their differences.
        yield at, abs(got - want) * (1e-2 if at.endswith("sum") else 1.0)
    else:
        assert got == want, (at, got, want)


def check_known():
    folder = GOLDEN / "reference" / KNOWN
    stored = load_file(folder / "reference.safetensors")
    stored_report = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    given = {name: tensor for name, tensor in stored.items() if name.endswith(".input_ids") or name.startswith("batch.")}
    made = reference.make(GOLDEN / "models" / KNOWN, given, stored_report["parameters"])
    at, worst = max([*compare(made.tensors, stored), *compare(made.report, stored_report)], key=lambda pair: pair[1])
    print(f"{KNOWN}: {len(stored)} tensors and reference.json are computed anew; largest difference {worst:.1e} at {at}")
    assert worst <= TOLERANCE
    return made


def check_ours(made):
    assert made.report["min_greedy_margin"] >= MIN_GREEDY_MARGIN, made.report["min_greedy_margin"]
    assert made.report["min_router_gap"] >= MIN_ROUTER_GAP, made.report["min_router_gap"]
    idle = f"grad.model.layers.{model.IDLE_LAYER}.mlp.experts.{model.IDLE_EXPERT}."
    for name, tensor in made.tensors.items():
        assert not name.startswith("grad.") or tensor.any() != name.startswith(idle), name
    for forward in made.exact:
        assert not (forward.routing[model.IDLE_LAYER].ids == model.IDLE_EXPERT).any()


def routes(made):
    """The chosen experts of every token and layer, by rising id, and how clear the choice is."""
    tensors = {}
    for i, forward in enumerate(made.exact):
        for layer, chosen in enumerate(forward.routing):
            at = f"{made.folder.name}.seq{i}"
            tensors[f"{at}.experts.{layer}"] = chosen.ids.sort(-1).values.to(torch.int32)
            tensors[f"{at}.margin.{layer}"] = chosen.margin().float()
    return tensors


def of_balance(made):
    return balance.make(made.folder.name, made.weights, made.config, made.batch)


def save(tensors, path):
    save_file({name: tensor.contiguous() for name, tensor in sorted(tensors.items())}, path, metadata={"format": "pt"})


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    known = check_known()
    folder, answers = GOLDEN / "models" / OURS, GOLDEN / "reference" / OURS
    answers.mkdir(parents=True, exist_ok=True)
    model.write(folder, GOLDEN / "models" / KNOWN, SEED)
    ours = reference.make(folder, inputs.draw(model.BEGIN, SEED), seed=SEED)
    check_ours(ours)
    save(ours.tensors, answers / "reference.safetensors")
    (answers / "reference.json").write_text(json.dumps(ours.report, indent=1) + "\n", encoding="utf-8")
    other = json.dumps(model.config_other_style(ours.config), indent=2) + "\n"
    (answers / "config_other_style.json").write_text(other, encoding="utf-8")
    save(routes(known) | routes(ours), HERE / "routes.safetensors")
    save(routing.make(SEED), HERE / "routing.safetensors")
    save(of_balance(known) | of_balance(ours), HERE / "balance.safetensors")
    print(json.dumps({key: value for key, value in ours.report.items()
                      if key.startswith(("error", "min", "bf16", "padded", "largest"))}))


if __name__ == "__main__":
    main()
