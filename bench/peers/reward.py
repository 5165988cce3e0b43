"""The reward of the benchmarks: differs between the completions of a random model, so that no group is without signal."""


def reward(prompts, completions, **_):
    return [float(len(set(completion))) for completion in completions]
