"""A TRL function that runs its first completion as a statement, and so logs what a test wants."""

import numpy

nan = float("nan")


def logs(completions, log_extra, log_metric):
    exec(completions[0], {"log_extra": log_extra, "log_metric": log_metric, "numpy": numpy, "nan": nan})
    return [1.0] * len(completions)
