"""A reward that computes with torch, as one that scores with a small model does."""

import torch


def score(data_source, solution_str, ground_truth):
    return float(torch.tensor([float(len(solution_str)), 1.0]).sum())
