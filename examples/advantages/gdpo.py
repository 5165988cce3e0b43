"""GDPO, for tandem train --custom-advantage-path examples/advantages/gdpo.py:advantages with several rewards.

Each reward is normalised in its group by itself, so that a reward of small numbers counts as much as one of large ones,
and only then they are added up. `--multi-objective-aggregation normalize_then_sum` computes the same; this file is what
to begin from for another way to combine rewards."""

import statistics

EPSILON = 1e-4


def normalised(values):
    """The values less their mean, over their standard deviation; None stays None, and equal values are 0."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or min(known) == max(known):
        return [None if value is None else 0.0 for value in values]
    mean, spread = statistics.fmean(known), statistics.stdev(known) + EPSILON
    return [None if value is None else (value - mean) / spread for value in values]


def advantages(groups, args):
    weights = args.reward_weights or [1.0] * len(groups[0].samples[0].rewards)
    sums = []
    for group in groups:
        of_samples = [0.0] * len(group.samples)
        for name, weight in zip(group.samples[0].rewards, weights):
            for i, value in enumerate(normalised([sample.rewards[name] for sample in group.samples])):
                of_samples[i] += weight * (value or 0.0)
        sums.append(of_samples)
    everything = [value for of_samples in sums for value in of_samples]
    spread = (statistics.stdev(everything) if len(everything) > 1 else 0.0) + EPSILON
    return [[value / spread for value in of_samples] for of_samples in sums]
