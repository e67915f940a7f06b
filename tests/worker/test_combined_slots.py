"""A slot that receives combined rows reports how many rows they stand for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark.messages.slot_orders import LateRule
from riffle_spark.process.blocks.combining import ROWS as ROW_COUNT
from riffle_spark.process.blocks.combining import decoded_schema
from riffle_spark.process.merging.aggregates import Aggregates, aggregate, count, max_, min_
from tests.kit.worker.slot_member import ROWS, Member, rows_of

TOTALS = aggregate(rows=count(), values=count("v"), most=max_("v"), least=min_("v"))


def combining(
    folder: Path, compute: Aggregates, key: str = "k", schema: pa.Schema = ROWS, **changes: Any
) -> tuple[Member, pa.Schema]:
    """Return a member whose slot receives combined rows, and the schema of these rows."""
    combined = compute.combine([key], schema)
    assert combined is not None
    rows = decoded_schema(pa.schema([schema.field(key)]), combined.columns)
    names = tuple(column.name for column in combined.columns)
    member = Member(folder, compute, schema, (key,), **changes)
    member.changes |= {"is_combined": True, "combined": names, "rows": rows}
    member.operator = replace(member.operator, compute=combined.compute)
    return member, rows


def partly_combined(schema: pa.Schema, *rows: dict[str, object]) -> pa.Table:
    """Return a table of combined rows."""
    return pa.Table.from_pylist([{ROW_COUNT: row["rows"], **row} for row in rows], schema)


def test_a_receipt_counts_rows_before_and_after_combining(tmp_path: Path) -> None:
    """``rows`` counts the rows before combining, ``combined_rows`` the received rows. A key may have several combined
    rows.
    """
    member, schema = combining(tmp_path, TOTALS)
    names = [name for name in schema.names if name not in ("k", ROW_COUNT)]
    assert names == ["v", "v max", "v min"]
    rows = partly_combined(
        schema,
        {"k": "a", "rows": 5, "v": 4, "v max": 9, "v min": 1},
        {"k": "a", "rows": 3, "v": 0, "v max": None, "v min": None},
        {"k": "b", "rows": 2, "v": 2, "v max": 7, "v min": -7},
    )
    output, receipt = member.answer(rows)
    assert sorted(map(str, output.to_pylist())) == sorted(
        map(
            str,
            [
                {"k": "a", "rows": 8, "values": 4, "most": 9, "least": 1},
                {"k": "b", "rows": 2, "values": 2, "most": 7, "least": -7},
            ],
        )
    )
    assert (receipt.rows, receipt.combined_rows, receipt.keys) == (10, 3, 2)


def test_a_receipt_has_the_number_of_rows_that_would_remain(tmp_path: Path) -> None:
    """A receipt has the number of rows that would remain: at most one per key and input partition. Without the number
    of partitions it is 0.
    """
    rows = rows_of(*(("a", number, 0) for number in range(7)), ("b", 1, 0), ("c", 1, 0), ("c", 2, 0))
    for partitions, expected in ((1, 3), (2, 5), (4, 7), (100, 10), (0, 0)):
        member = Member(tmp_path / str(partitions), TOTALS, input_partitions=partitions)
        _, receipt = member.answer(rows)
        assert (receipt.rows, receipt.combined_rows) == (10, expected)


@pytest.mark.parametrize("is_combined", [True, False])
def test_late_keys_are_counted_once(tmp_path: Path, *, is_combined: bool) -> None:
    """A late key counts once, also if it has rows in several partitions. Late rows count as received, but not as
    remaining.
    """
    timestamp_type = pa.timestamp("us", "UTC")
    changes: dict[str, Any] = {"late": LateRule("end", by="keys"), "late_watermark_ms": 1_000}
    schema = pa.schema([("end", timestamp_type), ("v", pa.int64())])
    compute = aggregate(rows=count(), most=max_("v"))
    late, early = 1_000_000, 1_000_001
    if is_combined:
        member, rows = combining(tmp_path, compute, "end", schema, **changes)
        table = pa.table([[late, late, early, None], [3, 4, 1, 5], [2, 2, 1, 2]], schema=rows)
    else:
        member = Member(tmp_path, compute, schema, ("end",), input_partitions=1, **changes)
        table = pa.table([[late] * 4 + [early] + [None] * 2, [3, 1, 4, 1, 1, 5, 2]], schema=schema)
    output, receipt = member.answer(table)
    assert sorted((row["rows"], row["most"]) for row in output.to_pylist()) == [(1, 1), (2, 5)]
    assert (receipt.rows, receipt.late_rows, receipt.combined_rows) == (7, 1, 2)
