"""The built-in rewards by the names that --rm-type and a line's metadata.rm_type have for them. src/reward/reward_rules.h
has the same names, for the program."""

from tandem_worker.protocol import UserFault
from tandem_worker.rules import rewards, slime_rules

BOXED = "boxed_"
# They look at the whole response, or at none: an unfinished thought is wrong to `exact` as it is.
OF_WHOLE_RESPONSES = ("exact", "random", "none")


def _code():
    from tandem_worker.rules import code_rule  # what it imports takes longer than all of the others

    return code_rule.code


def _ifbench():
    from tandem_worker.rules import ifbench_rule  # imported only where a run uses it

    return ifbench_rule.Ifbench()


MAKERS = {
    "exact": lambda: rewards.exact,
    "math": rewards.Math,
    "dapo": lambda: rewards.dapo,
    "deepscaler": slime_rules.Deepscaler,
    "f1": lambda: slime_rules.f1,
    "gpqa": lambda: slime_rules.gpqa,
    "random": lambda: slime_rules.random,
    "none": lambda: rewards.none,
    "code": _code,
    "ifbench": _ifbench,
}


class OutsideThoughts:
    """Another rule, for what a response says outside of a thought that it began and never ended."""

    def __init__(self, rule):
        self._rule = rule

    def __call__(self, sample):
        return self._rule({**sample, "response": rewards.without_unfinished_thought(sample)})


def make(rm_type):
    """The reward of that name: (sample) -> number or dict. MachineFault where it lacks a package."""
    if rm_type.startswith(BOXED):
        return OutsideThoughts(slime_rules.Boxed(make(rm_type[len(BOXED) :])))
    if rm_type not in MAKERS:
        raise UserFault(f"--rm-type {rm_type}: not one of {', '.join(MAKERS)}")
    rule = MAKERS[rm_type]()
    return rule if rm_type in OF_WHOLE_RESPONSES else OutsideThoughts(rule)
