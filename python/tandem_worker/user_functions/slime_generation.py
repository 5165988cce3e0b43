"""What generate functions that were written for slime import besides Sample: the state of a rollout, the client of the
engine, and slime's own generate function, on top of engine_calls.py. docs/SAMPLING.md lists what is there."""

import asyncio

from tandem_worker.user_functions import engine_calls, slime_sample


class GenerateState:
    """tokenizer, args, sampling_params (a fresh copy of the run's) and a semaphore, which bounds nothing: how many samples
    are under way is the program's business."""

    tokenizer = None  # set once, before any function runs
    processor = None
    aborted = False

    def __init__(self, args):
        self.args = args
        self.sampling_params = given_parameters(engine_calls.current().sampling_params)
        self.semaphore = asyncio.Semaphore(1 << 30)


def given_parameters(sampling_params):
    """`sampling_params` as slime's functions are given them."""
    return {
        **sampling_params,
        "stop": list(sampling_params["stop"]) or None,
        "stop_token_ids": list(sampling_params["stop_token_ids"]) or None,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }


async def generate(args, sample, sampling_params):
    """One turn, as the run does without a function."""
    if not sample.tokens:
        sample.tokens = engine_calls.current().prompt.encode(sample.prompt)
    left = sampling_params["max_new_tokens"] - sample.response_length
    if left <= 0:
        sample.status = slime_sample.Status.TRUNCATED
        return sample
    completion = await engine_calls.generate(sample.tokens, {**sampling_params, "max_new_tokens": left})
    sample.append_response_tokens(
        args,
        tokens=completion.tokens,
        log_probs=completion.log_probs,
        meta_info={"finish_reason": {"type": completion.finish_reason}},
        text=completion.text,
    )
    return sample


def get_model_url(args, model_name, endpoint="/generate"):
    return f"http://{args.sglang_router_ip}:{args.sglang_router_port}{endpoint}"


STAND_INS = {
    "slime.rollout.sglang_rollout": {
        "GenerateState": GenerateState,
        "generate": generate,
        "get_model_url": get_model_url,
    },
    "slime.utils.http_utils": {"post": engine_calls.post, "get": engine_calls.get},
}
# Attributes of `args` that functions written for slime read and that no flag of Tandem sets, with the values that they
# are given.
ARGUMENTS = {
    "partial_rollout": False,
    "mask_offpolicy_in_partial_rollout": False,
    "ci_test": False,
    "context_parallel_size": 1,
    "sglang_router_ip": "127.0.0.1",
    "sglang_router_port": 0,
    "sglang_server_concurrency": 1 << 30,
    "sglang_speculative_algorithm": None,
    "use_rollout_routing_replay": False,
}
