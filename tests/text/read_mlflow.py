"""Prints what DIR/mlflow.db holds of the experiment "sums", as MLflow's own package reads it, as JSON: {"runs": [names],
"lr": text of the option, "loss": [[step, train/loss], ...], "pass": text of eval/x-pass_at_4}.
"""

import json
import os
import sys

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"

from mlflow.tracking import MlflowClient

client = MlflowClient(tracking_uri=f"sqlite:///{sys.argv[1]}/mlflow.db")
runs = client.search_runs([client.get_experiment_by_name("sums").experiment_id])
history = client.get_metric_history(runs[0].info.run_id, "train/loss")
passed = runs[0].data.metrics["eval/x-pass_at_4"]
print(
    json.dumps(
        {
            "runs": [run.info.run_name for run in runs],
            "lr": runs[0].data.params["lr"],
            "loss": [[metric.step, metric.value] for metric in sorted(history, key=lambda metric: metric.step)],
            # A database has no infinity: MLflow writes the largest number for it.
            "pass": "inf" if passed == sys.float_info.max else str(passed),
        }
    )
)
