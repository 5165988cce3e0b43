"""Makes cases.json beside it: TRL's loss on the batches of tests/golden/losses where those cases do not tell two readings
apart. `off_policy_mask`: at thresholds where the mask by the sampling log-probs and the one by the old log-probs part.
`entropy`: the entropy bonus beside aggregations that are no mean over tokens, and over the tokens of high entropy alone.
GRPOTrainer._compute_loss and the masks that it asks for are taken unchanged from TRL's source file and given the batches
in float64. Ran with trl 1.16.0 and
torch 2.11.0, from the repository's root: python3 tests/golden/trl_loss/make.py PATH/trl/trainer/grpo_trainer.py"""

import ast
import json
import math
import pathlib
import sys
import types
from collections import defaultdict

import torch
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).parent
TENSORS = load_file("tests/golden/losses/losses.safetensors")
# One sample with a negative advantage has a mean of sampled - current above the threshold, and one of old - current below.
THRESHOLDS = {"b0": 0.05, "b1": 0.09}
ENTROPY_COEF = 0.01


def functions_of_trl(path):
    """The functions, as they stand in the class."""
    space = {"torch": torch, "math": math, "nanmin": torch.min, "nanmax": torch.max}
    for node in ast.walk(ast.parse(pathlib.Path(path).read_text())):
        if isinstance(node, ast.FunctionDef) and node.name in (
            "_compute_loss",
            "get_off_policy_mask",
            "get_high_entropy_mask",
        ):
            node.decorator_list = []
            exec(compile(ast.Module([node], []), "grpo_trainer.py", "exec"), space)
    return types.SimpleNamespace(**space)


class OneProcess:
    num_processes = 1
    sync_gradients = False

    def reduce(self, values, reduction):
        return values

    def gather(self, values):
        return values

    def pad_across_processes(self, values, dim, pad_index):
        return values


def trainer(
    trl, logprobs, entropy, loss_type="dapo", threshold=None, entropy_coef=0.0, top_entropy_quantile=1.0
):
    """What _compute_loss reads of a GRPOTrainer(epsilon=0.2, epsilon_high=0.28, beta=0, max_completion_length=24)."""
    result = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (logprobs, entropy, None),
        get_off_policy_mask=trl.get_off_policy_mask,
        off_policy_mask_threshold=threshold,
        loss_type=loss_type,
        epsilon_low=0.2,
        epsilon_high=0.28,
        beta=0.0,
        importance_sampling_level="token",
        max_completion_length=24,
        top_entropy_quantile=top_entropy_quantile,
        aux_loss_enabled=False,
        use_vllm=False,
        _entropy_bonus_enabled=entropy_coef != 0.0,
        use_adaptive_entropy=False,
        entropy_coef=entropy_coef,
        model=types.SimpleNamespace(training=True),
        accelerator=OneProcess(),
        current_gradient_accumulation_steps=1,
        _metrics=defaultdict(lambda: defaultdict(list)),
        args=types.SimpleNamespace(delta=None, steps_per_generation=1),
    )
    result.get_high_entropy_mask = types.MethodType(trl.get_high_entropy_mask, result)
    return result


def run(trl, batch, with_sampling=False, **settings):
    """The loss and its gradients, with or without the log-probs that tokens were sampled with."""

    def read(name):
        return TENSORS[f"{batch}.in.{name}"]

    logprobs, entropy = read("cur").double().requires_grad_(True), read("entropy").double().requires_grad_(True)
    prompt = torch.ones(16, 1, dtype=torch.long)
    inputs = {
        "prompt_ids": prompt,
        "prompt_mask": prompt,
        "completion_ids": read("completion_ids"),
        "completion_mask": read("completion_mask"),
        "tool_mask": read("tool_mask"),
        "advantages": TENSORS[f"{batch}.trl.advantages.group"].double(),
        "old_per_token_logps": read("old").double(),
        "num_items_in_batch": read("mask").sum(),
    }
    if with_sampling:
        inputs["sampling_per_token_logps"] = read("roll").double()
    loss = trl._compute_loss(trainer(trl, logprobs, entropy, **settings), None, inputs)
    loss.backward()
    result = {"batch": int(batch[1]), **settings, "loss": loss.item(), "grad": logprobs.grad.flatten().tolist()}
    if entropy.grad is not None:
        result["grad_entropy"] = entropy.grad.flatten().tolist()
    return result


def check(trl, published, batch):
    """The library as a whole gave the same where both were asked."""
    for name, settings in (
        ("off_policy_mask", {"threshold": 0.02}),
        ("entropy_bonus", {"entropy_coef": ENTROPY_COEF}),
        ("top_entropy", {"top_entropy_quantile": 0.5}),
    ):
        case = published[f"{batch}.trl.dapo.{name}"]
        result = run(trl, batch, with_sampling=True, **settings)
        assert abs(result["loss"] - case["loss_f64"]) < 1e-12, (result["loss"], case["loss_f64"])
        assert (torch.tensor(result["grad"]).float() - TENSORS[case["grad"]].flatten()).abs().max() < 1e-8


def make(path):
    trl = functions_of_trl(path)
    losses = json.loads(pathlib.Path("tests/golden/losses/losses.json").read_text())["losses"]
    published = {case["id"]: case for case in losses}
    cases = []
    for batch, threshold in THRESHOLDS.items():
        check(trl, published, batch)
        by_old = run(trl, batch, threshold=threshold)["loss"]
        cases.append(run(trl, batch, with_sampling=True, threshold=threshold))
        assert abs(cases[-1]["loss"] - by_old) > 1e-3, "the masks agree here"
        cases += [run(trl, batch, loss_type=name, entropy_coef=ENTROPY_COEF) for name in ("grpo", "dr_grpo", "luspo")]
        cases += [
            run(trl, batch, loss_type=name, entropy_coef=ENTROPY_COEF, top_entropy_quantile=0.5)
            for name in ("dapo", "grpo")
        ]
    (HERE / "cases.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    make(sys.argv[1])
