"""Functions of --custom-advantage-path for tests/reward/advantage_function_test.cc."""

import os
import socket
import sys

calls = 0


def samples(groups):
    return [[sample.reward - group.samples[0].reward for sample in group.samples] for group in groups]


def turns(groups):
    return [[[10.0 * k for k, _ in enumerate(sample.turns)] for sample in group.samples] for group in groups]


def tokens(groups):
    return tuple([[float(token) for token in sample.tokens] for sample in group.samples] for group in groups)


def given(groups, state, args):
    """Fails where anything is not as the test has sent it."""
    first, second = groups
    assert args.lr == 0.5 and args.reward_weights == [1, 2], args
    assert first.prompt == "2+2" and first.label == "4" and first.metadata == {"level": 3} and first.prompt_index == 7
    assert second.prompt_index is None
    sample = first.samples[1]
    assert sample.rewards == {"exact": 1.0, "short": None} and list(sample.rewards) == ["exact", "short"]
    assert sample.reward == 0.5 and sample.advantage == [1.0, 2.0, 3.0] and sample.extras == {"acc": 1.0}
    assert sample.length == 3 and list(sample.tokens) == [4, 5, 6] and list(sample.loss_mask) == [1, 0, 1]
    assert list(sample.log_probs) == [-0.5, -0.25, -1.5] and sample.ref_log_probs is None
    assert sample.status == "truncated" and sample.removed and sample.index == 1
    assert [(piece.begin, piece.end, piece.text, piece.is_sampled) for piece in sample.pieces] == [
        (0, 1, "a", True), (1, 2, "b", False), (2, 3, "c", True)
    ]  # fmt: skip
    assert [turn.text for turn in sample.turns] == ["a", "c"]
    one = first.samples[0].turns
    assert [(turn.begin, turn.end, turn.text) for turn in one] == [(0, 3, "answer")]
    assert list(first.samples[0].ref_log_probs) == [-1.0, -1.0, -1.0]
    return [[1, None], [True, 2.5]]


def remembers(groups, state, **others):
    """Counts its calls in the state, and in the module, where each is the first."""
    global calls
    calls += 1
    state["calls"] = state.get("calls", 0) + 1
    state.setdefault("lengths", []).append(len(groups))
    return [[float(10 * state["calls"] + calls) for _ in group.samples] for group in groups]


def random_numbers(groups):
    import random

    import numpy  # nobody has it before

    return [[random.random() + numpy.random.random() for _ in group.samples] for group in groups]


def raises(groups):
    return 1 / 0


def leaves(groups):
    sys.exit(3)


def dies(groups):
    os._exit(5)


def hangs(groups):
    while True:
        pass


def too_few_groups(groups):
    return samples(groups)[1:]


def too_few_samples(groups):
    return [values[1:] for values in samples(groups)]


def too_few_tokens(groups):
    return [[[1.0] * (len(sample.tokens) + 1) for sample in group.samples] for group in groups]


def not_a_list(groups):
    return 1.0


def a_text(groups):
    return [["one" for _ in group.samples] for group in groups]


def not_a_number(groups):
    return [[float("nan") for _ in group.samples] for group in groups]


def too_large(groups):
    return [[10**400 for _ in group.samples] for group in groups]


def strange_state(groups, state):
    state["set"] = {1, 2}
    return samples(groups)


def large_state(groups, state):
    state["text"] = "x" * (9 << 20)
    return samples(groups)


def lies(groups):
    """Writes an answer of its own, and ends before the worker can."""
    message = b'{"id": 3, "result": {"state": 5}}'
    channel = socket.socket(fileno=3)
    channel.sendall(len(message).to_bytes(4, "little") + message)
    os._exit(0)


def reads_the_network(groups):
    socket.create_connection(("127.0.0.1", 9), timeout=1)


async def is_async(groups):
    return samples(groups)


def no_groups(state):
    return []


def wants_more(groups, samples):
    return []
