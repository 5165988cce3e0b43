"""Generate functions for multi_turn_test.cc, in slime's dialect and with tandem.rollout. Models of the tests know nothing:
what counts is how tokens, masks and log-probs come through."""

import asyncio
import os
import random
import time

from slime.rollout.sglang_rollout import GenerateState
from slime.rollout.sglang_rollout import generate as one_turn
from slime.utils.http_utils import post
from slime.utils.types import Sample

TURNS = 3


async def single(args, sample, sampling_params):
    """What the engine does without a function."""
    return await one_turn(args, sample, sampling_params)


async def turns(args, sample: Sample, sampling_params) -> Sample:
    """As examples of slime are written: turns of a few tokens, and what a tool says in between."""
    state = GenerateState(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    prompt_ids = state.tokenizer(sample.prompt, add_special_tokens=False)["input_ids"]
    assert prompt_ids == sample.tokens and not args.partial_rollout
    response, response_ids, mask, log_probs = "", [], [], []
    for turn in range(TURNS):
        payload = {
            "input_ids": prompt_ids + response_ids,
            "sampling_params": {**sampling_params, "max_new_tokens": 3},
            "return_logprob": True,
        }
        output = await post(url, payload)
        ids = [item[1] for item in output["meta_info"]["output_token_logprobs"]]
        log_probs += [item[0] for item in output["meta_info"]["output_token_logprobs"]]
        response_ids += ids
        mask += [1] * len(ids)
        response += output["text"]
        if turn + 1 < TURNS:
            await asyncio.sleep(float(os.environ.get("TOOL_SECONDS", "0")) * (sample.index % 3))
            tool = state.tokenizer(f" {len(ids)}", add_special_tokens=False)["input_ids"][:2]
            response_ids += tool
            mask += [0] * len(tool)
            log_probs += [0.0] * len(tool)
    sample.tokens = prompt_ids + response_ids
    sample.response_length = len(response_ids)
    sample.response = response
    sample.loss_mask = mask
    sample.rollout_log_probs = log_probs
    sample.metadata["luck"] = random.random()
    sample.num_tools = TURNS - 1
    sample.status = Sample.Status.COMPLETED
    return sample


async def asks_by_text(args, sample, sampling_params):
    """As slime's search-r1 is written: texts go to the engine, and the prompt's ids are made without BOS."""
    state = GenerateState(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    prompt_ids = state.tokenizer(sample.prompt, add_special_tokens=False)["input_ids"]
    output = await post(url, {"text": sample.prompt, "sampling_params": {**sampling_params, "max_new_tokens": 3}})
    ids = list(output["output_ids"])
    tool = state.tokenizer(" 7", add_special_tokens=False)["input_ids"]
    judged = await post(url, {"text": sample.prompt + " 7", "sampling_params": {"max_new_tokens": 1}})
    assert judged["meta_info"]["prompt_tokens"] == output["meta_info"]["prompt_tokens"] + len(tool)
    sample.tokens = prompt_ids + ids + tool
    sample.response_length = len(ids) + len(tool)
    sample.loss_mask = [1] * len(ids) + [0] * len(tool)
    sample.status = Sample.Status.COMPLETED
    return sample


async def asks_by_bare_ids(args, sample, sampling_params):
    """Asks for the prompt's ids as the tokenizer has them without BOS."""
    bare = GenerateState(args).tokenizer(sample.prompt, add_special_tokens=False)["input_ids"]
    output = await post("http://127.0.0.1:0/generate", {"input_ids": bare, "sampling_params": sampling_params})
    sample.tokens = bare + output["output_ids"]
    sample.response_length = len(output["output_ids"])
    return sample


async def late_turns(args, sample, sampling_params):
    """The same, with some samples later than others."""
    await asyncio.sleep(0.02 * (sample.index * 7 % 5))
    return await turns(args, sample, sampling_params)


async def reward(args, sample):
    assert sample.num_tools == TURNS - 1 and 0 <= sample.metadata["luck"] < 1
    assert len(sample.loss_mask) == sample.response_length and 0 in sample.loss_mask
    return float(sum(sample.tokens) % 5)


async def branches(args, sample, sampling_params, evaluation=False):
    """Two answers to the same question at once, of which the longer is kept: they must not be the same."""
    from tandem.rollout import generate, tokenizer

    assert len(tokenizer().encode("a")) > 0 and evaluation is False
    calls = [generate(sample.tokens, {**sampling_params, "max_new_tokens": 4}) for _ in range(2)]
    first, second = await asyncio.gather(*calls)
    assert first.tokens != second.tokens
    return_value = max(first, second, key=lambda completion: completion.tokens)
    sample.append_response_tokens(tokens=return_value.tokens, log_probs=return_value.log_probs)
    greedy = await generate(sample.tokens, {"temperature": 0.0, "max_new_tokens": 2})
    sample.append_response_tokens(tokens=greedy.tokens, trainable=False)
    return sample


async def forged(args, sample, sampling_params):
    sample = await one_turn(args, sample, sampling_params)
    sample.tokens[-1] = (sample.tokens[-1] + 1) % 100
    return sample


async def raises(args, sample, sampling_params):
    raise KeyError("tool")


async def raises_sometimes(args, sample, sampling_params):
    if sample.index % 4 == 1:
        raise KeyError("tool")
    return await turns(args, sample, sampling_params)


async def makes_up_a_token(args, sample, sampling_params):
    """As a tool does that encodes with another tokenizer: an id beyond the vocabulary, which is not trained on."""
    sample = await turns(args, sample, sampling_params)
    if sample.index == 1:
        sample.append_response_tokens(tokens=[5, 5, 10**6], trainable=False)
    return sample


async def several(args, sample, sampling_params):
    return [sample, sample]


async def hangs(args, sample, sampling_params):
    if sample.index == 1:
        await asyncio.sleep(60)
    return await turns(args, sample, sampling_params)


async def computes_for_ever(args, sample, sampling_params):
    if sample.index == 1:
        time.sleep(60)
    return await turns(args, sample, sampling_params)


async def dies(args, sample, sampling_params):
    first = await turns(args, sample, sampling_params)
    if sample.index == 1:
        os._exit(3)
    return first


async def dies_once(args, sample, sampling_params):
    first = await turns(args, sample, sampling_params)
    mark = os.path.join(os.path.dirname(__file__), "died")
    if sample.index == 1 and not os.path.exists(mark):
        open(mark, "w").close()
        os._exit(3)
    return first


async def bad_call(args, sample, sampling_params):
    """Each mistake is told to the function, which goes on."""
    from tandem.rollout import generate

    for ids, parameters, says in [
        ([], None, "input_ids are empty"),
        ([10**6], None, "vocabulary"),
        (sample.tokens, {"top_p": 2.0}, "top-p"),
        (sample.tokens, {"temperature": float("nan")}, "temperature is nan"),
        (sample.tokens, {"max_new_tokens": 0}, "max_new_tokens"),
        (sample.tokens, {"beams": 4}, "beams=4 is not known"),
        (sample.tokens, {"stop": [""]}, "stop"),
    ]:
        try:
            await generate(ids, parameters)
        except ValueError as error:
            assert says in str(error), error
        else:
            raise AssertionError(f"{ids[:3]} {parameters} was answered")
    for call in (post("http://127.0.0.1:1/search", {}), post("http://127.0.0.1:1/v1/chat/completions", {})):
        try:
            await call
        except RuntimeError as error:
            assert "only .../generate is there" in str(error)
        else:
            raise AssertionError("somebody answered")
    return await one_turn(args, sample, sampling_params)


async def waits_for_ever(args, sample, sampling_params):
    await asyncio.sleep(600)


async def talks_on(args, sample, sampling_params):
    """A tool that says more than there is room for."""
    sample = await one_turn(args, sample, {**sampling_params, "max_new_tokens": 2})
    sample.append_response_tokens(tokens=[5] * 1000, trainable=False)
    return sample


def plain(args, sample, sampling_params):
    return sample


async def two(args, sample):
    return sample


async def two_samples(args, sample, sampling_params):
    """A list: what continues the prompt, and a conversation with a beginning of its own."""
    import copy

    from tandem.rollout import generate, tokenizer

    first = await one_turn(args, copy.deepcopy(sample), {**sampling_params, "max_new_tokens": 4})
    own = tokenizer().encode("Is it right?")[:4]
    judged = await generate(own, {"max_new_tokens": 3})
    second = copy.deepcopy(sample)
    second.tokens, second.response_length = own + judged.tokens, len(judged.tokens)
    return [first, second]


async def is_refused_and_fails_at_times(args, sample, sampling_params):
    """A client without a key asks the endpoint; then every other sample fails."""
    import http.client

    from tandem.rollout import endpoint

    def ask_without_a_key(host):
        connection = http.client.HTTPConnection(host, timeout=30)
        connection.request("GET", "/v1/models")
        connection.getresponse().read()
        connection.close()

    host = endpoint().base_url.split("/")[2]
    await asyncio.get_running_loop().run_in_executor(None, ask_without_a_key, host)
    if sample.index % 2 == 1:
        raise ValueError("no sample")
    return await one_turn(args, sample, sampling_params)


async def asks_the_endpoint(args, sample, sampling_params):
    """An agent of two requests, over the loopback of the sandbox."""
    import http.client
    import json

    from tandem.rollout import endpoint, tokenizer

    model = endpoint()
    host = model.base_url.split("/")[2]

    def ask(prompt):
        connection = http.client.HTTPConnection(host, timeout=30)
        body = json.dumps({"prompt": prompt, "max_tokens": 3})
        connection.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {model.api_key}"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer["choices"][0]["text"]

    own = tokenizer().encode("Is it right?")[:4]

    def act():
        ask(own)
        ask(list(sample.tokens))

    await asyncio.get_running_loop().run_in_executor(None, act)
    return model.samples()
