"""Makes cases.json beside it: corrections of off-policy samples on the batches of tests/golden/losses, whose `cur`, `old`
and `roll` are the log-probs of the policy, of the proximal policy and of the one that sampled. All in float64, with the
functions below taken unchanged from the projects' own source files:

AReaL     4aef98d8  areal/utils/functional/functional.py:185 apply_rejection_sampling, :429 ppo_actor_loss_fn
slime     624b824a  examples/train_infer_mismatch_helper/mis.py:141 compute_mis_weights and the functions that it calls,
                    slime/utils/ppo_utils.py:124 compute_policy_loss, :12 compute_approx_kl,
                    slime/backends/megatron_utils/cp_utils.py:47 get_sum_of_sample_mean
verl      0.9.1     verl/trainer/ppo/rollout_corr_helper.py:219 compute_rollout_rejection_mask
prime-rl  559b4477  src/prime_rl/trainer/rl/loss.py:106 default_loss_fn

Ran with torch 2.11.0, from the repository's root: python3 tests/golden/off_policy/make.py AREAL SLIME VERL PRIME_RL, which
are directories that hold these paths."""

import __future__

import ast
import json
import math
import pathlib
import sys
import types
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).parent
TENSORS = load_file("tests/golden/losses/losses.safetensors")
EPS_CLIP, EPS_CLIP_HIGH, EPS_CLIP_C, KL_COEF = 0.2, 0.28, 3.0, 0.1


def taken_from(root, path, names, **space):
    """The functions and classes of a source file that have these names, as they stand there, but uncompiled."""
    space |= {"torch": torch, "math": math, "dataclass": dataclass}
    space |= {"Any": Any, "Callable": Callable, "Optional": Optional}
    for node in ast.parse((pathlib.Path(root) / path).read_text()).body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)):
            continue
        targets = getattr(node, "targets", None) or [getattr(node, "target", node)]
        if not {getattr(t, "name", getattr(t, "id", None)) for t in targets} & set(names):
            continue
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
        flags = __future__.annotations.compiler_flag
        exec(compile(ast.Module([node], []), path, "exec", flags=flags), space)
    return types.SimpleNamespace(**{name: space[name] for name in names})


class Batch:
    def __init__(self, name):
        self.name = name
        self.theta = TENSORS[f"{name}.in.cur"].double().requires_grad_(True)
        self.prox = TENSORS[f"{name}.in.old"].double()
        self.mu = TENSORS[f"{name}.in.roll"].double()
        self.ref = TENSORS[f"{name}.in.ref"].double()
        self.mask = TENSORS[f"{name}.in.mask"]
        self.advantages = TENSORS[f"{name}.verl.advantages.grpo"].double()

    def case(self, library, params, loss):
        loss.backward()
        grad = [float(f"{g:.12g}") for g in self.theta.grad.flatten().tolist()]
        return {"batch": int(self.name[1]), "library": library, "params": params, "loss": loss.item(), "grad": grad}


def cases_of_areal(root, batch):
    names = ["_check_bounds", "RejectionSamplingResult", "apply_rejection_sampling", "ppo_actor_loss_fn"]
    areal = taken_from(root, "areal/utils/functional/functional.py", names)
    bounds = [("token", "mask", 0.9, 1.1), ("token", "clamp", None, 1.1), ("token", "clamp", 0.9, 1.1)]
    bounds += [("sequence", "mask", 0.98, 1.02), ("sequence", "clamp", 0.98, 1.02), (None, None, None, None)]
    for level, action, lower, upper in bounds:
        config = None
        if level:
            config = types.SimpleNamespace(
                level=level, action=action, metric="ratio", agg="mean", lower=lower, upper=upper
            )
        b = Batch(batch)
        loss, stat = areal.ppo_actor_loss_fn(
            b.theta, b.prox, b.mu, b.advantages, EPS_CLIP, b.mask.bool(), EPS_CLIP_HIGH, EPS_CLIP_C, config
        )
        assert config is None or 0.0 < stat["filtered_fraction"] < 1.0, (config, stat["filtered_fraction"])
        yield b.case("AReaL", {"level": level, "action": action, "lower": lower, "upper": upper}, loss)


def cases_of_slime(root, batch):
    names = ["masked_sum", "masked_mean", "masked_min", "masked_max", "metrics_append", "calculate_veto_mask", "truncate"]
    names += ["clip", "mask", "add_ppl_metrics", "compute_mis_weights"]
    mis = taken_from(root, "examples/train_infer_mismatch_helper/mis.py", names)
    ppo = taken_from(root, "slime/utils/ppo_utils.py", ["compute_policy_loss", "compute_approx_kl"])
    alone = types.SimpleNamespace(get_context_parallel_world_size=lambda: 1)
    name = "slime/backends/megatron_utils/cp_utils.py"
    reducers = taken_from(root, name, ["get_sum_of_sample_mean"], mpu=alone)
    bounds = {"token": (0.9, 1.1), "sequence": (0.9, 1.1), "geometric": (0.98, 1.02)}
    plans = [(level, mode, *bounds[level], None) for level in bounds for mode in ("truncate", "clip", "mask")]
    for level, mode, lower, upper, veto in plans + [("token", "truncate", 0.0, 2.0, 0.75)]:
        args = types.SimpleNamespace(use_tis=True, use_rs=veto is not None, tis_level=level, tis_mode=mode)
        args.tis_lower_bound, args.tis_upper_bound, args.tis_batch_normalize = lower, upper, False
        args.rs_level, args.rs_lower_bound, args.rs_upper_bound, args.rs_veto_threshold = "token", 0.0, 1e9, veto
        b = Batch(batch)
        weights, kept, _ = mis.compute_mis_weights(
            args, train_log_probs=list(b.prox), rollout_log_probs=list(b.mu), loss_masks=list(b.mask)
        )
        num_out = sum(1 for k, m in zip(kept, b.mask) if (k != m).any())
        assert num_out > 0 or mode != "mask" and veto is None, (level, mode)
        assert num_out < len(kept) or veto is None
        pg_loss, _ = ppo.compute_policy_loss(
            (b.prox - b.theta).flatten(), b.advantages.flatten(), EPS_CLIP, EPS_CLIP_HIGH, EPS_CLIP_C
        )
        lengths, counts = [b.mask.shape[1]] * len(kept), [m.sum() for m in b.mask]
        mean = reducers.get_sum_of_sample_mean(lengths, lengths, kept, counts)
        loss = mean(pg_loss * torch.cat(weights))
        kl_coef = 0.0 if veto is None else KL_COEF
        if kl_coef:
            loss = loss + kl_coef * mean(ppo.compute_approx_kl(b.theta, b.ref, "low_var_kl").double().flatten())
        params = {"level": level, "mode": mode, "lower": lower, "upper": upper, "veto": veto or 0.0, "kl_coef": kl_coef}
        yield b.case("slime", params, loss / len(kept))


def cases_of_verl(root, batch):
    names = ["SAFETY_BOUND", "SUPPORTED_ROLLOUT_RS_OPTIONS", "TOKEN_LEVEL_ROLLOUT_RS_OPTIONS"]
    names += ["_parse_rollout_rs_thresholds", "compute_rollout_rejection_mask"]
    functional = taken_from(root, "verl/utils/torch_functional.py", ["masked_sum", "masked_mean"])
    verl = taken_from(
        root,
        "verl/trainer/ppo/rollout_corr_helper.py",
        names,
        verl_F=functional,
        compute_rs_metrics=lambda **_: {},
    )
    for option, bounds in (("token_k1", "0.9_1.1"), ("seq_sum_k1", "0.9_1.1"), ("seq_mean_k1", "0.98_1.02")):
        b = Batch(batch)
        kept, _ = verl.compute_rollout_rejection_mask(b.prox - b.mu, b.mask, option, bounds)
        assert 0 < kept.sum() < b.mask.sum()
        lower, upper = map(float, bounds.split("_"))
        params = {"option": option, "lower": lower, "upper": upper}
        yield {"batch": int(batch[1]), "library": "verl", "params": params, "mask": kept.flatten().tolist()}


def cases_of_prime_rl(root, batch):
    names = ["LossOutputs", "_safe_mean", "compute_importance_ratio_and_mismatch_kl", "default_loss_fn"]
    prime = taken_from(root, "src/prime_rl/trainer/rl/loss.py", names)
    for low, high, kl_tau in ((0.2, 0.2, 1e-3), (0.02, 0.03, 0.1)):
        config = types.SimpleNamespace(dppo_mask_low=low, dppo_mask_high=high, adv_tau=1.0, kl_tau=kl_tau)
        b = Batch(batch)
        loss, masked = 0.0, 0.0
        for row in range(len(b.mask)):
            inputs = types.SimpleNamespace(
                trainer_logprobs=b.theta[row],
                inference_logprobs=b.mu[row],
                advantages=b.advantages[row],
                loss_mask=b.mask[row].bool(),
                loss_weights=None,
            )
            outputs = prime.default_loss_fn(inputs, config)
            loss = loss + outputs.loss
            masked += outputs.metrics["is_masked"].item()
        params = {"dppo_mask_low": low, "dppo_mask_high": high, "kl_tau": kl_tau}
        assert high > 0.1 or masked > 0.0
        yield b.case("prime-rl", params, loss / b.mask.sum())


def make(areal, slime, verl, prime_rl):
    cases = []
    for batch in ("b0", "b1"):
        cases += cases_of_areal(areal, batch)
        cases += cases_of_slime(slime, batch)
        cases += cases_of_verl(verl, batch)
        cases += cases_of_prime_rl(prime_rl, batch)
    (HERE / "cases.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    make(*sys.argv[1:])
