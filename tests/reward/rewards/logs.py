"""TRL functions that do what their completions say: log something, take their time."""

import time

import numpy

nan = float("nan")


def logs(completions, log_extra, log_metric):
    exec(completions[0], {"log_extra": log_extra, "log_metric": log_metric, "numpy": numpy, "nan": nan})
    return [1.0] * len(completions)


def takes_its_time(completions, **kwargs):
    """As many seconds as each completion says."""
    time.sleep(sum(map(float, completions)))
    return [1.0] * len(completions)
