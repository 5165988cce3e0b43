"""Prints the scalars of a TensorBoard directory as JSON: [[step, name, value], ...], as TensorBoard reads them."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

accumulator = EventAccumulator(sys.argv[1])
accumulator.Reload()
scalars = [(e.step, tag, str(e.value)) for tag in accumulator.Tags()["scalars"] for e in accumulator.Scalars(tag)]
print(json.dumps(sorted(scalars)))
