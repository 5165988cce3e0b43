"""TRL on the arithmetic demo's task: the same checkpoint, problems, group and batch sizes, learning rates and number of steps; its own
losses and its best settings found on the tiny model. arithmetic_trl.py CHECKPOINT PROBLEMS STEPS SECONDS

Prints one JSON line: [seconds since the first step began, mean reward] of every step until STEPS or SECONDS."""

import json
import sys
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

folder, problems, steps, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
torch.set_num_threads(2)
rows = [json.loads(line) for line in open(problems, encoding="utf-8")]
rewards, curve = [], []


def exact(completions, label, **_):
    values = [float(completion[0]["content"].strip() == str(answer).strip()) for completion, answer in zip(completions, label)]
    rewards.extend(values)
    return values


class Curve(TrainerCallback):
    begin = None

    def on_step_begin(self, args, state, control, **kwargs):
        self.begin = self.begin or time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        curve.append([round(time.perf_counter() - self.begin, 3), sum(rewards) / max(len(rewards), 1)])
        rewards.clear()
        if curve[-1][0] > limit:
            control.should_training_stop = True


tokenizer = AutoTokenizer.from_pretrained(folder)
config = GRPOConfig(
    output_dir="/tmp/trl_arithmetic", per_device_train_batch_size=256, gradient_accumulation_steps=1, num_generations=8,
    max_completion_length=8, max_steps=steps, learning_rate=4e-4, lr_scheduler_type="linear", weight_decay=0.0, adam_beta2=0.98,
    warmup_steps=0, bf16=False, use_cpu=True, gradient_checkpointing=False, beta=0.0, temperature=1.0, report_to=[], save_strategy="no",
    logging_steps=1000, disable_tqdm=True, dataloader_num_workers=0, seed=42,
)
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), processing_class=tokenizer, args=config, reward_funcs=exact,
    train_dataset=Dataset.from_list([{"prompt": row["prompt"], "label": row["label"]} for row in rows]), callbacks=[Curve()],
)
trainer.train()
print(json.dumps(curve))
