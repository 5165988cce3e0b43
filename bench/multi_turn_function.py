"""The function that bench/multi_turn.py measures: three turns, with a tool's tokens in between, an eighth of a turn's."""

TURNS = 3


def tool_tokens(turn_tokens):
    return turn_tokens // 8


def response_tokens(turn_tokens):
    return TURNS * turn_tokens + (TURNS - 1) * tool_tokens(turn_tokens)


async def turns(args, sample, sampling_params):
    from tandem.rollout import generate  # not where the benchmark reads the numbers above

    turn_tokens = sampling_params["max_new_tokens"] * 4 // 13  # response_tokens() of it is what the run allows
    for turn in range(TURNS):
        completion = await generate(sample.tokens, {**sampling_params, "max_new_tokens": turn_tokens})
        sample.append_response_tokens(tokens=completion.tokens)
        if turn + 1 < TURNS:
            sample.append_response_tokens(tokens=sample.tokens[:1] * tool_tokens(turn_tokens), trainable=False)
    return sample
