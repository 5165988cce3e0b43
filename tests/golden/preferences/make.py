"""Makes reference.json beside it with transformers and torch: three AdamW steps of the golden model qwen3-tied on the
preferences of pairs.jsonl and labelled.jsonl, for each loss of TRL 1.16's DPOTrainer and KTOTrainer, whose formulas
these are. Ran with transformers 5.10.4 and torch 2.11.0, from the repository's root:
python3 tests/golden/preferences/make.py"""

import copy
import json
import pathlib

import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).parent
BASE = "tests/golden/models/qwen3-tied"
BETA, SMOOTHING, LR, STEPS, BATCH = 0.3, 0.1, 1e-3, 3, 2
WEIGHTS = {True: 1.0, False: 1.5}

PAIRS = [{"prompt": "1 + 2 =", "chosen": " 3", "rejected": " four, or five"}, {"prompt": "say yes", "chosen": " yes yes", "rejected": " no"},
         {"prompt": "2 + 2 =", "chosen": " it is 4", "rejected": " 5"}, {"prompt": "a b", "chosen": " c", "rejected": " z z z"}]
LABELLED = [{"prompt": "1 + 2 =", "completion": " 3", "label": True}, {"prompt": "say yes", "completion": " no", "label": False},
            {"prompt": "2 + 2 =", "completion": " it is 4", "label": True}, {"prompt": "a b", "completion": " z z z", "label": False}]


def summed(model, tokenizer, prompt, answer):
    """The log-probs of an answer and the end token, in one sum, and their number."""
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    tail = tokenizer.encode(answer, add_special_tokens=False) + [tokenizer.eos_token_id]
    logits = model(torch.tensor([ids + tail])).logits[0, len(ids) - 1:-1].double()
    return logits.log_softmax(-1).gather(1, torch.tensor(tail)[:, None]).sum(), len(tail)


def pair_loss(kind, chosen, rejected, lengths):
    margin = chosen - rejected
    if kind == "sigmoid":
        return -logsigmoid(BETA * margin)
    if kind == "robust":
        return (-(1 - SMOOTHING) * logsigmoid(BETA * margin) + SMOOTHING * logsigmoid(-BETA * margin)) / (1 - 2 * SMOOTHING)
    if kind == "hinge":
        return torch.relu(1 - BETA * margin)
    return (chosen / lengths[0] - rejected / lengths[1] - 1 / (2 * BETA)) ** 2


def train(kind, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32, attn_implementation="eager")
    frozen = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0)

    def ratio(line, key, other=None):
        answer = (other or line)[key]
        now, length = summed(model, tokenizer, line["prompt"], answer)
        return now - summed(frozen, tokenizer, line["prompt"], answer)[0], length

    records = []
    for step in range(STEPS):
        data = PAIRS if kind != "kto" else LABELLED
        lines = [data[(step * BATCH + i) % len(data)] for i in range(BATCH)]
        losses, rewards = [], {True: [], False: []}
        if kind == "kto":
            with torch.no_grad():
                kl = sum(ratio(line, "completion", lines[i - 1])[0] for i, line in enumerate(lines)) / BATCH
                kl = kl.clamp(min=0)
            for line in lines:
                r = ratio(line, "completion")[0]
                signed = r - kl if line["label"] else kl - r
                losses.append(WEIGHTS[line["label"]] * (1 - torch.sigmoid(BETA * signed)))
                rewards[line["label"]].append(BETA * r.item())
        else:
            for line in lines:
                (chosen, chosen_length), (rejected, rejected_length) = ratio(line, "chosen"), ratio(line, "rejected")
                losses.append(pair_loss(kind, chosen, rejected, (chosen_length, rejected_length)))
                rewards[True].append(BETA * chosen.item())
                rewards[False].append(BETA * rejected.item())
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        record = {"loss": loss.item(), "grad_norm": norm.item(), "chosen_reward": sum(rewards[True]) / len(rewards[True]),
                  "rejected_reward": sum(rewards[False]) / len(rewards[False])}
        records.append(record | ({"kl": kl.item()} if kind == "kto" else {}))
    return records


def main():
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    for name, lines in (("pairs", PAIRS), ("labelled", LABELLED)):
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    steps = {kind: train(kind, tokenizer) for kind in ("sigmoid", "robust", "hinge", "ipo", "kto")}
    (HERE / "reference.json").write_text(json.dumps(steps, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
