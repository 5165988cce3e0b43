"""Needs a module that only the interpreter of --rm-python has."""

import only_there


def score(data_source, solution_str, ground_truth):
    return only_there.POINTS
