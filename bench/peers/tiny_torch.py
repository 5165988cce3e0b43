"""A plain torch training step of the same 10,240 tokens (256 sequences of 16 + 24), and transformers' generation of 256 x 24 tokens.
Prints one JSON line."""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM

folder, dtype, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(2)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
ids = torch.randint(0, 94, (256, 40))
train = []
for _ in range(steps):
    begin = time.perf_counter()
    optimizer.zero_grad()
    for part in ids.split(64):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model(part).logits[:, 15:-1].float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 16:].flatten()) / 4
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    train.append(time.perf_counter() - begin)
generate = []
model = model.to(getattr(torch, dtype)).eval()
for _ in range(steps):
    begin = time.perf_counter()
    with torch.no_grad():
        model.generate(ids[:, :16], attention_mask=torch.ones(256, 16, dtype=torch.long), do_sample=True,
                       max_new_tokens=24, min_new_tokens=24, pad_token_id=95)
    generate.append(time.perf_counter() - begin)
print(json.dumps({"train_s": train[1:], "generate_s": generate[1:]}))
