"""GRPO steps of TRL with vLLM in its own process on one GPU, for bench/long_answers.py: float32 weights, bfloat16 autocast, activations
recomputed, one sample a micro-batch, TRL's defaults otherwise. Prints its parts on stderr as they end, and one JSON line: seconds by part,
lengths, and the most memory that torch allocated.

    trl_long.py FOLDER RESPONSE BATCH SAMPLES STEPS STOP_TOKEN..."""

import json
import os
import sys
import time

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_USE_FLASHINFER_SAMPLER="0", TRL_EXPERIMENTAL_SILENCE="1",
                  VLLM_ENABLE_V1_MULTIPROCESSING="0")

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

folder = sys.argv[1]
response, batch, samples, steps = map(int, sys.argv[2:6])
stops = list(map(int, sys.argv[6:]))
prompts = [json.loads(line)["prompt"] for line in open(folder + "/prompts.jsonl", encoding="utf-8")]
times, lengths = {}, []


def timed(owner, method, part):
    function = getattr(owner, method)

    def call(*args, **kwargs):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = function(*args, **kwargs)
        torch.cuda.synchronize()
        times.setdefault(part, []).append(time.perf_counter() - begin)
        if part != "micro_batch":
            print(part, round(times[part][-1], 2), file=sys.stderr, flush=True)
        return result

    setattr(owner, method, call)


def reward(completion_ids, **kwargs):
    lengths.append([len(ids) for ids in completion_ids])
    print("tokens", sum(lengths[-1]), "longest", max(lengths[-1]), file=sys.stderr, flush=True)
    return [float(i % 2) for i in range(len(completion_ids))]


class Clock(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        torch.cuda.synchronize()
        self.begin = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        torch.cuda.synchronize()
        times.setdefault("step", []).append(time.perf_counter() - self.begin)
        print("step", round(times["step"][-1], 2), file=sys.stderr, flush=True)

    def on_log(self, args, state, control, logs=None, **kwargs):
        print(json.dumps(logs), file=sys.stderr, flush=True)


config = GRPOConfig(
    output_dir="/tmp/trl_long", per_device_train_batch_size=1, gradient_accumulation_steps=batch * samples, num_generations=samples,
    max_completion_length=response, max_steps=steps, learning_rate=1e-6, bf16=True, gradient_checkpointing=True, use_vllm=True,
    vllm_mode="colocate", vllm_enable_sleep_mode=True, vllm_gpu_memory_utilization=0.35, vllm_max_model_length=response + 64, beta=0.0,
    logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True, temperature=1.0, model_init_kwargs={"dtype": "float32"},
    generation_kwargs={"stop_token_ids": stops, "detokenize": False}, shuffle_dataset=False,
)
begin = time.perf_counter()
trainer = GRPOTrainer(model=folder + "/model", args=config, train_dataset=Dataset.from_dict({"prompt": prompts}), reward_funcs=reward,
                      callbacks=[Clock()])
times["start"] = [time.perf_counter() - begin]
print("start", round(times["start"][0], 1), file=sys.stderr, flush=True)
timed(trainer.vllm_generation, "sync_weights", "sync_weights")
timed(trainer.vllm_generation, "generate", "generate")
timed(trainer, "_generate_and_score_completions", "generate_and_score")
timed(trainer, "training_step", "micro_batch")
trainer.train()
times["micro_batch"] = [sum(times["micro_batch"])]  # of all steps, with what is generated within
print(json.dumps({"seconds": times, "lengths": lengths, "allocated_gib": torch.cuda.max_memory_allocated() / 2**30}))
