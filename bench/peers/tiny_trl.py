"""One GRPO step of TRL on the tiny model, at its best settings found: micro-batch 64, large malloc thresholds (set by the caller).
Prints one JSON line: seconds of each step after the first two."""

import json
import sys
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from reward import reward

folder, dtype, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(2)
prompts = [json.loads(line)["prompt"] for line in open(folder + "/prompts.jsonl", encoding="utf-8")]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


class Clock(TrainerCallback):
    def __init__(self):
        self.times, self.begin = [], None

    def on_step_begin(self, args, state, control, **kwargs):
        self.begin = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append(time.perf_counter() - self.begin)


parts = {"generate": []}
generate = model.generate


def timed_generate(*args, **kwargs):
    begin = time.perf_counter()
    result = generate(*args, **kwargs)
    parts["generate"].append(time.perf_counter() - begin)
    return result


model.generate = timed_generate
config = GRPOConfig(
    output_dir="/tmp/trl_tiny", per_device_train_batch_size=64, gradient_accumulation_steps=4, steps_per_generation=4,
    num_generations=8, max_completion_length=24, generation_kwargs={"min_new_tokens": 24}, max_steps=steps,
    bf16=dtype == "bfloat16", use_cpu=True, gradient_checkpointing=False, beta=0.0, learning_rate=1e-6, report_to=[],
    save_strategy="no", logging_steps=1000, disable_tqdm=True, dataloader_num_workers=0, shuffle_dataset=False,
)
clock = Clock()
trainer = GRPOTrainer(
    model=model, processing_class=tokenizer, args=config, reward_funcs=reward,
    train_dataset=Dataset.from_dict({"prompt": prompts * (steps + 1)}), callbacks=[clock],
)
trainer.train()
print(json.dumps({"step_s": clock.times[2:], "generate_s": parts["generate"][2:]}))
