"""A curriculum by past pass rate, for tandem train --custom-advantage-path examples/advantages/curriculum.py:advantages.

A prompt that the model almost always or almost never solves teaches little. The state keeps how often each prompt was
solved; a group's advantages are multiplied by 4 p (1 - p), p its pass rate up to now, this rollout included: 1 where half
of the samples pass, less on both sides. The state is JSON, so its keys are texts, and checkpoints hold it."""

PASSES = 1.0  # the reward from which on a sample passes
LEAST = 0.05  # a prompt keeps this weight, so that it can come back
MEMORY = 0.9  # what counts of the past each time that the prompt is seen


def weight_of(passed, seen):
    rate = passed / seen
    return max(LEAST, 4.0 * rate * (1.0 - rate))


def advantages(groups, state):
    result = []
    for group in groups:
        key = str(group.prompt_index)
        passed, seen = state.get(key, [0.0, 0.0])
        graded = [sample for sample in group.samples if sample.reward is not None]
        passed = MEMORY * passed + sum(sample.reward >= PASSES for sample in graded)
        seen = MEMORY * seen + len(graded)
        state[key] = [passed, seen]
        weight = weight_of(passed, seen) if seen > 0 else 0.0
        result.append([weight * sample.advantage for sample in group.samples])
    return result
