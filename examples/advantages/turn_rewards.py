"""Rewards of turns, for tandem train --custom-advantage-path examples/advantages/turn_rewards.py:advantages with a reward that
gives each turn a number of its own (turn_0, turn_1, ... in its dict), as examples/calculator/quiz.py does.

A turn's advantage is its own reward, normalised over all turns of the group, so that a turn is not praised for what another
one did. Turns whose reward is missing get the sample's reward."""

import statistics

EPSILON = 1e-6


def rewards_of_turns(sample):
    return [sample.extras.get(f"turn_{k}", sample.reward) for k in range(len(sample.turns))]


def advantages(groups):
    result = []
    for group in groups:
        rewards = [None if sample.reward is None else rewards_of_turns(sample) for sample in group.samples]
        known = [reward for of_turns in rewards if of_turns for reward in of_turns]
        mean = statistics.fmean(known) if known else 0.0
        spread = statistics.pstdev(known) if known else 0.0
        result.append([of_turns and [(reward - mean) / (spread + EPSILON) for reward in of_turns] for of_turns in rewards])
    return result
