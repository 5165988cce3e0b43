"""Parquet worker: the rows of one file as the JSON objects that a JSONL file would hold, in order, a few at a time.

    column                           in JSON
    bool, int, float, text           the same; NaN is null, an infinity makes its row a bad one
    null                             null
    list, fixed-size list            list
    struct, map with text keys       object
    dictionary                       what it stands for
    timestamp, date                  ISO 8601 text; a time zone's values are UTC, as the file holds them
    decimal                          text, with all digits
    binary                           text, if it is UTF-8; otherwise the row is a bad one

Any other type is refused with the column's name. Columns that the program does not read itself refuse nothing: what has
no form in JSON is null there, and the answer says which column that is. Every struct of a list has all members that any of them has, null
where it had none (a message without tool_calls), so inside lists members that are null are left out.

A file comes from anywhere. What it declares is bounded by this process's memory limit, and by the sizes below.
"""

import contextlib
import datetime
import json
import os

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the others reserve gigabytes of the address space that is limited

import pyarrow  # noqa: E402
import pyarrow.parquet  # noqa: E402
import pyarrow.types as types  # noqa: E402

from tandem_worker import protocol  # noqa: E402
from tandem_worker.protocol import UserFault, one_line  # noqa: E402

ROWS_AT_ONCE = 256  # decoded together
MAX_REPLY_BYTES = 4 << 20  # of rows in one answer, beside the last of them
MAX_ROW_BYTES = 64 << 20
EPOCH = datetime.datetime(1970, 1, 1)
DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


class Wrong:
    """Stands where a value has no form in JSON: it makes its row a bad one, or is null in a column that nobody reads."""

    def __init__(self, reason):
        self.reason = reason


class WrongRow(Exception):
    pass


def refuse(value):
    raise WrongRow(value.reason)


def is_text(type):
    return types.is_string(type) or types.is_large_string(type) or types.is_string_view(type)


def is_binary(type):
    return (types.is_binary(type) or types.is_large_binary(type) or types.is_fixed_size_binary(type)
            or types.is_binary_view(type))  # fmt: skip


def is_list(type):
    return types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type)


def converter(type, name, in_list=False):
    """(array) -> one Python value for each of its elements, None for null. `name` is the column's, with dots."""
    if types.is_boolean(type) or types.is_integer(type):
        return lambda array: array.to_pylist()
    if types.is_null(type):
        return lambda array: [None] * len(array)
    if types.is_floating(type):
        return lambda array: [number(value, name) for value in array.to_pylist()]
    if is_text(type) or is_binary(type):
        return lambda array: texts(array, name)
    if types.is_decimal(type):
        return lambda array: [None if value is None else str(value) for value in array.to_pylist()]
    if types.is_timestamp(type):
        return lambda array: moments(array.cast(pyarrow.int64()), DIGITS[type.unit], type.tz is not None, name)
    if types.is_date(type):
        return lambda array: dates(array.cast(pyarrow.timestamp("s")).cast(pyarrow.int64()), name)
    if types.is_dictionary(type):
        convert = converter(type.value_type, name, in_list)
        return lambda array: convert(array.dictionary_decode())
    if types.is_struct(type):
        return struct_converter(type, name, in_list)
    if types.is_map(type):
        return map_converter(type, name, in_list)
    if is_list(type):
        convert = converter(type.value_type, name, in_list=True)
        return lambda array: lists(array, convert)
    raise UserFault(f"column {name!r} is of type {one_line(type, 80)}, which has no form in JSON; write the file "
                    "without it, or as text")


def converter_of_unread(type, name):
    """The same for a column that the program does not read: a type without a form in JSON has values without one."""
    try:
        return converter(type, name)
    except UserFault as fault:
        reason = str(fault)
        return lambda array: [Wrong(reason) if valid else None for valid in array.is_valid().to_pylist()]


def number(value, name):
    if value is None or value != value:
        return None
    value = float(value)
    return Wrong(f"column {name!r} is infinite; write a number, or null") if value - value != 0 else value


def texts(array, name):
    result = []
    for value in array.cast(large_binary(array.type)).to_pylist():
        try:
            result.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            result.append(Wrong(f"column {name!r} is no UTF-8 text (only text is supported); write the file without "
                                "it"))  # fmt: skip
    return result


def large_binary(type):
    """Parquet files may call bytes a text that are none, so a text is read as bytes and then decoded."""
    return type if is_binary(type) else pyarrow.binary() if types.is_string(type) else pyarrow.large_binary()


def moments(array, num_digits, is_utc, name):
    return [moment(value, num_digits, is_utc, name) for value in array.to_pylist()]


def moment(value, num_digits, is_utc, name):
    if value is None:
        return None
    seconds, fraction = divmod(value, 10**num_digits)
    try:
        text = (EPOCH + datetime.timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        return Wrong(f"column {name!r} is a time outside the years 1 to 9999; write it as text")
    digits = f"{fraction:0{num_digits}d}".rstrip("0") if fraction else ""
    return text + ("." + digits if digits else "") + ("+00:00" if is_utc else "")


def dates(array, name):
    found = moments(array, 0, False, name)
    return [value[:10] if isinstance(value, str) else value for value in found]


def members(type, name):
    names = [field.name for field in type]
    for member in names:
        if names.count(member) > 1:
            raise UserFault(f"two columns are called {name + member!r}; give them different names")
    return names


def struct_converter(type, name, in_list):
    names = members(type, name + ".")
    converts = [converter(field.type, f"{name}.{field.name}", in_list) for field in type]

    def convert(array):
        columns = [member(column) for member, column in zip(converts, array.flatten())]
        rows = zip(*columns) if columns else [()] * len(array)
        validity = array.is_valid().to_pylist()
        return [as_object(names, row, in_list) if valid else None for row, valid in zip(rows, validity)]

    return convert


def as_object(names, row, leave_out_null):
    return {name: value for name, value in zip(names, row) if not (leave_out_null and value is None)}


def map_converter(type, name, in_list):
    if not is_text(type.key_type):
        raise UserFault(f"column {name!r} is a map whose keys are {one_line(type.key_type, 80)}; write them as text")
    keys, items = converter(type.key_type, name), converter(type.item_type, name, in_list)

    def convert(array):
        entries = list(zip(keys(array.keys), items(array.items)))
        offsets = array.offsets.to_pylist()
        spans = zip(offsets, offsets[1:], array.is_valid().to_pylist())
        return [as_map(entries[begin:end], name) if valid else None for begin, end, valid in spans]

    return convert


def as_map(entries, name):
    result = dict(entries)
    if len(result) < len(entries) or not all(isinstance(key, str) for key in result):
        return Wrong(f"column {name!r} is a map with a key that is there twice, or is no text")
    return result


def lists(array, convert):
    elements = iter(convert(array.flatten()))
    result = []
    for length in lengths(array):
        result.append(None if length is None else [next(elements) for _ in range(length)])
    return result


def lengths(array):
    if types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return [size if valid else None for valid in array.is_valid().to_pylist()]
    return array.value_lengths().to_pylist()


@contextlib.contextmanager
def blaming(path):
    """What pyarrow raises over a file is the file's fault."""
    try:
        yield
    except UserFault as fault:
        raise UserFault(f"{path}: {fault}") from None
    except MemoryError:
        raise UserFault(f"{path}: reading it takes more memory than its reader has; write it with smaller row groups "
                        "or pages") from None
    except RecursionError:
        raise UserFault(f"{path}: its columns nest too deeply") from None
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise UserFault(f"{path}: cannot be read as Parquet: {reason}; is it whole? Take it again") from None
    except Exception as error:  # of a damaged file, anything
        raise UserFault(f"{path}: cannot be read as Parquet: {one_line(error)}; is it whole? Take it again") from None


class Worker:
    def open(self, path, keys=None):
        """`keys`: what the program reads of a row, "a.b" for the member b of the column a; None: all of it."""
        self._path = path
        with blaming(path):
            pyarrow.set_cpu_count(1)
            # A row group is read page by page and not whole.
            self._file = pyarrow.parquet.ParquetFile(
                path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True,
                arrow_extensions_enabled=False,
            )  # fmt: skip
            schema = self._file.schema_arrow
            self._names = members(schema, "")
            self._is_read = [keys is None or is_read(name, keys) for name in self._names]
            self._converters = [
                (converter if read else converter_of_unread)(field.type, field.name)
                for field, read in zip(schema, self._is_read)
            ]
            metadata = self._file.metadata
            self._group_rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            if min(self._group_rows, default=0) < 0 or sum(self._group_rows) != metadata.num_rows:
                raise UserFault("its row groups do not add up to its rows; take it again")
        self._next, self._rows = 0, self._rows_from(0)
        return {"num_rows": metadata.num_rows}

    def read(self, begin, end):
        """Returns the first ones of rows `begin` to `end` - 1, at least one: a text with the JSON object of each, or
        {"wrong": why it has none}, or {"json": the text, "left_out": what in columns that nobody reads is null}."""
        result, num_bytes = [], 0
        with blaming(self._path):
            if begin != self._next:
                self._rows = self._rows_from(begin)
            while begin + len(result) < end and num_bytes < MAX_REPLY_BYTES:
                row = next(self._rows, None)
                if row is None:
                    raise UserFault(f"ends after {begin + len(result)} rows, and says that it has "
                                    f"{sum(self._group_rows)}; take it again")
                result.append(row)
                num_bytes += len(row["json"]) if isinstance(row, dict) and "json" in row else len(row)
        self._next = begin + len(result)
        return result

    def _rows_from(self, begin):
        first_group, skip = 0, begin
        while first_group < len(self._group_rows) and skip >= self._group_rows[first_group]:
            skip -= self._group_rows[first_group]
            first_group += 1
        groups = list(range(first_group, len(self._group_rows)))
        batches = self._file.iter_batches(ROWS_AT_ONCE, row_groups=groups, use_threads=False) if groups else []
        for batch in batches:
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            yield from self._objects(batch.slice(skip))
            skip = 0

    def _objects(self, batch):
        columns = [convert(column) for convert, column in zip(self._converters, batch.columns)]
        rows = zip(*columns) if columns else [()] * batch.num_rows
        for row in rows:
            yield as_json(self._names, row, self._is_read)


def is_read(name, keys):
    return any(key == name or key.startswith(name + ".") for key in keys)


def as_json(names, row, is_read):
    left_out = []

    def leave_out(value):
        left_out.append(value.reason)

    members = []
    try:
        for name, value, read in zip(names, row, is_read):
            text = json.dumps(value, ensure_ascii=False, default=refuse if read else leave_out)
            members.append(f"{json.dumps(name, ensure_ascii=False)}: {text}")
    except WrongRow as wrong:
        return {"wrong": str(wrong)}
    text = "{" + ", ".join(members) + "}"
    num_bytes = len(text.encode("utf-8", "replace"))
    if num_bytes > MAX_ROW_BYTES:
        return {"wrong": f"the row is {num_bytes} bytes long as JSON, and {MAX_ROW_BYTES} are read"}
    return {"json": text, "left_out": left_out[0]} if left_out else text


def main():
    worker = Worker()
    protocol.serve({"open": worker.open, "read": worker.read})


if __name__ == "__main__":
    main()
