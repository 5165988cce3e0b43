"""Writes nf4/ and int8/: the model qwen3-tied as transformers saves it with bitsandbytes, without its tokenizer.

Run with bitsandbytes 0.50.2, transformers 5.24.0 and torch 2.15.0:  python tests/golden/quantised/make_checkpoints.py
"""

import pathlib

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

HERE = pathlib.Path(__file__).parent
CONFIGS = {
    "nf4": BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    ),
    "int8": BitsAndBytesConfig(load_in_8bit=True),
}

for name, config in CONFIGS.items():
    model = AutoModelForCausalLM.from_pretrained(
        HERE.parent / "models/qwen3-tied", quantization_config=config, dtype=torch.float32, device_map="cpu"
    )
    model.save_pretrained(HERE / name)
    (HERE / name / "generation_config.json").unlink()
