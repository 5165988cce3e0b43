"""Writes experts_nf4/: the sparse model qwen3-moe as transformers saves it with bitsandbytes, without its tokenizer, and
experts_nf4_weights.safetensors: what bitsandbytes makes of some of its matrices, by its kernel in PyTorch (its compiled one
for the CPU takes rows of 48 weights for whole blocks of 64). The router is quantised there too.

Run with bitsandbytes 0.50.2, transformers 4.57.6 (the last that holds each matrix of an expert by itself) and torch
2.11.0:  python tests/golden/quantised/make_experts.py
"""

import pathlib

import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

HERE = pathlib.Path(__file__).parent
CONFIG = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
MATRICES = [
    "model.layers.0.mlp.gate",
    "model.layers.1.mlp.experts.3.up_proj",
    "model.layers.2.mlp.experts.7.down_proj",
    "model.layers.2.self_attn.q_proj",
]

model = AutoModelForCausalLM.from_pretrained(
    HERE.parent / "models/qwen3-moe", quantization_config=CONFIG, dtype=torch.float32, device_map="cpu"
)
model.save_pretrained(HERE / "experts_nf4")
(HERE / "experts_nf4/generation_config.json").unlink()
weights = {}
for name in MATRICES:
    parameter = model.get_submodule(name).weight
    state = parameter.quant_state
    maxima = state.state2.code[state.absmax.long()].view(-1) * state.state2.absmax.repeat_interleave(256)[: state.absmax.numel()]
    weights[name + ".weight"] = _dequantize_4bit_compute(
        parameter.data.view(-1), maxima + state.offset, state.code, state.blocksize, state.shape, torch.bfloat16
    ).contiguous()
save_file(weights, HERE / "experts_nf4_weights.safetensors")
