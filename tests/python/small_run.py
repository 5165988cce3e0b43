"""A run of seconds for the tests of the Python API, against the program in the folder of the first argument."""

import os
import sys

REPOSITORY = os.getcwd()
os.environ["PATH"] = os.path.abspath(sys.argv.pop(1)) + os.pathsep + os.environ["PATH"]
# Grader processes of scripts and the scripts themselves find the package as a user of a clone has it.
os.environ["PYTHONPATH"] = os.path.join(REPOSITORY, "python")
sys.path[:0] = ["python", "tests/python"]

MODEL = "tests/golden/models/qwen3-tied"
PROMPTS = "tests/golden/prompts/math_small.jsonl"
SMALL_RUN = dict(
    colocate=True,
    hf_checkpoint=MODEL,
    prompt_data=PROMPTS,
    rollout_batch_size=2,
    n_samples_per_prompt=3,
    num_rollout=2,
    rollout_max_response_len=6,
    apply_chat_template=True,
    lr=1e-3,
    use_tensorboard=False,
    quiet=True,
)
