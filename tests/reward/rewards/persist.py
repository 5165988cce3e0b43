"""Rewards that run what a model wrote in their own process, which docs/REWARDS.md says never to do without
--rm-fork-each-call: a program that raises WORTH raises it for all that come after it."""

WORTH = 0.0


def score(data_source, solution_str, ground_truth):
    exec(solution_str)
    return WORTH


async def score_async(args, sample):
    exec(sample.response)
    return WORTH
