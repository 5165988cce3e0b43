"""How long a step of each mode of bench/asynchrony.py should take on several GPUs, simulated before it is measured: a decode step takes a
base time, a time for each sequence and one for each token of its context, and training takes a time for each token.

    python3 bench/predicted_modes.py [--card H100|H200] [--devices 2] [--batch 16] [--samples 8] [--mean 1000] [--response 8000] [--modes ...]

Lengths are drawn as tiny_model.make_of_two_lengths makes them: by prompt of one of two kinds, geometric within a kind. Not simulated:
graders, chunked prefill, changes of phase, the first calls of a kernel."""

import argparse
import dataclasses
import math
import random

QUANTUM = 16  # tokens that all sequences of an engine decode between two looks


@dataclasses.dataclass
class Card:
    """The speed of Qwen3-4B's shape in bfloat16: seconds of a decode step (bench/results/gpu_h100.md, gpu_speed.md), tokens a second of prefill and of
    training (many_devices.md; with all layers run twice, large_job.md)."""

    base: float
    a_sequence: float
    a_token: float
    prefill: float
    train: float
    weights: float  # seconds to copy new weights to another GPU


CARDS = {"H200": Card(3.15e-3, 17e-6, 36e-9, 45e3, 23.4e3, 0.028), "H100": Card(3.9e-3, 17e-6, 50e-9, 45e3, 18e3, 0.028)}


class Engine:
    """Decodes all its sequences in lockstep; a sequence is [key, tokens left, context]."""

    def __init__(self, card, at_once):
        self.card, self.at_once, self.running, self.waiting = card, at_once, [], []

    def add(self, key, left, context, again=0):
        self.waiting.append([key, left, context, again])

    def busy(self):
        return bool(self.running or self.waiting)

    def advance(self):
        """Returns the seconds that a few tokens of all take, and the sequences that have ended."""
        seconds = 0.0
        while self.waiting and len(self.running) < self.at_once:
            key, left, context, again = self.waiting.pop(0)
            seconds += (again or 0) / self.card.prefill
            self.running.append([key, left, context])
        tokens = max(min(QUANTUM, min(s[1] for s in self.running)), 1)
        contexts = sum(s[2] for s in self.running)
        seconds += tokens * (self.card.base + len(self.running) * self.card.a_sequence + contexts * self.card.a_token)
        for s in self.running:
            s[1] -= tokens
            s[2] += tokens
        ended = [s for s in self.running if s[1] <= 0]
        self.running = [s for s in self.running if s[1] > 0]
        return seconds, tokens * (len(self.running) + len(ended)), ended


class Draws:
    """The lengths of the samples of groups, by number."""

    def __init__(self, options, seed=1):
        self.random, self.options, self.groups = random.Random(seed), options, []

    def __getitem__(self, group):
        while len(self.groups) <= group:
            mean = (3.0 if self.random.randrange(25) < 3 else 0.73) * self.options.mean
            self.groups.append([min(1 + int(math.log(1.0 - self.random.random()) / math.log(1.0 - 1.0 / mean)), self.options.response)
                                for _ in range(self.options.samples)])
        return self.groups[group]


def rollout_seconds(groups, devices, card, options):
    """All samples of some groups, spread over the devices, from nothing to the last one's end."""
    engines = [Engine(card, options.at_once) for _ in range(devices)]
    for i, length in enumerate(length for group in groups for length in group):
        engines[i % devices].add(i, length, options.prompt)
    ends = []
    for engine in engines:
        seconds = 0.0
        while engine.busy():
            seconds += engine.advance()[0]
        ends.append(seconds)
    return max(ends)


def tokens_of(groups, options):
    return sum(map(sum, groups)) + len(groups) * options.samples * options.prompt


def in_turns(card, options, samplers, trainers, one_step_off=False):
    draws, steps = Draws(options), []
    for step in range(options.steps):
        groups = [draws[step * options.batch + i] for i in range(options.batch)]
        train = tokens_of(groups, options) / (card.train * trainers)
        sample = rollout_seconds(groups, samplers, card, options)
        steps.append(max(sample, train) + card.weights if one_step_off else sample + train)
    return steps, 1.0 if one_step_off else 0.0


def phases(card, options, devices, budget, in_flight):
    draws, live, ready, steps, ages, begun, seconds, version = Draws(options), {}, [], [], [], 0, 0.0, 0
    while version < options.steps:
        while len(live) + len(ready) < in_flight:
            live[begun] = ([*draws[begun]], [0] * options.samples, version)
            begun += 1
        engines = [Engine(card, options.at_once) for _ in range(devices)]
        pieces = [(group, i) for group, (left, _, _) in live.items() for i in range(options.samples) if left[i] > 0]
        for k, (group, i) in enumerate(pieces):
            left, done, _ = live[group]
            engines[k % devices].add(None, min(left[i], budget), options.prompt + done[i], done[i] and done[i] + options.prompt)
            done[i] += min(left[i], budget)
            left[i] -= min(left[i], budget)
        ends = []
        for engine in engines:
            end = 0.0
            while engine.busy():
                end += engine.advance()[0]
            ends.append(end)
        seconds += max(ends)
        for group in [g for g, (left, _, _) in live.items() if not any(left)]:
            ready.append((group, live.pop(group)[2]))
        ready.sort()
        if len(ready) >= options.batch:
            taken, ready = ready[: options.batch], ready[options.batch :]
            seconds += tokens_of([draws[g] for g, _ in taken], options) / (card.train * devices)
            ages += [version - began for _, began in taken]
            version += 1
            steps.append(seconds)
            seconds = 0.0
    return steps, sum(ages[len(ages) // 3 :]) / len(ages[len(ages) // 3 :])


def asynchronous(card, options, bound, in_flight):
    """One device samples and one trains. A group begins while fewer than `in_flight` are, and fewer have begun than can be trained on in time;
    a rollout takes first those that would be too old in the next one, then those that ended first."""
    draws, engine = Draws(options), Engine(card, options.at_once)
    left, began, done, steps, ages = {}, {}, [], [], []
    now, begun, version, trained_at, last = 0.0, 0, 0, None, 0.0
    training, progress = None, {}

    def begin():
        nonlocal begun
        while len(began) < in_flight and begun < (version + bound + 1) * options.batch:
            left[begun], began[begun] = options.samples, version
            for i, length in enumerate(draws[begun]):
                engine.add((begun, i), length, options.prompt)
            begun += 1

    def take():
        due = sorted(began, key=lambda g: (began[g], g))
        must = max((sum(began[g] + bound <= version + j for g in due) - j * options.batch for j in range(bound + 1)), default=0)
        oldest = due[: max(must, 0)]
        if any(left[g] for g in oldest) or len(done) < options.batch:
            return None
        return (oldest + [g for g in done if g not in oldest])[: options.batch]

    begin()
    while len(steps) < options.steps:
        if training is None:
            taken = take()
            if taken is not None:
                training = now + tokens_of([draws[g] for g in taken], options) / card.train
                ages += [version - began[g] for g in taken]
                for group in taken:
                    done.remove(group)
                    del began[group]
                begin()
        if training is not None and (now >= training or not engine.busy()):
            now, training = max(now, training) + card.weights, None
            version += 1
            steps.append(now - last)
            last = now
            for s in engine.running:  # prefilled again with the new weights
                now += s[2] / card.prefill
            begin()
            continue
        if not engine.busy():
            raise RuntimeError("nothing is left to sample")
        seconds, _, ended = engine.advance()
        now += seconds
        for (group, _), _, _ in ended:
            left[group] -= 1
            if left[group] == 0:
                done.append(group)
    return steps, sum(ages[len(ages) // 3 :]) / len(ages[len(ages) // 3 :])


def predict(mode, card, options):
    """Seconds of each step and the mean staleness of groups."""
    name, *numbers = mode.split(":")
    numbers = [int(n) for n in numbers]
    if name == "synchronous":
        return in_turns(card, options, options.devices, options.devices)
    if name == "phases":
        return phases(card, options, options.devices, numbers[0] if numbers else options.response // 4, numbers[1] if len(numbers) > 1 else 2 * options.batch)
    if name == "apart":
        return in_turns(card, options, options.devices - 1, 1)
    if name == "one-step-off":
        return in_turns(card, options, options.devices - 1, 1, one_step_off=True)
    return asynchronous(card, options, numbers[0] if numbers else 2, numbers[1] if len(numbers) > 1 else 2 * options.batch)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", default="H200", choices=list(CARDS))
    parser.add_argument("--modes", nargs="+", default=["synchronous", "phases:2000:32", "apart", "one-step-off", "asynchronous:2:32", "asynchronous:4:48"])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--mean", type=int, default=1000)
    parser.add_argument("--response", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--at-once", type=int, default=256)
    parser.add_argument("--skip", type=int, default=4)
    options = parser.parse_args()
    for mode in options.modes:
        steps, staleness = predict(mode, CARDS[options.card], options)
        counted = steps[options.skip :]
        print(f"{options.card}, {mode}: {sum(counted) / len(counted):.1f} s a step, staleness {staleness:.2f}; first steps "
              + " ".join(f"{s:.0f}" for s in steps[: options.skip]))


if __name__ == "__main__":
    main()
