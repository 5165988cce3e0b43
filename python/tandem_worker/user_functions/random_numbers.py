"""The state of the generators of random numbers that the user's code draws from: Python's and NumPy's."""

import random
import sys


def seed_generators(seed):
    """Seeds the generators of Python and NumPy, so that a function draws the same numbers whichever process it runs in."""
    random.seed(seed)
    _seed_numpy(seed)


def generator_states():
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy and numpy.random.get_state()


def set_generator_states(states, seed):
    """Goes on with `states`. seed: of the call that has them, for a NumPy that was not imported yet."""
    random.setstate(states[0])
    if states[1] is None:
        _seed_numpy(seed)
    else:
        sys.modules["numpy"].random.set_state(states[1])


def _seed_numpy(seed):
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
        return
    _SEEDER.seed = seed
    if _SEEDER not in sys.meta_path:
        sys.meta_path.insert(0, _SEEDER)


class _Seeder:
    """Seeds NumPy when a function imports it in the middle of a call. An import before the call would cost 0.2 s and 16 MB
    in runs whose functions never use it."""

    seed = 0

    def find_spec(self, name, path=None, target=None):
        if name != "numpy":
            return None
        import importlib.util  # takes 4 ms, which most runs do not need

        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)  # by the other finders
        finally:
            sys.meta_path.insert(0, self)  # whoever looked for NumPy may import it later
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_and_seed(module):
                execute(module)
                _seed_numpy(self.seed)

            spec.loader.exec_module = execute_and_seed
        return spec


_SEEDER = _Seeder()
