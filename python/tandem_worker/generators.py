"""The state of the generators of random numbers that the user's code draws from: Python's and NumPy's."""

import random
import sys


def seed_generators(seed):
    """Seeds the generators of Python and NumPy, so that a function draws the same numbers whichever process it runs in."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def generator_states():
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy and numpy.random.get_state()


def set_generator_states(states):
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy"].random.set_state(states[1])
