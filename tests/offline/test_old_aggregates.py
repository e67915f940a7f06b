"""State of ``aggregate(...)`` from version 0.1.0 is continued for every function and every type.
``tests/data/roots/0.1-aggregates`` holds the first batches as version 0.1.0 wrote them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark import aggregate, count, first, last, max_, mean, min_, sum_
from riffle_spark.protocol.operator import operator_of
from tests.kit.folders import DATA
from tests.kit.process.aggregate_oracle import ORACLE, comparable
from tests.kit.roots.folder_query import FolderQuery, unpack_root

STORED_BATCHES = 3
KEYS = (*range(12), None)
"""Keys of the rows. Key 0 has only NULLs; odd keys have only NULLs in even batches."""
TYPES: dict[str, pa.DataType] = {
    "i8": pa.int8(), "i32": pa.int32(), "i64": pa.int64(), "f32": pa.float32(), "f64": pa.float64(),
    "money": pa.decimal128(10, 2), "wide": pa.decimal128(38, 18), "text": pa.string(), "octets": pa.binary(),
    "flag": pa.bool_(), "day": pa.date32(), "at": pa.timestamp("us", tz="UTC"), "span": pa.duration("us"),
}  # fmt: skip
NUMBERS = ("i8", "i32", "i64", "f32", "f64", "money", "wide")
_FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 0.5, -1.5, 3e30)
_VALUES: dict[str, Callable[[random.Random], Any]] = {
    "i8": lambda chance: chance.randint(-128, 127),
    "i32": lambda chance: chance.randint(-(2**31), 2**31 - 1),
    "i64": lambda chance: chance.randint(-(2**58), 2**58),
    "f32": lambda chance: chance.choice(_FLOATS),
    "f64": lambda chance: chance.choice(_FLOATS),
    "money": lambda chance: Decimal(chance.randint(-(10**9), 10**9)).scaleb(-2),
    "wide": lambda chance: Decimal(chance.randint(-(10**30), 10**30)).scaleb(-18),
    "text": lambda chance: chance.choice(["", "a", "B", "é", "zz", "\U0001f600", "\uffee"]),
    "octets": lambda chance: chance.choice([b"", b"\x00", b"\xff", b"a"]),
    "flag": lambda chance: chance.random() < 0.5,
    "day": lambda chance: date(1900 + chance.randint(0, 200), 1, 1),
    "at": lambda chance: datetime(1900 + chance.randint(0, 200), 1, 1, tzinfo=timezone.utc),
    "span": lambda chance: timedelta(microseconds=chance.randint(-(10**9), 10**9)),
}
_ROWS = pa.schema([("k", pa.int32()), *TYPES.items()])


def _computation() -> Any:
    """Return an aggregation of each column by every function that accepts its type, named function_column."""
    results: dict[str, Any] = {"rows": count()}
    for name in TYPES:
        picks = {
            "present": count(name), "least": min_(name), "greatest": max_(name), "first": first(name),
            "last": last(name), "first_present": first(name, ignore_nulls=True),
            "last_present": last(name, ignore_nulls=True),
        }  # fmt: skip
        sums = {"total": sum_(name), "average": mean(name)} if name in NUMBERS else {}
        results |= {f"{function}_{name}": each for function, each in (picks | sums).items()}
    return aggregate(**results)


def rows_of_batch(version: int) -> pa.Table:
    """Return the rows of a batch: five per key, with a third of their values NULL."""
    chance, rows = random.Random(version), []
    for key in list(KEYS) * 5:
        is_null = key == 0 or (key is not None and key % 2 == 1 and version % 2 == 0)
        values = {name: None if is_null or chance.random() < 0.3 else _VALUES[name](chance) for name in TYPES}
        rows.append({"k": key, **values})
    return pa.Table.from_pylist(rows, schema=_ROWS)


class AggregatesQuery(FolderQuery):
    """The query, started by a new driver on the root ``folder/state`` with copies in ``folder/local``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, operator_of("aggregates", ("k",), _computation(), (), _ROWS), "aggregates")

    def feed_next(self) -> pa.Table:
        """Run the next batch and return its results."""
        return self.feed(rows_of_batch(self.version))


def _expected(batches: int, names: list[str]) -> dict[object, dict[str, object]]:
    """Return plain Python's results over all rows of the first batches, named function_column."""
    rows = pa.concat_tables([rows_of_batch(version) for version in range(batches)]).to_pylist()
    results: dict[object, dict[str, object]] = {}
    for key in KEYS:
        own = [row for row in rows if row["k"] == key]
        results[key] = {"k": key}
        for name in names:
            function, _, column = name.rpartition("_") if name != "rows" else (name, "", "k")
            results[key][name] = comparable(ORACLE[function]([row[column] for row in own]))
    return results


@pytest.mark.parametrize("copies", ["there", "gone"])
def test_every_aggregate_continues_from_columns_of_version_0_1_0(tmp_path: Path, copies: str) -> None:
    """Every aggregate function continues from the columns that version 0.1.0 stored, for every type."""
    unpack_root(DATA / "roots" / "0.1-aggregates" / "state.tar.gz", tmp_path, copies=copies == "there")
    for batches in range(STORED_BATCHES + 1, STORED_BATCHES + 4):
        answers = AggregatesQuery(tmp_path).feed_next()
        names = [name for name in answers.column_names if name != "k"]
        assert len(names) > 100
        assert {row["k"]: comparable(row) for row in answers.to_pylist()} == _expected(batches, names)
