"""transformers generating: transformers_generate.py FOLDER DTYPE PROMPT NEW LONG SEQUENCES... Prints one JSON line of tokens per second:
of decoding each number of sequences beyond the first token, and of reading a prompt of LONG tokens."""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM

folder, dtype = sys.argv[1:3]
prompt, new, long, *sequences = map(int, sys.argv[3:])
torch.set_num_threads(2)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


def seconds(count, length, tokens):
    ids = torch.randint(0, 94, (count, length))
    begin = time.perf_counter()
    with torch.no_grad():
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=tokens, min_new_tokens=tokens,
                       pad_token_id=95)
    return time.perf_counter() - begin


seconds(1, prompt, 2)
result = {f"decode {n}": n * (new - 1) / (seconds(n, prompt, new) - seconds(n, prompt, 1)) for n in sequences}
result[f"prefill {long}"] = long / min(seconds(1, long, 1) for _ in range(2))
print(json.dumps(result))
