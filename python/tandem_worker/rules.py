"""The built-in rewards by the names that --rm-type and a line's metadata.rm_type have for them. src/text/reward_rules.h
has the same names, for the program."""

from tandem_worker import rewards, slime_rules
from tandem_worker.protocol import UserFault

BOXED = "boxed_"
MAKERS = {
    "exact": lambda: rewards.exact,
    "math": rewards.Math,
    "dapo": lambda: rewards.dapo,
    "deepscaler": slime_rules.Deepscaler,
    "f1": lambda: slime_rules.f1,
    "gpqa": lambda: slime_rules.gpqa,
    "random": lambda: slime_rules.random,
}


def make(rm_type):
    """The reward of that name: (sample) -> number or dict. MachineFault where it lacks a package."""
    if rm_type.startswith(BOXED):
        return slime_rules.Boxed(make(rm_type[len(BOXED) :]))
    if rm_type not in MAKERS:
        raise UserFault(f"--rm-type {rm_type}: not one of {', '.join(MAKERS)}")
    return MAKERS[rm_type]()
