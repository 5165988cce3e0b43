"""Sink worker: metrics to trackio, through its own package."""

import os
import warnings

from tandem_worker import tracker
from tandem_worker.protocol import MachineFault

DEFAULT_PROJECT = "tandem"


def place(config):
    """Says where the package's files are, and whether it may ask the network. Call it before the package is imported."""
    if config["directory"]:
        os.environ["TRACKIO_DIR"] = os.path.abspath(config["directory"])
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    if not is_remote(config):
        os.environ["HF_HUB_OFFLINE"] = "1"  # without a Space it would ask the Hub for the user's name


def is_remote(config):
    return bool(config["space_id"] or os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL"))


def has_token():
    from huggingface_hub import get_token

    return bool(get_token())


class Worker:
    def check(self, config):
        place(config)
        tracker.load_package("trackio", "--use-trackio")
        if (config["space_id"] or os.environ.get("TRACKIO_SPACE_ID")) and not has_token():
            raise MachineFault(
                "--use-trackio: no token for the Hugging Face Space; set HF_TOKEN, run `hf auth login` once, or leave "
                "--trackio-space-id out"
            )

    def open(self, config, run_id, name, options):
        # name holds the id: a run is found by its name in the project.
        place(config)
        trackio = tracker.load_package("trackio", "--use-trackio")
        self._warnings = []
        warnings.simplefilter("always")
        # The package warns of what it could not keep, and goes on.
        warnings.showwarning = lambda message, *_: self._warnings.append(str(message))
        try:
            if config["directory"]:
                os.makedirs(config["directory"], exist_ok=True)
            self._run = trackio.init(
                project=config["project"] or DEFAULT_PROJECT, name=name, space_id=config["space_id"] or None,
                config=options, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip
        except Exception as error:
            raise tracker.one_fault(error) from None
        self._fail_if_warned()

    def write(self, step, values, wall_time_s):
        self._run.log({name: float(value) for name, value in values.items()}, step=step)
        if self._run._is_local:
            # A thread of the package would write it half a second later, and nobody would hear whether it could.
            with self._run._client_lock:
                self._run._flush_queues_inline()
        self._fail_if_warned()

    def finish(self):
        self._run.finish()
        self._fail_if_warned()

    def _fail_if_warned(self):
        if self._warnings:
            raise MachineFault("; ".join(self._warnings))


if __name__ == "__main__":
    tracker.serve(Worker())
