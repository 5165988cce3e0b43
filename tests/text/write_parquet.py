"""Writes the JSON lines of one file as Parquet, as data sets are published: columns from the keys, lists and structs.

    python write_parquet.py LINES.jsonl OUT.parquet [ROWS_PER_GROUP]
"""

import json
import sys

import pyarrow
import pyarrow.parquet

with open(sys.argv[1], encoding="utf-8") as lines:
    table = pyarrow.Table.from_pylist([json.loads(line) for line in lines])
rows_per_group = int(sys.argv[3]) if len(sys.argv) > 3 else None
pyarrow.parquet.write_table(table, sys.argv[2], row_group_size=rows_per_group)
