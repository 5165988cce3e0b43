"""Sink worker: metrics to MLflow, through its own package."""

import os
import re

# The package sends no usage of its own anywhere, and asks a server that is away no more often than the program waits.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")

from tandem_worker import tracker
from tandem_worker.protocol import MachineFault

DEFAULT_EXPERIMENT = "tandem"
ID_TAG = "tandem.run_id"  # MLflow draws its run's id itself, so a run is found by this tag
MAX_VALUE_CHARACTERS = 6000  # of a parameter
MAX_PARAMS, MAX_METRICS = 100, 1000  # in one call
AXIS_NAMES = {f"{kind}/step" for kind in tracker.AXES}  # MLflow has an axis of steps of its own


def load_package():
    return tracker.load_package("mlflow", "--use-mlflow")


def uri_of(config):
    uri = config["tracking_uri"] or os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri:
        raise MachineFault(
            "--use-mlflow: no place for its runs; give --mlflow-tracking-uri http://HOST:PORT of a server, or "
            "sqlite:///FILE"
        )
    return uri


def allowed_name(name):
    """MLflow refuses other characters: eval/x-pass@4 is eval/x-pass_at_4 there."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"), flags=re.ASCII)


def without_passwords(text):
    """Without what an address may have before its host: http://NAME:PASSWORD@HOST."""
    return re.sub(r"//[^/@\s]*@", "//", text)


class Worker:
    def check(self, config):
        load_package()
        uri = uri_of(config)
        if uri.startswith("sqlite:"):
            try:
                import alembic, sqlalchemy  # noqa: F401, E401
            except ImportError as error:
                raise MachineFault(f"--use-mlflow: {uri}: {error}; `pip install sqlalchemy alembic`") from None

    def open(self, config, run_id, name, options):
        load_package()
        uri = uri_of(config)
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._make_metric = Metric
        experiment = config["experiment_name"] or os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_EXPERIMENT
        try:
            self._client = MlflowClient(tracking_uri=uri)
            found = self._client.get_experiment_by_name(experiment)
            experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)
            runs = self._client.search_runs([experiment_id], f"tags.`{ID_TAG}` = '{run_id}'", max_results=1)
            if runs:
                self._run_id, known = runs[0].info.run_id, runs[0].data.params
                self._client.update_run(self._run_id, status="RUNNING")
            else:
                run = self._client.create_run(experiment_id, run_name=name, tags={ID_TAG: run_id})
                self._run_id, known = run.info.run_id, {}
            # Parameters cannot change there: those of a resumed run stay as they were when it began.
            params = [
                Param(allowed_name(key), str(value)[:MAX_VALUE_CHARACTERS])
                for key, value in options.items() if allowed_name(key) not in known
            ]  # fmt: skip
            for begin in range(0, len(params), MAX_PARAMS):
                self._client.log_batch(self._run_id, params=params[begin : begin + MAX_PARAMS])
        except Exception as error:
            raise MachineFault(without_passwords(f"--use-mlflow: {uri}: {tracker.one_fault(error)}")) from None

    def write(self, step, values, wall_time_s):
        time_ms = int(wall_time_s * 1000)
        metrics = [
            self._make_metric(allowed_name(name), float(value), time_ms, step)
            for name, value in values.items() if name not in AXIS_NAMES
        ]  # fmt: skip
        try:
            for begin in range(0, len(metrics), MAX_METRICS):
                self._client.log_batch(self._run_id, metrics=metrics[begin : begin + MAX_METRICS])
        except Exception as error:
            raise tracker.one_fault(error) from None

    def finish(self):
        try:
            self._client.set_terminated(self._run_id, "FINISHED")
        except Exception as error:
            raise tracker.one_fault(error) from None


if __name__ == "__main__":
    tracker.serve(Worker())
