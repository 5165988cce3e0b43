"""Four problems in one conversation, each with the calculator at hand and each graded by itself:

    tandem train ... --custom-generate-function-path examples/calculator/quiz.py:generate
                     --custom-rm-path examples/calculator/quiz.py:reward
                     --custom-advantage-path examples/advantages/turn_rewards.py:advantages

The first problem is the prompt, the others are in the line's metadata ("more"). A problem takes one turn, or two where the
model asks. The reward of the sample is the share of problems that are right; turn_0, turn_1, ... in the reward's dict say of
each turn whether its problem was."""

from calculator import calculate

from tandem.rollout import generate as ask_engine
from tandem.rollout import tokenizer


def user_says(text):
    return tokenizer().encode(f"<|user|>{text}<|assistant|>")


async def one_turn(sample, sampling_params):
    turn = await ask_engine(sample.tokens, sampling_params)
    sample.append_response_tokens(tokens=turn.tokens)
    return turn


async def generate(args, sample, sampling_params):
    problems = [sample.prompt, *sample.metadata["more"]]
    right_of_turns = []
    for i, problem in enumerate(problems):
        if i > 0:
            sample.append_response_tokens(tokens=user_says(problem), trainable=False)
        turns = [await one_turn(sample, sampling_params)]
        if turns[0].text.strip() == "?" and turns[0].finish_reason == "stop":
            sample.append_response_tokens(tokens=user_says(calculate(problem)), trainable=False)
            turns.append(await one_turn(sample, sampling_params))
        right = turns[-1].text.strip() == calculate(problem) and turns[-1].finish_reason == "stop"
        right_of_turns += [(i, right)] * len(turns)
    sample.metadata["turns"] = [float(right) for _, right in right_of_turns]
    sample.metadata["score"] = len({i for i, right in right_of_turns if right}) / len(problems)
    sample.metadata["asked"] = (len(right_of_turns) - len(problems)) / len(problems)
    return sample


async def reward(args, sample):
    return {"score": sample.metadata["score"], "asked": sample.metadata["asked"],
            **{f"turn_{k}": right for k, right in enumerate(sample.metadata["turns"])}}
