"""slime's Sample as its functions see it, what such a function writes into one, and the modules that published functions
import it from."""

import enum
import importlib.util
import itertools
import sys
import types
from dataclasses import dataclass, field

from tandem_worker.outcomes import SaidToHaveFailed, WrongType
from tandem_worker.protocol import with_article
from tandem_worker.user_functions.engine_calls import token_ids
from tandem_worker.user_functions.line_metadata import own_metadata


class Status(enum.Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """The attributes that slime's has. What Tandem has no use for keeps slime's default."""

    group_index: int = None
    index: int = None
    rollout_id: int = None
    prompt: object = ""  # text, or a list of messages
    tokens: list = field(default_factory=list)  # of prompt and response
    multimodal_inputs: dict = None
    multimodal_train_inputs: dict = None
    apply_chat_template_kwargs: dict = field(default_factory=dict)
    response: str = ""
    response_length: int = 0  # in tokens
    label: object = None
    reward: object = None
    loss_mask: list = None
    weight_versions: list = field(default_factory=list)
    rollout_log_probs: list = None
    remove_sample: bool = False
    teacher_log_probs: list = None
    status: Status = Status.PENDING
    metadata: dict = field(default_factory=dict)
    generate_function_path: str = None
    custom_rm_path: str = None
    train_metadata: dict = None
    session_id: str = None
    non_generation_time: float = 0.0

    Status = Status

    def to_dict(self):
        return {**vars(self), "status": self.status.value}

    def get_reward_value(self, args):
        return self.reward[args.reward_key] if args.reward_key else self.reward

    def append_response_tokens(
        self, args=None, *, tokens=None, log_probs=None, trainable=True, meta_info=None, text=None,
        update_terminal_info=True,
    ):
        """Adds tokens to the response, with what belongs to each: of the model (trainable) or of a tool."""
        tokens = [] if tokens is None else token_ids(tokens, "append_response_tokens: tokens")
        if log_probs is None:
            log_probs = [0.0] * len(tokens)  # Tandem puts in the engine's own
        if len(log_probs) != len(tokens):
            raise ValueError(f"{len(log_probs)} log_probs for {len(tokens)} tokens")
        self.loss_mask = (self.loss_mask or [1] * self.response_length) + [int(trainable)] * len(tokens)
        self.rollout_log_probs = (self.rollout_log_probs or [0.0] * self.response_length) + list(log_probs)
        self.tokens = list(self.tokens) + tokens
        self.response_length += len(tokens)
        if text is not None:
            self.response += text
        if meta_info is not None and update_terminal_info:
            self.status = STATUS_OF_REASON[meta_info["finish_reason"]["type"]]

    @property
    def effective_response_length(self):
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)


STATUS_OF_REASON = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


def sample_of(request, metadata_key):
    sample = Sample(
        group_index=request["group_id"],
        index=request["sample_id"],
        rollout_id=request["sample_id"],
        prompt=request["prompt_text"] or request["prompt"],
        tokens=request["prompt_tokens"] + request["response_tokens"],
        response=request["response"],
        response_length=len(request["response_tokens"]),
        label=request["label"],
        loss_mask=request.get("loss_mask"),
        status=Status.TRUNCATED if request["truncated"] else Status.COMPLETED,
        metadata=own_metadata(request, metadata_key),
    )
    for name, value in request.get("attributes", {}).items():  # that a generate function added
        setattr(sample, name, value)
    return sample


def mask_text(mask, num_tokens):
    """A loss mask as text, "0" or "1" for each token of the response."""
    if hasattr(mask, "tolist"):  # an array or a tensor
        mask = mask.tolist()
    if not isinstance(mask, (list, tuple)):
        kind = with_article(type(mask).__name__)
        raise WrongType(f"sample.loss_mask is {kind}; write a list of {num_tokens} zeros and ones")
    if len(mask) != num_tokens:
        raise WrongType(f"sample.loss_mask has {len(mask)} values for the {num_tokens} tokens of the response")
    for value in mask:
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            raise WrongType(f"sample.loss_mask holds {value!r:.40}; write zeros and ones")
    return "".join("1" if value else "0" for value in mask)


def written_into(sample, request):
    """What the function changed of a sample that sample_of() made of the request; goes with its grade."""
    result = {}
    if sample.remove_sample:
        result["remove_sample"] = True
    if sample.loss_mask is not None:
        result["loss_mask"] = mask_text(sample.loss_mask, len(request["response_tokens"]))
    status = getattr(sample.status, "value", sample.status)  # of any enumeration: slime's own is another one
    if status == Status.FAILED.value:
        raise SaidToHaveFailed("the function set sample.status to FAILED")
    if status not in (Status.COMPLETED.value, Status.TRUNCATED.value, Status.ABORTED.value):
        raise WrongType(f"sample.status is {status!r:.40}; write COMPLETED, TRUNCATED, ABORTED or FAILED")
    if status != (Status.TRUNCATED if request["truncated"] else Status.COMPLETED).value:
        result["status"] = status
    return result


STAND_INS = {"slime.utils.types": {"Sample": Sample}}  # module -> what published functions import from it


def has_slime():
    """Whether slime itself, or its stand-in, can be imported. A folder of that name beside the function is neither."""
    try:
        return importlib.util.find_spec("slime.utils.types") is not None
    except (ModuleNotFoundError, ValueError):  # ValueError: a module that has no spec, as the stand-in
        return "slime.utils.types" in sys.modules


def stand_in_for_slime():
    """Lets `from slime.utils.types import Sample`, with which published functions begin, work without slime."""
    if has_slime():
        return
    for path, members in STAND_INS.items():
        module = None
        for name in itertools.accumulate(path.split("."), "{}.{}".format):
            module = sys.modules.get(name)
            if module is None:
                module = sys.modules[name] = types.ModuleType(name, "Tandem's stand-in: slime is not installed.")
                module.__path__ = []
                parent, _, last = name.rpartition(".")
                if parent:
                    setattr(sys.modules[parent], last, module)
        vars(module).update(members)
