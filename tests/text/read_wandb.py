"""Prints what the offline files of Weights & Biases in a directory hold, as its own package reads them, as JSON:
{"id", "name", "project", "group", "host", "config": {...}, "history": [{name: text of the value}, ...], "runs": files}.
"""

import glob
import json
import sys

from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore

found = {"history": [], "config": {}, "runs": 0, "axes": {}}
for path in sorted(glob.glob(sys.argv[1] + "/wandb/offline-run-*/run-*.wandb")):
    found["runs"] += 1
    store = DataStore()
    store.open_for_scan(path)
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            found.update(id=run.run_id, name=run.display_name, project=run.project, group=run.run_group, host=run.host)
            found["config"].update({item.key: json.loads(item.value_json) for item in run.config.update})
        elif kind == "metric" and record.metric.glob_name:
            found["axes"][record.metric.glob_name] = record.metric.step_metric
        elif kind == "history":
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            if values := {name: value for name, value in items.items() if not name.startswith("_")}:
                found["history"].append(values)
found["config"].pop("_wandb", None)
print(json.dumps(found))
