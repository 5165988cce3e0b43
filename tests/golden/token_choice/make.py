"""Makes cases.json beside it: Clip-Cov and KL-Cov on the batches of tests/golden/losses, each of which counts as one
micro-batch. All in float64, with the functions below taken unchanged from the project's own source files:

verl      b178a3cd  verl/trainer/ppo/core_algos.py:1025 agg_loss, :1451 compute_policy_loss_clip_cov,
                    :1556 compute_policy_loss_kl_cov, verl/utils/torch_functional.py masked_sum, masked_mean

verl's Clip-Cov chooses with torch.randperm. A case whose ratio is 1 takes every token between the bounds, so that no
random number is in it.

Ran with torch 2.11.0, from the repository's root: python3 tests/golden/token_choice/make.py VERL, which
is a directory that holds these paths."""

import __future__

import ast
import json
import pathlib
import struct
import sys
import types
from typing import Any, Optional

import torch

HERE = pathlib.Path(__file__).parent
EPS_CLIP, EPS_CLIP_HIGH = 0.2, 0.28
DTYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, info in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__" or info["dtype"] not in DTYPES:
            continue
        begin, end = (8 + size + offset for offset in info["data_offsets"])
        tensors[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=DTYPES[info["dtype"]]).reshape(info["shape"])
    return tensors


def taken_from(root, path, names, **space):
    """The functions of a source file that have these names, as they stand there, but without decorators."""
    space |= {"torch": torch, "Any": Any, "Optional": Optional}
    for node in ast.parse((pathlib.Path(root) / path).read_text()).body:
        if not isinstance(node, ast.FunctionDef) or node.name not in names:
            continue
        node.decorator_list = []
        flags = __future__.annotations.compiler_flag
        exec(compile(ast.Module([node], []), path, "exec", flags=flags), space)
    return types.SimpleNamespace(**{name: space[name] for name in names})


def make(root):
    tensors = read_safetensors("tests/golden/losses/losses.safetensors")
    functional = taken_from(root, "verl/utils/torch_functional.py", ["masked_sum", "masked_mean"])
    names = ["agg_loss", "compute_policy_loss_clip_cov", "compute_policy_loss_kl_cov"]
    space = {"verl_F": functional, "AlgoConfig": type("AlgoConfig", (), {})}
    verl = taken_from(root, "verl/trainer/ppo/core_algos.py", names, **space)
    functions = {"clip_cov": verl.compute_policy_loss_clip_cov, "kl_cov": verl.compute_policy_loss_kl_cov}
    plans = [("clip_cov", {"clip_cov_ratio": 1.0, "clip_cov_lb": low, "clip_cov_ub": high})
             for low, high in ((0.1, 0.5), (-0.2, 0.1), (1.0, 5.0), (50.0, 60.0))]
    plans += [("kl_cov", {"kl_cov_ratio": ratio, "ppo_kl_coef": coef})
              for ratio, coef in ((0.0002, 1.0), (0.1, 0.1), (0.3, 1.0))]
    cases = []
    for batch in ("b0", "b1"):
        for mode, params in plans:
            for aggregation in ("token-mean", "seq-mean-token-mean"):
                theta = tensors[f"{batch}.in.cur"].double().requires_grad_(True)
                mask = tensors[f"{batch}.in.mask"].double()
                config = types.SimpleNamespace(policy_loss=types.SimpleNamespace(**params), global_batch_info={})
                config.clip_ratio = config.clip_ratio_low = EPS_CLIP
                config.clip_ratio_high = EPS_CLIP_HIGH
                loss, metrics = functions[mode](
                    tensors[f"{batch}.in.old"].double(), theta, tensors[f"{batch}.verl.advantages.grpo"].double(), mask,
                    aggregation, config
                )
                loss.backward()
                grad = [float(f"{g:.12g}") for g in theta.grad.flatten().tolist()]
                case = {"batch": int(batch[1]), "params": params | {"loss_mode": mode, "loss_agg_mode": aggregation}}
                case["chosen"] = metrics["actor/pg_clipfrac"] if mode == "clip_cov" else None
                cases.append(case | {"loss": loss.item(), "grad": grad})
    (HERE / "cases.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    make(*sys.argv[1:])
