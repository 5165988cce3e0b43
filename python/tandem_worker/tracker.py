"""What the workers of experiment trackers share. Each serves four calls of one class:

check(config): whether a run could begin; nothing is sent.
open(config, run_id, name, options): begins a run, or resumes the one that has this id.
write(step, values, wall_time_s): values: name -> number, or one of the strings "nan", "inf", "-inf"; KIND/step among
    them, which is step. Returns when the package has the record, and fails where the package cannot keep it.
finish(): the last call; waits for what is on its way.

config: what the flags say, as text::tracker_config() has it; "" leaves a choice to the package.
"""

import importlib
import os

from tandem_worker import protocol
from tandem_worker.protocol import MachineFault

AXES = ("rollout", "train", "eval")  # each record has KIND/step


def is_clone():
    """Whether this file is that of a clone, and not of an installed wheel."""
    return os.path.isfile(os.path.join(os.path.dirname(__file__), "../../tools/setup.sh"))


def load_package(key, flag):
    """Imports the package that `flag` asks for."""
    try:
        return importlib.import_module(key)
    except ImportError as error:
        remedy = f"`tools/setup.sh {key}`" if is_clone() else f"`pip install 'tandem[{key}]'`"
        raise MachineFault(
            f"{flag}: the package {key} cannot be imported ({error}); {remedy} installs it"
        ) from None


def one_fault(error):
    """A package's own error, whose classes have no base that its versions share."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return MachineFault(f"{error.filename}: {error.strerror}")
    return MachineFault(f"{type(error).__name__}: {error}")


def serve(worker):
    protocol.serve({"check": worker.check, "open": worker.open, "write": worker.write, "finish": worker.finish})
