"""The Parquet worker: each type of column against the value that it stands for, any stretch of rows against the table,
and damaged files against the one promise that they are refused."""

import datetime
import decimal
import json
import pathlib
import random
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import pyarrow as pa  # noqa: E402
import pyarrow.parquet  # noqa: E402
from tandem_worker import parquet  # noqa: E402
from tandem_worker.protocol import UserFault  # noqa: E402

SEED = 15
UTC = datetime.timezone.utc
VERL = [
    {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "1 + 1? \u00e9"}], "ability": "math",
     "reward_model": {"style": "rule", "ground_truth": "2"}, "extra_info": {"index": 0, "split": "train"}},
    {"data_source": "openai/gsm8k", "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "2?"}],
     "ability": "math", "reward_model": {"style": "rule", "ground_truth": "4"},
     "extra_info": {"index": 1, "split": None}},
]  # fmt: skip

# (array, its values in JSON)
COLUMNS = [
    (pa.array([True, None]), [True, None]),
    (pa.array([-1, None], pa.int8()), [-1, None]),
    (pa.array([2**64 - 1, 0], pa.uint64()), [2**64 - 1, 0]),
    (pa.array([1.5, float("nan")]), [1.5, None]),
    (pa.array([0.5, None], pa.float32()), [0.5, None]),
    (pa.array([0.5, None], pa.float16()), [0.5, None]),
    (pa.array(["\u00e9\u2028\0", None]), ["\u00e9\u2028\0", None]),
    (pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
    (pa.array([b"text", None]), ["text", None]),
    (pa.array([b"four", None], pa.binary(4)), ["four", None]),
    (pa.nulls(2), [None, None]),
    (pa.array([decimal.Decimal("72.50"), None]), ["72.50", None]),
    (pa.array(["x", None]).dictionary_encode(), ["x", None]),
    (pa.array([1700000000123456789, None], pa.timestamp("ns")), ["2023-11-14T22:13:20.123456789", None]),
    (pa.array([-1, 0], pa.timestamp("ms")), ["1969-12-31T23:59:59.999", "1970-01-01T00:00:00"]),
    (pa.array([datetime.datetime(2020, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "Europe/Berlin")),
     ["2020-01-01T00:00:00+00:00", None]),
    (pa.array([datetime.date(2020, 2, 29), None]), ["2020-02-29", None]),
    (pa.array([[1, None], []], pa.list_(pa.int64())), [[1, None], []]),
    (pa.array([None, [[1], None]], pa.large_list(pa.list_(pa.int64()))), [None, [[1], None]]),
    (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), [[1, 2], None]),
    (pa.array([[("a", 1), ("b", None)], None], pa.map_(pa.string(), pa.int64())), [{"a": 1, "b": None}, None]),
    (pa.array([{"a": 1, "b": None}, None], pa.struct({"a": pa.int64(), "b": pa.string()})),
     [{"a": 1, "b": None}, None]),
    # All structs of a list share its members; those that one never had are null.
    (pa.array([[{"a": 1}, {"b": {"c": None}}], None],
              pa.list_(pa.struct({"a": pa.int64(), "b": pa.struct({"c": pa.int64()})}))),
     [[{"a": 1}, {"b": {}}], None]),
]  # fmt: skip

# (array, why its first row is a bad one)
BAD_VALUES = [
    (pa.array([float("-inf"), 1.0]), "column 'x' is infinite"),
    (pa.array([b"\xff", b"a"]), "column 'x' is no UTF-8 text"),
    (pa.array([[{"y": b"\xff"}], None]), "column 'x.y' is no UTF-8 text"),
    (pa.array([[("a", 1), ("a", 2)], None], pa.map_(pa.string(), pa.int64())), "a key that is there twice"),
    (pa.array([2**62, 0], pa.timestamp("ms")), "outside the years 1 to 9999"),
]
BAD_TYPES = [
    (pa.array([1], pa.duration("s")), "column 'x' is of type duration[s], which has no form in JSON"),
    (pa.array([1], pa.time64("us")), "column 'x' is of type time64[us]"),
    (pa.array([{"y": datetime.time(1)}]), "column 'x.y' is of type time64[us]"),
    (pa.array([[(1, 1)]], pa.map_(pa.int64(), pa.int64())), "column 'x' is a map whose keys are int64"),
]


class Parquet(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self._path = self._folder.name + "/data.parquet"
        self._worker = parquet.Worker()

    def write(self, table, **options):
        pyarrow.parquet.write_table(table, self._path, **options)

    def rows(self):
        num_rows = self._worker.open(self._path)["num_rows"]
        rows = []
        while len(rows) < num_rows:
            rows += self._worker.read(len(rows), num_rows)
        return rows

    def test_gives_the_columns_of_verl_as_they_are(self):
        self.write(pa.Table.from_pylist(VERL))
        self.assertEqual([json.loads(row) for row in self.rows()], VERL)

    def test_has_a_value_for_each_type(self):
        for array, values in COLUMNS:
            self.write(pa.table({"x": array}))
            self.assertEqual([json.loads(row) for row in self.rows()], [{"x": value} for value in values], array.type)

    def test_names_the_column_of_a_bad_value(self):
        for array, reason in BAD_VALUES:
            self.write(pa.table({"x": array}))
            bad, good = self.rows()
            self.assertIn(reason, bad["wrong"])
            self.assertIn('{"x":', good)

    def test_leaves_out_what_nobody_reads(self):
        """A column of images or of durations is no reason to refuse the file: it is null, and the answer says so."""
        for array, reason in [*BAD_VALUES, *BAD_TYPES]:
            self.write(pa.table({"x": array, "prompt": ["a"] * len(array)}))
            self._worker.open(self._path, ["prompt", "label"])
            first = self._worker.read(0, len(array))[0]
            self.assertIn(reason, first["left_out"])
            self.assertEqual(json.loads(first["json"])["prompt"], "a")
            self.assertNotIn("wrong", first)
        self.write(pa.table({"x": [{"a": b"\xff", "b": 1}, None], "prompt": ["a", "b"]}))
        self._worker.open(self._path, ["prompt"])
        bad, good = self._worker.read(0, 2)
        self.assertEqual(json.loads(bad["json"]), {"x": {"a": None, "b": 1}, "prompt": "a"})
        self.assertEqual(json.loads(good), {"x": None, "prompt": "b"})

    def test_refuses_what_is_read(self):
        for array, reason in BAD_TYPES:
            self.write(pa.table({"x": array}))
            for keys in (["x"], ["prompt", "x.y"]):
                with self.assertRaisesRegex(UserFault, "column 'x"):
                    self._worker.open(self._path, keys)
        self.write(pa.table({"x": [b"\xff"]}))
        self._worker.open(self._path, ["x"])
        self.assertIn("no UTF-8 text", self._worker.read(0, 1)[0]["wrong"])

    def test_refuses_types_without_a_form_in_json(self):
        for array, reason in BAD_TYPES:
            self.write(pa.table({"x": array}))
            with self.assertRaisesRegex(UserFault, ".") as caught:
                self._worker.open(self._path)
            self.assertIn(reason, str(caught.exception))
        self.write(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]))
        with self.assertRaisesRegex(UserFault, "two columns are called 'x'"):
            self._worker.open(self._path)

    def test_reads_any_stretch_of_rows(self):
        draw = random.Random(SEED)
        for _ in range(20):
            num_rows, group = draw.randrange(1, 1500), draw.randrange(1, 700)
            lists = [[{"a": i, "b": None}] * (i % 3) for i in range(num_rows)]
            self.write(pa.table({"i": list(range(num_rows)), "l": lists}), row_group_size=group)
            self.assertEqual(self._worker.open(self._path), {"num_rows": num_rows}, SEED)
            for _ in range(5):
                begin = draw.randrange(num_rows)
                end = draw.randrange(begin, num_rows) + 1
                rows = [json.loads(row) for row in self._worker.read(begin, end)]
                self.assertEqual([row["i"] for row in rows], list(range(begin, begin + len(rows))), SEED)
                self.assertEqual([row["l"] for row in rows], [[{"a": r["i"]}] * (r["i"] % 3) for r in rows], SEED)
                self.assertTrue(0 < len(rows) <= end - begin, SEED)

    def test_gives_a_few_rows_at_a_time(self):
        self.write(pa.table({"x": ["y" * (1 << 20)] * 20}))
        self._worker.open(self._path)
        self.assertEqual(len(self._worker.read(0, 20)), 4)
        self.assertEqual(len(self._worker.read(4, 6)), 2)

    def test_refuses_damaged_files_and_nothing_worse(self):
        self.write(pa.Table.from_pylist(VERL * 50), row_group_size=40)
        whole = pathlib.Path(self._path).read_bytes()
        draw, num_refused = random.Random(SEED), 0
        for _ in range(150):
            damaged = bytearray(whole)
            kind = draw.randrange(3)
            if kind == 0:
                damaged = damaged[: draw.randrange(4, len(whole))]
            for _ in range(draw.randrange(1, 5) if kind else 0):  # mostly in the footer, which says what there is
                at = draw.randrange(4, len(whole)) if kind == 1 else len(whole) - 9 - draw.randrange(len(whole) // 3)
                damaged[at] = draw.randrange(256)
            pathlib.Path(self._path).write_bytes(damaged)
            try:
                rows = self.rows()
                self.assertTrue(all(isinstance(row, (str, dict)) for row in rows))
            except UserFault as fault:
                num_refused += 1
                self.assertTrue(str(fault).startswith(self._path + ": "), fault)
                self.assertNotIn("\n", str(fault))
        self.assertGreater(num_refused, 50)


if __name__ == "__main__":
    unittest.main()
