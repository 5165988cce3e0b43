"""Prints what trackio's files in a directory hold of the project "sums", as its own package reads them, as JSON:
{"runs": [names], "lr": text of the option, "loss": [[step, train/loss], ...], "pass": text of eval/x-pass@4}.
"""

import json
import os
import sys

os.environ["TRACKIO_DIR"] = sys.argv[1]

from trackio.sqlite_storage import SQLiteStorage

runs = SQLiteStorage.get_runs("sums")
logs = SQLiteStorage.get_logs("sums", runs[0])
config = SQLiteStorage.get_run_config("sums", runs[0])
passed = [log["eval/x-pass@4"] for log in logs if "eval/x-pass@4" in log]
print(
    json.dumps(
        {
            "runs": runs,
            "lr": str(config["lr"]),
            "loss": [[log["step"], log["train/loss"]] for log in logs if "train/loss" in log],
            "pass": str(float(passed[0])),
        }
    )
)
