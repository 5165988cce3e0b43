"""The user's reward function: three dialects, told apart by the names of its parameters. docs/REWARDS.md says what each
is given and may give back.

    dialect  signature                                                            told by
    TRL      fn(prompts, completions, completion_ids, **columns)                  a parameter `completions`,
             -> [number or None, ...]                                             `completion_ids` or `prompts`
    verl     fn(data_source, solution_str, ground_truth, extra_info=None)         a parameter `solution_str`
             -> number or dict
             fn(data_sources, solution_strs, ground_truths, extra_infos)          a parameter `solution_strs`
             -> [number or dict, ...]
    slime    async fn(args, sample) -> number or dict                             two positional parameters, the
             with --group-rm: async fn(args, samples) -> [number or dict, ...]    second named sample or samples
                                                                                  (or any two, where it is async)

Any of them may be async. A function that shows the marks of two dialects, or of none, is refused. A parameter list that
ends in **names takes all that its dialect has; one without takes only what it names.

A call holds one sample, or, of TRL functions, verl's lists and slime's --group-rm, the samples of one group.
"""

import asyncio
import inspect
import os
import re
import types

from tandem_worker import outcomes
from tandem_worker.outcomes import NotApplicable, WrongCount, WrongType, describe
from tandem_worker.protocol import UserFault
from tandem_worker.user_functions.reward_file import load_function
from tandem_worker.user_functions.slime_sample import sample_of, written_into
from tandem_worker.user_functions.trl_log import Log

SIGNATURES = (
    "fn(prompts, completions, **kwargs), fn(data_source, solution_str, ground_truth, extra_info=None) "
    "or async fn(args, sample)"
)
TRL_MARKS = ("completions", "completion_ids", "prompts")
TRL_GIVEN = {*TRL_MARKS, "trainer_state", "log_extra", "log_metric", "truncated", "metadata"}  # whatever the data hold
LIST_ANNOTATION = re.compile(r"([\w.]*\.)?(list|tuple|sequence|iterable)\b", re.IGNORECASE)
VERL_PARAMETERS = {"data_source", "solution_str", "ground_truth", "extra_info"}


class Call:
    """One call of the function. start() gives what the function returns, which may be an awaitable."""

    def __init__(self, start, num_samples, is_list, what_else):
        self.start = start
        self.num_samples = num_samples
        self._is_list = is_list
        self._what_else = what_else  # (i) -> what goes with the grade of sample i beside the reward

    def values(self, returned):
        """One value a sample."""
        if not self._is_list:
            return [returned]
        if hasattr(returned, "tolist"):  # an array or a tensor
            returned = returned.tolist()
        if not isinstance(returned, (list, tuple)):
            found = type(returned).__name__
            raise WrongType(f"the function returned {found} where a list of {self.num_samples} rewards belongs")
        if len(returned) != self.num_samples:
            raise WrongCount(f"the function returned {len(returned)} rewards for {self.num_samples} samples")
        return list(returned)

    def grade(self, i, value, reward_key):
        return {**self.reward(value, reward_key), **self._what_else(i)}

    def reward(self, value, reward_key):
        if value is None:
            raise WrongType("the reward is None")
        return outcomes.reward(value, reward_key)

    def logs(self, i):
        """What the function logged of sample i, whether it has a reward or not."""
        return {}


class TrlCall(Call):
    def __init__(self, start, num_samples, log):
        super().__init__(start, num_samples, is_list=True, what_else=lambda i: {})
        self.logs = log.of

    def reward(self, value, reward_key):
        if value is None:
            raise NotApplicable("the function returned None: its reward does not apply to this sample")
        return outcomes.reward(value, reward_key)


class Function:
    """A user's function in one of the dialects."""

    def __init__(self, spec, group_rm, label_key, metadata_key, arguments, sandboxed):
        self._function = load_function(spec, sandboxed)
        self._path = os.path.abspath(spec.rpartition(":")[0])
        self._label_key = label_key
        self._metadata_key = metadata_key
        self._arguments = types.SimpleNamespace(**{name.replace("-", "_"): v for name, v in arguments.items()})
        self._loop = None
        self.concurrent = inspect.iscoroutinefunction(self._function) or inspect.iscoroutinefunction(
            getattr(self._function, "__call__", None)
        )
        self.columns = []  # of the data, that a TRL function cannot do without
        kind = self._detect(spec, group_rm)
        if kind == "verl" and group_rm:
            raise UserFault(
                f"--custom-rm-path {spec}: a verl function of solution_str scores one sample at a time; leave out "
                "--group-rm, or take lists: fn(data_sources, solution_strs, ground_truths, extra_infos)"
            )
        self.takes_group = group_rm if kind == "slime" else kind in ("trl", "verl_lists")
        self.dialect = kind.partition("_")[0]
        self.call = getattr(self, "_call_" + kind)  # (requests of one call) -> Call

    @property
    def loop(self):
        """One event loop for the life of the process: clients that a module keeps are bound to the loop that made them.
        Not before the first call, for a loop cannot be shared with the process that this one was forked from."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop

    def result_of(self, call):
        """Returns what a call gives that is made by itself."""
        loop = self.loop
        returned = call.start()
        return loop.run_until_complete(returned) if inspect.isawaitable(returned) else returned

    def describe(self, error):
        return describe(error, self._path)

    def _detect(self, spec, group_rm):
        try:
            parameters = inspect.signature(self._function).parameters.values()
        except (TypeError, ValueError):
            raise UserFault(f"--custom-rm-path {spec}: Python cannot tell its parameters; wrap it in a def") from None
        named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        names = [p.name for p in named]
        self._takes_all = any(p.kind == p.VAR_KEYWORD for p in parameters)
        self._names = set(names)
        needed = [p.name for p in named if p.default is p.empty]
        positional = [p for p in named if p.kind != p.KEYWORD_ONLY and p.default is p.empty]
        marks = []
        if any(mark in names for mark in TRL_MARKS):
            marks.append("trl")
        if "solution_str" in names:
            marks.append("verl")
        if "solution_strs" in names:
            marks.append("verl_lists")
        if len(positional) == 2 and (positional[1].name in ("sample", "samples") or (self.concurrent and not marks)):
            marks.append("slime")
        if len(marks) != 1:
            found = f"looks like {' and '.join(marks)} at once" if marks else "is none of the known kinds"
            raise UserFault(
                f"--custom-rm-path {spec}: a function of ({', '.join(names)}) {found}; use {SIGNATURES}"
            )
        kind = marks[0]
        unnamed = [p.name for p in named if p.kind == p.POSITIONAL_ONLY and p.default is p.empty]
        if unnamed and kind != "slime":
            raise UserFault(
                f"--custom-rm-path {spec}: the parameter {unnamed[0]} cannot be given by its name; leave out the / behind it"
            )
        if kind == "trl":
            self.columns = [name for name in needed if name not in TRL_GIVEN]
        elif kind == "slime":
            self._check_slime(spec, positional[1], group_rm)
        else:
            self._check_verl(spec, kind, needed)
        return kind

    @staticmethod
    def _check_slime(spec, parameter, group_rm):
        is_list = takes_list(parameter)
        if is_list and not group_rm:
            raise UserFault(
                f"--custom-rm-path {spec}: a slime function of (args, {parameter.name}) takes all samples of a group; add "
                "--group-rm, or take one: fn(args, sample)"
            )
        if is_list is False and group_rm:
            raise UserFault(
                f"--custom-rm-path {spec}: a slime function of (args, {parameter.name}) takes one sample; leave out "
                "--group-rm, or take all of a group: fn(args, samples)"
            )

    def _check_verl(self, spec, kind, needed):
        given = {"verl": VERL_PARAMETERS, "verl_lists": {name + "s" for name in VERL_PARAMETERS}}.get(kind)
        unknown = [] if given is None else [name for name in needed if name not in given]
        if unknown:
            raise UserFault(
                f"--custom-rm-path {spec}: Tandem has nothing to give for the parameter {unknown[0]} (verl gives "
                "reward_router_address and reward_model_tokenizer where it serves a reward model); give it a default"
            )

    def _accepted(self, values):
        return values if self._takes_all else {name: value for name, value in values.items() if name in self._names}

    def _call_trl(self, requests):
        log = Log(len(requests))
        columns = {"truncated": [request["truncated"] for request in requests]}
        for key in sorted({key for request in requests for key in request["metadata"]}):
            columns[key] = [request["metadata"].get(key) for request in requests]
        columns.setdefault("metadata", [request["metadata"] for request in requests])
        labels = [request["label"] for request in requests]
        columns[self._label_key] = labels
        columns.setdefault(self._label_key.rpartition(".")[2], labels)  # no parameter can be named "a.b"
        columns.update(
            prompts=[request["prompt"] for request in requests],
            completions=[completion_of(request) for request in requests],
            completion_ids=[request["response_tokens"] for request in requests],
            trainer_state=trainer_state_of(requests[0]),
            log_extra=log.extra,
            log_metric=log.metric,
        )
        for name in self.columns:
            columns.setdefault(name, [None] * len(requests))  # other lines have it
        return TrlCall(lambda: self._function(**self._accepted(columns)), len(requests), log)

    def _call_verl(self, requests):
        (request,) = requests
        values = self._accepted(verl_values(request))
        return Call(lambda: self._function(**values), 1, is_list=False, what_else=lambda i: {})

    def _call_verl_lists(self, requests):
        rows = [verl_values(request) for request in requests]
        values = self._accepted({name + "s": [row[name] for row in rows] for name in VERL_PARAMETERS})
        return Call(lambda: self._function(**values), len(requests), is_list=True, what_else=lambda i: {})

    def _call_slime(self, requests):
        samples = [sample_of(request, self._metadata_key) for request in requests]
        given = samples if self.takes_group else samples[0]
        return Call(
            lambda: self._function(self._arguments, given),
            len(requests),
            is_list=self.takes_group,
            what_else=lambda i: written_into(samples[i], requests[i]),
        )


def trainer_state_of(request):
    """What TRL's trainer_state says of the run; None outside of one."""
    state = request.get("trainer_state")
    return None if state is None else types.SimpleNamespace(**state)


def takes_list(parameter):
    """Whether the second parameter of a slime function is a list of samples, by its annotation or else its name; None
    where neither says it."""
    if parameter.annotation is not parameter.empty:
        text = inspect.formatannotation(parameter.annotation).strip("'\"")
        if LIST_ANNOTATION.match(text):
            return True
        if text.rpartition(".")[2] == "Sample":
            return False
    name = parameter.name.lower()
    if name == "sample":
        return False
    is_plural = len(name) > 2 and name.endswith("s") and not name.endswith("ss")
    return True if is_plural or name.endswith(("list", "group", "batch")) else None


def completion_of(request):
    prompt = request["prompt"]
    if not isinstance(prompt, list):
        return request["response"]
    # A prompt that ends with an assistant's message is continued: the two are one message, as in TRL.
    begun = prompt[-1].get("content") or "" if prompt[-1]["role"] == "assistant" else ""
    return [{"role": "assistant", "content": begun + request["response"]}]


def verl_values(request):
    row = request["metadata"]
    ground_truth = request["label"]
    if ground_truth is None and isinstance(row.get("reward_model"), dict):
        ground_truth = row["reward_model"].get("ground_truth")
    extra_info = row.get("extra_info")
    if extra_info is None:
        extra_info = row
    if isinstance(extra_info, dict):
        extra_info = {"truncated": request["truncated"], "num_turns": None, "rollout_reward_scores": {}, **extra_info}
    return {
        "data_source": row.get("data_source", ""),
        "solution_str": request["response"],
        "ground_truth": ground_truth,
        "extra_info": extra_info,
    }
