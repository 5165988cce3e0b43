"""Makes Tandem's JSON lines of a published data set of mathematics: one file from disk, JSONL or Parquet.

    python convert.py PUBLISHED OUT.jsonl ["instruction that is added to each question"]

published columns                                        become
question, answer ("... #### 72")                         a user's message, the label "72"            (GSM8K)
prompt (messages), reward_model.ground_truth             the messages, the label; data_source and    (DAPO-Math-17k,
                                                         extra_info stay beside them                  verl's scripts)

A row that is there before, question and label alike, is left out: DAPO-Math-17k as published has each problem a hundred
times. Downloads nothing.
"""

import json
import sys


class Unusable(Exception):
    """The file or a row of it; says which, and what to do."""


def read_rows(path):
    """(row number from 1, object) of each row."""
    with open(path, "rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    if is_parquet:
        import pyarrow.parquet

        number = 0
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1024):
            for row in batch.to_pylist():
                number += 1
                yield number, row
        return
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    raise Unusable(f"{path}:{number}: not JSON: {error}") from None


def gsm8k(row):
    """Its answers reason first and end in "#### 1,234"."""
    _, mark, label = row["answer"].rpartition("####")
    label = label.strip().replace(",", "").removeprefix("$")
    if not mark or not label:
        raise Unusable('the answer does not end in "#### NUMBER"')
    return {"prompt": [{"role": "user", "content": row["question"]}], "label": label}


def verl(row):
    kept = {key: row[key] for key in ("data_source", "extra_info") if row.get(key) is not None}
    return {"prompt": row["prompt"], "label": row["reward_model"]["ground_truth"], **kept}


def convert(row, instruction):
    if isinstance(row.get("question"), str) and isinstance(row.get("answer"), str):
        line = gsm8k(row)
    elif isinstance(row.get("prompt"), list) and isinstance(row.get("reward_model"), dict):
        line = verl(row)
    else:
        raise Unusable(f"the columns {', '.join(row)} are neither question and answer nor prompt and reward_model")
    if instruction:
        line["prompt"][-1]["content"] += "\n" + instruction
    return line


def main():
    if len(sys.argv) not in (3, 4):
        raise Unusable("give PUBLISHED OUT.jsonl [INSTRUCTION]")
    published, out = sys.argv[1:3]
    instruction = sys.argv[3] if len(sys.argv) == 4 else ""
    lines, num_rows = {}, 0
    for number, row in read_rows(published):
        num_rows += 1
        try:
            line = convert(row, instruction)
            content = json.dumps([line["prompt"], line["label"]], sort_keys=True)
        except Unusable as error:
            raise Unusable(f"{published}:{number}: {error}") from None
        except (AttributeError, KeyError, TypeError) as error:
            raise Unusable(f"{published}:{number}: {type(error).__name__} {error}; is it the published form?") from None
        lines.setdefault(content, json.dumps(line, ensure_ascii=False))
    if num_rows == 0:
        raise Unusable(f"{published}: has no rows")
    with open(out, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines.values())
    print(f"{out}: {len(lines)} problems of {num_rows} rows")


if __name__ == "__main__":
    try:
        main()
    except (Unusable, OSError, ValueError, ImportError) as error:
        sys.exit(f"convert.py: {error}")
