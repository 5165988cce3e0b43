"""How long new weights take to rollout workers on other hosts, and how many bytes leave the run's host: network namespaces of
this machine on a switch, each with a cable of a given rate (tc tbf).

    .venv/bin/python bench/chain_of_hosts.py [--programs NEW OLD] [--workers 1 2 4] [--rate 1gbit] [--live] [--out FILE]

One worker a host. --live: the workers sample while the run trains (--max-weight-staleness 2 --partial-rollout), and how long they
stand still for new weights is shown too. The limit is the weights once over a cable. Needs root and network namespaces. Absolute times depend on this
machine, on whose cores all hosts encrypt and decrypt; compare them within a row."""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile

import machine
import many_devices
import tiny_model

sys.path.insert(0, str(machine.ROOT / "tests" / "rollout_worker"))
import hosts as network  # noqa: E402

SHAPE = dict(tiny_model.CONFIG, hidden_size=1024, intermediate_size=3072, num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=8,
             max_window_layers=6)


def measure(program, folder, count, options):
    """Seconds of an update, seconds that samplers stand still for it (0 where they wait for the run anyway), and bytes of it."""
    name = f"{count}-{len(list(folder.iterdir()))}"
    with contextlib.ExitStack() as cleanup:
        hosts = network.Hosts(count + 1, options.rate)
        cleanup.callback(hosts.clean_up)
        words = [program, "train", "--hf-checkpoint", folder / "model", "--dtype", "bfloat16", "--prompt-data", folder / "model/prompts.jsonl",
                 "--custom-rm-path", f"{folder}/reward.py:reward", "--rollout-batch-size", "4", "--n-samples-per-prompt", "2",
                 *(["--max-weight-staleness", "2", "--partial-rollout", "--rollout-max-response-len", "48"] if options.live else
                   ["--rollout-max-response-len", "4"]), "--num-rollout", str(options.rollouts), "--lr", "1e-6", "--no-use-tensorboard",
                 "--sample-dump-interval", "0", "--num-threads", "1", "--save", folder / name, *(["--trust-network"] if options.trust else [])]
        secret = {} if options.trust else {"TANDEM_SECRET_FILE": str(folder / "secret")}
        run = hosts.start(0, folder / f"{name}.log", [*words, "--rollout-num-gpus", "0", "--rollout-listen", "29600", "--network-interface", "eth0"],
                          **secret)
        for i in range(count):
            hosts.start(1 + i, folder / f"{name}-{i}.log", [*words, "--rollout-num-gpus", "0", "--rollout-join-address", "10.79.0.1:29600"], **secret)
        if run.wait(timeout=600) != 0:
            sys.exit(run.log.read_text()[-2000:])
        sent = hosts.sent_bytes(0)
    records = [r for r in many_devices.records_of(folder / name) if "perf/update_weights_time" in r][2:]
    median = [statistics.median(r.get(f"perf/{name}", 0.0) for r in records) for name in ("update_weights_time", "weights_pause_time")]
    return *median, sent / (options.rollouts + count)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", default=[machine.tandem("release")])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--trust", action="store_true", help="without TLS")
    parser.add_argument("--out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = pathlib.Path(name)
        tiny_model.make(folder / "model", "bfloat16", SHAPE)
        (folder / "secret").write_text("a secret of the bench of hosts, 0123456789abcdef")
        os.chmod(folder / "secret", 0o600)
        (folder / "reward.py").write_text("def reward(prompts, completions, **kwargs):\n    return [float(i % 2) for i in range(len(completions))]\n")
        size = (folder / "model/model.safetensors").stat().st_size
        lines = ["| workers, one a host | program | s an update | s that samplers stand still | times the weights leave the run's host |",
                 "|---|---|---|---|---|"]
        for count in options.workers:
            for program in options.programs:
                seconds, pause, sent = measure(program, folder, count, options)
                lines.append(f"| {count} | {pathlib.Path(program).name} | {seconds:.2f} | {pause:.2f} | {sent / size:.2f} |")
                print(lines[-1], file=sys.stderr, flush=True)
    text = "\n".join(["## Weights to rollout workers of other hosts", "", json.dumps(machine.describe("release")), "",
                      f"`bench/chain_of_hosts.py`: {size / 1e6:.0f} MB of weights, cables of {options.rate}, "
                      f"{'no TLS' if options.trust else 'TLS'}, samplers {'work while the run trains' if options.live else 'wait for the run'}; the first version of each worker is among the bytes.", "", *lines, ""])
    print(text)
    if options.out:
        pathlib.Path(options.out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
