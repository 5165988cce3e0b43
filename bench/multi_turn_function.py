"""The function that bench/multi_turn.py measures: three turns of 64 tokens with a tool's 8 tokens in between."""

TURNS, TOKENS, TOOL_TOKENS = 3, 64, 8


async def turns(args, sample, sampling_params):
    from tandem.rollout import generate  # not where the benchmark reads the numbers above

    for turn in range(TURNS):
        completion = await generate(sample.tokens, {**sampling_params, "max_new_tokens": TOKENS})
        sample.append_response_tokens(tokens=completion.tokens)
        if turn + 1 < TURNS:
            sample.append_response_tokens(tokens=sample.tokens[:1] * TOOL_TOKENS, trainable=False)
    return sample
