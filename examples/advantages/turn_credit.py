"""Credit for each turn, for tandem train --custom-advantage-path examples/advantages/turn_credit.py:advantages with
samples of several turns (--custom-generate-function-path).

A sample's advantage is that of --advantage-estimator. A turn after which an error came back loses PENALTY, so that a
sample which succeeds in the end is not rewarded for its failed attempts as much as for the one that worked."""

PENALTY = 0.5
ERROR = "error"  # what a tool's answer holds if the call failed


def answer_after(sample, turn):
    """What the generate function inserted after the turn; "" after the last one."""
    return "".join(piece.text for piece in sample.pieces if not piece.is_sampled and piece.begin == turn.end)


def advantages(groups):
    return [
        [
            [
                sample.advantage - (PENALTY if ERROR in answer_after(sample, turn).lower() else 0.0)
                for turn in sample.turns
            ]
            for sample in group.samples
        ]
        for group in groups
    ]
