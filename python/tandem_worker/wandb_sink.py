"""Sink worker: metrics to Weights & Biases, through its own package."""

import os

# The package sends no reports of its own errors anywhere. Before it is imported, which reads this.
os.environ["WANDB_ERROR_REPORTING"] = "false"

from tandem_worker import tracker
from tandem_worker.protocol import MachineFault

ON_ROLLOUTS = ("rollout", "perf", "passrate", "fault")


def load_package():
    return tracker.load_package("wandb", "--use-wandb")


def settings_of(wandb, mode, host):
    """What the package has from its variables and files, under what the flags say. mode, host: "" says nothing."""
    if host:
        os.environ["WANDB_BASE_URL"] = host
    if mode:
        os.environ["WANDB_MODE"] = mode
    try:
        return wandb.setup().settings
    except Exception as error:  # its own errors have no base class that its versions share
        raise MachineFault(f"--use-wandb: {type(error).__name__}: {error}") from None


def is_online(settings):
    return settings.mode not in ("offline", "disabled", "dryrun")


def has_key(settings):
    """Whether there is one, not whether the server takes it: nothing is sent."""
    from wandb.sdk.lib.wbauth.wbnetrc import read_netrc_auth

    return bool(settings.api_key or settings.identity_token_file or read_netrc_auth(host=settings.base_url))


class Worker:
    def check(self, config):
        settings = settings_of(load_package(), config["mode"], config["host"])
        if is_online(settings) and not has_key(settings):
            raise MachineFault(
                "--use-wandb: no key of Weights & Biases; set WANDB_API_KEY, run "
                f"`{'.venv/bin/' if tracker.is_clone() else ''}wandb login` once, or give --wandb-mode offline"
            )

    def open(self, config, run_id, name, options):
        wandb, directory = load_package(), config["directory"]
        online = is_online(settings_of(wandb, config["mode"], config["host"]))
        settings = wandb.Settings(
            silent=True, console="off", init_timeout=45,
            # Nothing of the machine or its code goes along: options and metrics are what was asked for.
            host="", disable_git=True, disable_code=True, disable_job_creation=True, save_code=False,
            x_disable_meta=True, x_disable_stats=True, x_save_requirements=False,
        )  # fmt: skip
        try:
            os.makedirs(directory, exist_ok=True)
            self._run = wandb.init(
                project=config["project"] or None, entity=config["team"] or None, group=config["group"] or None, dir=directory,
                id=run_id, name=name, config=options, resume="allow" if online else None, settings=settings,
            )  # fmt: skip
        except OSError as error:
            raise MachineFault(f"{directory}: {error.strerror or error}") from None
        except Exception as error:
            raise tracker.one_fault(error) from None
        for kind in tracker.AXES:
            self._run.define_metric(f"{kind}/step", hidden=True)
        # A supervised run has no rollouts: all its records are of optimizer steps.
        axis = "rollout/step" if "n-samples-per-prompt" in options else "train/step"
        for prefix in ON_ROLLOUTS:
            self._run.define_metric(f"{prefix}/*", step_metric=axis)
        for kind in ("train", "eval"):
            self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")

    def write(self, step, values, wall_time_s):
        self._run.log({name: float(value) for name, value in values.items()})

    def finish(self):
        self._run.finish()
        # Waits until the package's own process has ended: it writes the last of its file behind finish().
        load_package().teardown()


if __name__ == "__main__":
    tracker.serve(Worker())
