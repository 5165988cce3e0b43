"""The user's reward function: three dialects, told apart by the names of its parameters.

    dialect  signature                                                            told by
    TRL      fn(prompts, completions, **columns) -> [number, ...]                 a parameter `completions`
    verl     fn(data_source, solution_str, ground_truth, extra_info=None)         a parameter `solution_str`
             -> number or dict
    slime    async fn(args, sample) -> number or dict                             two positional parameters, the
             with --group-rm: async fn(args, samples) -> [number or dict, ...]    second named sample or samples
                                                                                  (or any two, where it is async)

Any of them may be async. A function that shows the marks of two dialects, or of none, is refused. A parameter list that
ends in **names takes all that its dialect has; one without takes only what it names.

Calls are per sample, and TRL's lists then hold one item; with --group-rm a TRL or slime function gets a whole group at
once. verl's functions know no groups.

What they are given:
    TRL    prompts and completions, as message lists where the data line had one (a completion is then one assistant
           message), else as text; completion_ids, trainer_state (None), log_extra and log_metric (their calls are
           accepted and dropped), and each column of the data line as a list, the label under its own key.
    verl   data_source and extra_info from the data line (extra_info: all its other keys where there is none),
           ground_truth the label.
    slime  args with the run's flags; sample with slime's attributes.
"""

import asyncio
import enum
import importlib.util
import inspect
import os
import sys
import traceback
import types

from tandem_worker.protocol import UserFault, one_line, with_article


class WrongCount(Exception):
    """A function of a batch gave back another number of rewards than it was given samples."""


def load_function(spec):
    """FILE.py:NAME to the function. The file's folder comes first on the import path, as when Python runs a file."""
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name:
        raise UserFault(f"--custom-rm-path {spec}: write it as FILE.py:FUNCTION")
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise UserFault(f"--custom-rm-path {spec}: {path} is no file")
    sys.path.insert(0, os.path.dirname(path))
    module_spec = importlib.util.spec_from_file_location("tandem_custom_reward", path)
    if module_spec is None:
        raise UserFault(f"--custom-rm-path {spec}: {path} is not a Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # dataclasses and pickle look a function's module up there
    try:
        module_spec.loader.exec_module(module)
    except BaseException as error:  # sys.exit() at import is the file's fault too
        traceback.print_exc()
        raise UserFault(f"--custom-rm-path {spec}: {describe(error, path)}") from None
    function = getattr(module, name, None)
    if function is None:
        own = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        listed = ", ".join(sorted(own)) or "none"
        raise UserFault(f"--custom-rm-path {spec}: the file has no {name}; its functions: {listed}")
    if not callable(function):
        raise UserFault(f"--custom-rm-path {spec}: {name} is {with_article(type(function).__name__)}, not a function")
    return function


def describe(error, path=""):
    """`ValueError: text (reward.py:12)`: the last line of the user's own file that the error passed through."""
    text = f"{type(error).__name__}: {one_line(error, 300)}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        return text
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{text} ({os.path.basename(path)}:{lines[-1]})" if lines else text


class Status(enum.Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


class Sample(types.SimpleNamespace):
    """A sample with the attributes that slime's has."""

    Status = Status

    def __init__(self, request):
        nested = request["metadata"].get("metadata")
        super().__init__(
            group_index=request["group_id"],
            index=request["sample_id"],
            prompt=request["prompt_text"] or request["prompt"],
            tokens=request["prompt_tokens"] + request["response_tokens"],
            response=request["response"],
            response_length=len(request["response_tokens"]),
            label=request["label"],
            reward=None,
            loss_mask=None,
            weight_versions=[],
            rollout_log_probs=None,
            remove_sample=False,
            status=Status.TRUNCATED if request["truncated"] else Status.COMPLETED,
            metadata=nested if isinstance(nested, dict) else request["metadata"],
            train_metadata=None,
            multimodal_inputs=None,
            session_id=None,
        )

    def to_dict(self):
        return {**vars(self), "status": self.status.value}


class Function:
    """A user's function in one of the dialects. call() takes requests and gives back one value for each."""

    def __init__(self, spec, group_rm, label_key, arguments):
        self._function = load_function(spec)
        self._path = os.path.abspath(spec.rpartition(":")[0])
        self._group_rm = group_rm
        self._label_key = label_key
        self._arguments = types.SimpleNamespace(**arguments)
        self.dialect = self._detect(spec)
        if self.dialect == "verl" and group_rm:
            raise UserFault(
                f"--custom-rm-path {spec}: a verl function scores one sample at a time; leave out --group-rm"
            )
        self._loop = None

    def call(self, requests):
        if self._loop is None:
            # One loop for the life of the process: clients that a module keeps are bound to the loop that made them.
            # Not before the first call, for a loop cannot be shared with the process that this one was forked from.
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        values = getattr(self, "_call_" + self.dialect)(requests)
        if inspect.isawaitable(values):
            values = self._loop.run_until_complete(values)
        if not self._group_rm and self.dialect != "trl":
            return [values]
        if hasattr(values, "tolist"):  # an array or a tensor
            values = values.tolist()
        if not isinstance(values, (list, tuple)):
            found = type(values).__name__
            raise TypeError(f"the function returned {found} where a list of {len(requests)} rewards belongs")
        if len(values) != len(requests):
            raise WrongCount(f"the function returned {len(values)} rewards for {len(requests)} samples")
        return list(values)

    def describe(self, error):
        return describe(error, self._path)

    def _detect(self, spec):
        try:
            parameters = inspect.signature(self._function).parameters.values()
        except (TypeError, ValueError):
            raise UserFault(f"--custom-rm-path {spec}: Python cannot tell its parameters; wrap it in a def") from None
        named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        names = [p.name for p in named]
        self._takes_all = any(p.kind == p.VAR_KEYWORD for p in parameters)
        self._names = set(names)
        positional = [p for p in named if p.kind != p.KEYWORD_ONLY and p.default is p.empty]
        is_async = inspect.iscoroutinefunction(self._function) or inspect.iscoroutinefunction(
            getattr(self._function, "__call__", None)
        )
        marks = []
        if "completions" in names:
            marks.append("trl")
        if "solution_str" in names:
            marks.append("verl")
        if len(positional) == 2 and (positional[1].name in ("sample", "samples") or (is_async and not marks)):
            marks.append("slime")
        if len(marks) == 1:
            return marks[0]
        found = f"looks like {' and '.join(marks)} at once" if marks else "is none of the known kinds"
        raise UserFault(
            f"--custom-rm-path {spec}: a function of ({', '.join(names)}) {found}; "
            "use fn(prompts, completions, **kwargs), fn(data_source, solution_str, ground_truth, extra_info=None) "
            "or async fn(args, sample)"
        )

    def _accepted(self, values):
        return values if self._takes_all else {name: value for name, value in values.items() if name in self._names}

    def _call_trl(self, requests):
        columns = {}
        for key in sorted({key for request in requests for key in request["metadata"]}):
            columns[key] = [request["metadata"].get(key) for request in requests]
        columns[self._label_key] = [request["label"] for request in requests]
        columns.update(
            prompts=[request["prompt"] for request in requests],
            completions=[completion_of(request) for request in requests],
            completion_ids=[request["response_tokens"] for request in requests],
            trainer_state=None,
            log_extra=lambda *_: None,
            log_metric=lambda *_: None,
        )
        return self._function(**self._accepted(columns))

    def _call_verl(self, requests):
        (request,) = requests
        row = request["metadata"]
        values = {
            "data_source": row.get("data_source", ""),
            "solution_str": request["response"],
            "ground_truth": request["label"],
            "extra_info": row.get("extra_info", row),
        }
        return self._function(**self._accepted(values))

    def _call_slime(self, requests):
        samples = [Sample(request) for request in requests]
        return self._function(self._arguments, samples if self._group_rm else samples[0])


def completion_of(request):
    if isinstance(request["prompt"], list):
        return [{"role": "assistant", "content": request["response"]}]
    return request["response"]
