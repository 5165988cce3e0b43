"""Sink worker: metrics to Weights & Biases, through its own package."""

import os

# The package sends no reports of its own errors anywhere. Before it is imported, which reads this.
os.environ["WANDB_ERROR_REPORTING"] = "false"

from tandem_worker import protocol
from tandem_worker.protocol import MachineFault

AXES = ("rollout", "train", "eval")  # each record has KIND/step
ON_ROLLOUTS = ("rollout", "perf", "passrate", "fault")


def is_clone():
    """Whether this file is that of a clone, and not of an installed wheel."""
    return os.path.isfile(os.path.join(os.path.dirname(__file__), "../../tools/setup.sh"))


def remedy():
    return "`tools/setup.sh wandb`" if is_clone() else "`pip install 'tandem[wandb]'`"


def load_package():
    try:
        import wandb
    except ImportError as error:
        raise MachineFault(
            f"--use-wandb: the package wandb cannot be imported ({error}); {remedy()} installs it"
        ) from None
    return wandb


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
    def check(self, mode, host):
        settings = settings_of(load_package(), mode, host)
        if is_online(settings) and not has_key(settings):
            raise MachineFault(
                "--use-wandb: no key of Weights & Biases; set WANDB_API_KEY, run "
                f"`{'.venv/bin/' if is_clone() else ''}wandb login` once, or give --wandb-mode offline"
            )

    def open(self, mode, project, team, group, host, run_id, directory, name, options):
        wandb = load_package()
        online = is_online(settings_of(wandb, mode, host))
        settings = wandb.Settings(
            silent=True, console="off", init_timeout=45,
            # Nothing of the machine or its code goes along: options and metrics are what was asked for.
            host="", disable_git=True, disable_code=True, disable_job_creation=True, save_code=False,
            x_disable_meta=True, x_disable_stats=True, x_save_requirements=False,
        )  # fmt: skip
        try:
            os.makedirs(directory, exist_ok=True)
            self._run = wandb.init(
                project=project or None, entity=team or None, group=group or None, dir=directory,
                id=run_id, name=name, config=options, resume="allow" if online else None, settings=settings,
            )  # fmt: skip
        except OSError as error:
            raise MachineFault(f"{directory}: {error.strerror or error}") from None
        except Exception as error:  # its own errors have no base class that its versions share
            raise MachineFault(f"{type(error).__name__}: {error}") from None
        for kind in AXES:
            self._run.define_metric(f"{kind}/step", hidden=True)
        # A supervised run has no rollouts: all its records are of optimizer steps.
        axis = "rollout/step" if "n-samples-per-prompt" in options else "train/step"
        for prefix in ON_ROLLOUTS:
            self._run.define_metric(f"{prefix}/*", step_metric=axis)
        for kind in ("train", "eval"):
            self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")

    def write(self, step, values, wall_time_s):
        """values: name -> number, or one of the strings "nan", "inf", "-inf"; KIND/step among them."""
        self._run.log({name: float(value) for name, value in values.items()})

    def finish(self):
        self._run.finish()
        # Waits until the package's own process has ended: it writes the last of its file behind finish().
        load_package().teardown()


def main():
    worker = Worker()
    protocol.serve({"check": worker.check, "open": worker.open, "write": worker.write, "finish": worker.finish})


if __name__ == "__main__":
    main()
