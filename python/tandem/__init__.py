"""Tandem: post-train Hugging Face language models with GRPO, from Python.

    import tandem

    def reward(completions, label, **kwargs):
        return [float(text.strip() == answer) for text, answer in zip(completions, label)]

    run = tandem.train(hf_checkpoint="Qwen3-0.6B", prompt_data="train.jsonl", reward=reward, colocate=True,
                       rollout_batch_size=32, num_rollout=200, save="runs/x")

    with tandem.Engine("runs/x/hf/latest") as engine:
        print(engine.generate(["What is 6 times 7?"])[0][0].text)

Everything runs in the `tandem` program, in a process of its own: this package starts it, talks to it, and reads what it
wrote. It imports neither torch nor any other package.
"""

import sys

if sys.version_info < (3, 10):
    raise ImportError(f"tandem needs Python 3.10 or newer, and {sys.executable} is {sys.version.split()[0]}")

from tandem._engine import Completion, Completions, Engine
from tandem._program import EnvironmentFault, TandemError, UserFault, program_path, version
from tandem._verbs import Run, evaluate, export, plan, sft, train

__all__ = [
    "Completion",
    "Completions",
    "Engine",
    "EnvironmentFault",
    "Run",
    "TandemError",
    "UserFault",
    "evaluate",
    "export",
    "plan",
    "program_path",
    "sft",
    "train",
    "version",
]
