"""Attacks while it is imported, when one might think that not all layers are there yet. Its victim lies beside it."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attacks  # noqa: E402

VICTIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "victim")
attempts = (attacks.take_mounts_back, attacks.new_namespace, attacks.write_outside, attacks.internet)
attacks.IMPORTED["went_through"] = any([attempt(VICTIM) for attempt in attempts])
score = attacks.score
