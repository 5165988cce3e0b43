"""Pause and resume by torch_memory_saver (torch mode), seconds: GIB of memory, its contents kept on the host or not."""

import json
import os
import sys
import time

import torch
from torch_memory_saver import torch_memory_saver

gib, keeps = int(sys.argv[1]), sys.argv[2] == "keep"
torch_memory_saver.hook_mode = "torch"
torch.zeros(1, device="cuda")
with torch_memory_saver.region(tag="kv", enable_cpu_backup=keeps):
    tensors = [torch.full((1 << 28,), 7, dtype=torch.float32, device="cuda") for _ in range(gib)]


def timed(call):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call("kv")
    torch.cuda.synchronize()
    return time.perf_counter() - begin


cycles = [(timed(torch_memory_saver.pause), timed(torch_memory_saver.resume)) for _ in range(4)]
if keeps:
    assert tensors[-1][-1].item() == 7
print(json.dumps({"pause_s": [p for p, _ in cycles], "resume_s": [r for _, r in cycles]}), flush=True)
os._exit(0)  # it ends the process with 1 when tensors of a region are freed outside of one
