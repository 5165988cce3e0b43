"""A calculator as a tool, for tandem train --custom-generate-function-path examples/calculator/calculator.py:generate.

The model answers a problem itself, or writes "?" and is told the result, which it then has to write down:

    <|user|>17+25=<|assistant|>?<|end|><|user|>42<|assistant|>42<|end|>

The tokens between the two turns are the calculator's. They stand in the response with loss_mask 0, so that the model is
not trained to write them."""

import re

from tandem.rollout import generate as ask_engine
from tandem.rollout import tokenizer

PROBLEM = re.compile(r"(\d+)([+-])(\d+)=")


def calculate(problem):
    a, sign, b = PROBLEM.search(problem).groups()
    return str(int(a) + int(b) if sign == "+" else int(a) - int(b))


async def generate(args, sample, sampling_params):
    turn = await ask_engine(sample.tokens, sampling_params)
    sample.append_response_tokens(tokens=turn.tokens)
    asked = turn.text.strip() == "?" and turn.finish_reason == "stop"
    if asked:
        result = tokenizer().encode(f"<|user|>{calculate(sample.prompt)}<|assistant|>")
        sample.append_response_tokens(tokens=result, trainable=False)
        turn = await ask_engine(sample.tokens, sampling_params)
        sample.append_response_tokens(tokens=turn.tokens)
    sample.metadata["asked"] = asked
    sample.metadata["answer"] = turn.text.strip()
    return sample


async def reward(args, sample):
    """What the last turn says, compared with the label."""
    return {"score": float(sample.metadata["answer"] == sample.label), "asked": float(sample.metadata["asked"])}
