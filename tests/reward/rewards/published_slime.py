"""Functions with the parameters and results of slime's published ones: docs/en/get_started/customization.md and
quick_start.md, slime/rollout/rm_hub, examples/search-r1 and retool, tests/plugin_contracts. The bodies are ours."""

import asyncio

from slime.utils.types import Sample  # Tandem's own where slime is not installed


async def custom_rm(args, sample: Sample) -> float:  # customization.md
    return float(sample.response == sample.label)


async def batched_custom_rm(args, samples: list[Sample]) -> list[float]:  # the same, with --group-rm
    return [2.0 * sample.index for sample in samples]


async def reward_func(args, sample: Sample, **kwargs) -> float:  # quick_start.md
    await asyncio.sleep(0)
    return sample.metadata["session_id"] + 0.5


async def of_a_dict_label(args, sample, **kwargs):  # examples/search-r1
    assert isinstance(sample, Sample)  # as there: the class must be the one that is imported
    return float((sample.prompt + sample.response).endswith(sample.label["ground_truth"]))


async def of_a_dict(args, sample, **kwargs):  # examples/retool: num_turns from an attribute that may be absent
    assert isinstance(sample, Sample) and sample.prompt + sample.response
    return {"score": -1.0 + getattr(sample, "tool_call_count", 2), "acc": True, "pred": ""}


async def of_metadata(args, sample: Sample, **kwargs):  # rm_hub.async_rm
    kind = sample.metadata.get("rm_type", args.rm_type)
    if kind != "boxed_math" or sample.custom_rm_path is not None:
        raise ValueError(kind)
    return 1


def synchronous(args, sample):  # the help text of slime's --custom-rm-path
    return {"my_key": sample.get_reward_value(args) or 0.75} if args.reward_key == "" else 0.0


async def of_args(args, sample):
    assert args.rollout_max_response_len == 12 and args.lr == 1e-3 and args.colocate is True
    assert args.eval_prompt_data == ["a", "b.jsonl"] and args.rm_type is None
    return 1.0


async def overlong_filter(args, sample: Sample):
    """Takes what was cut out of the loss: what slime's users write into a sample."""
    if sample.status == Sample.Status.TRUNCATED:
        sample.remove_sample = True
    return 1.0


async def writes(args, sample: Sample):
    exec(sample.response, {"sample": sample, "Sample": Sample, "Status": Sample.Status})
    return 1.0


async def writes_into_group(args, samples: list[Sample]):
    for sample in samples[1:]:
        sample.loss_mask = [0] + [1] * (sample.response_length - 1)
    samples[0].remove_sample = True
    return [0.0] * len(samples)
