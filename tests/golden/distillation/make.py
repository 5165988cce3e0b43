"""Makes cases.json beside it: the generalised Jensen-Shannon divergence of rows of logits, and its gradient by the policy's
logits. GKDTrainer.generalized_jsd_loss is taken unchanged from TRL's source file and given float64 logits that float32
holds; autograd gives the gradient. For top_k both models' logits are first cut to the tokens that the teacher finds most
likely, which renormalises both. masked: the loss that the function makes of the same rows as one sequence whose labels leave
some out (-100), its batchmean. Ran with trl 1.16.0 and torch 2.11.0, from the repository's root:
python3 tests/golden/distillation/make.py PATH/trl/experimental/gkd/gkd_trainer.py"""

import ast
import json
import pathlib
import sys

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
ROWS, VOCAB = 5, 13
TEMPERATURES = (1.0, 0.7)
BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)
MASKS = ([1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 1, 0, 1, 1])


def jsd_of_trl(path):
    for node in ast.walk(ast.parse(pathlib.Path(path).read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "generalized_jsd_loss":
            node.decorator_list = []
            space = {"torch": torch, "F": F}
            exec(compile(ast.Module([node], []), "gkd_trainer.py", "exec"), space)
            return space["generalized_jsd_loss"]
    raise SystemExit(f"{path} has no generalized_jsd_loss")


def case(jsd, policy, teacher, temperature, beta, top_k):
    logits = policy.clone().requires_grad_()
    seen, taught = logits, teacher
    if top_k > 0:
        columns = teacher.topk(top_k, dim=-1).indices
        seen, taught = logits.gather(1, columns), teacher.gather(1, columns)
    rows = jsd(seen, taught, beta=beta, temperature=temperature, reduction="none").sum(-1)
    rows.sum().backward()
    return {"temperature": temperature, "beta": beta, "top_k": top_k, "divergence": rows.tolist(), "gradient": logits.grad.flatten().tolist()}


def masked(jsd, policy, teacher, temperature, beta, mask):
    labels = torch.tensor([[1 if counts else -100 for counts in mask]])
    loss = jsd(policy[None], teacher[None], labels=labels, beta=beta, temperature=temperature)
    return {"temperature": temperature, "beta": beta, "mask": mask, "loss": loss.item()}


def main():
    jsd = jsd_of_trl(sys.argv[1])
    random = torch.Generator().manual_seed(34)
    draw = lambda scale: (torch.randn(ROWS, VOCAB, generator=random) * scale).double()
    policy = draw(2.0)
    teacher = policy + draw(1.5)
    teacher[1] = policy[1]  # a row on which both agree
    teacher[2, 3] += 30  # a teacher that is certain
    policy[3, 4] += 30  # a policy that is
    teacher = teacher.float().double()
    cases = [case(jsd, policy, teacher, t, b, k) for t in TEMPERATURES for b in BETAS for k in (0, 4)]
    masks = [masked(jsd, policy, teacher, t, b, m) for t in TEMPERATURES for b in BETAS for m in MASKS]
    out = {"rows": ROWS, "vocab": VOCAB, "policy": policy.flatten().tolist(), "teacher": teacher.flatten().tolist(), "cases": cases, "masked": masks}
    (HERE / "cases.json").write_text(json.dumps(out, separators=(",", ":")).replace('{"temperature"', '\n{"temperature"') + "\n")


main()
