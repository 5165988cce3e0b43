"""A published agent library as it is, trained: the agent of openai-agents may call a tool that calculates, and the
engine of the run answers it (docs/AGENTS.md).

    tandem train --custom-generate-function-path examples/agent/agent.py:generate --custom-generate-endpoint ...
"""

import re

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from agents.exceptions import AgentsException
from openai import AsyncOpenAI, OpenAIError

from tandem.rollout import endpoint

set_tracing_disabled(True)  # which would report to a service
PROBLEM = re.compile(r"(\d{1,3})([+-])(\d{1,3})")


@function_tool
def calculate(problem: str) -> str:
    """Calculates a sum or a difference."""
    found = PROBLEM.fullmatch(problem)
    if found is None:
        return "?"
    a, sign, b = found.groups()
    return str(int(a) + int(b) if sign == "+" else int(a) - int(b))


async def generate(args, sample, sampling_params):
    model = endpoint()
    async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:
        pupil = Agent(
            name="pupil",
            tools=[calculate],
            model=OpenAIChatCompletionsModel(model=model.model, openai_client=client),
            model_settings=ModelSettings(max_tokens=80),
        )
        question = sample.metadata["question"]
        try:
            result = await Runner.run(pupil, question, max_turns=3)
            answer = str(result.final_output)
        except (AgentsException, OpenAIError):  # it asked on and on, or for a tool that there is not
            answer = ""
    sample.metadata["answer"] = answer.strip()
    sample.metadata["asked"] = model.counts["answers"] > 1
    return model.samples()


async def reward(args, sample):
    """What the agent said in the end, compared with the label."""
    return {"score": float(sample.metadata["answer"] == sample.label), "asked": float(sample.metadata["asked"])}
