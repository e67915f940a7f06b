"""Running aggregates against a plain Python oracle."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.process.merging.aggregates import aggregate, count, first, last, max_, mean, min_, sum_
from tests.kit.process.aggregate_oracle import ORACLE, comparable
from tests.kit.process.process_calls import Keyed, rows_of

UTC_MICROS = pa.timestamp("us", tz="UTC")
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**58), 2**58),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(10, 2): st.decimals(-(10**8) + 1, 10**8 - 1, places=2),
    pa.decimal128(38, 18): st.decimals(-(10**15), 10**15, places=18),
    pa.decimal128(38, 0): st.integers(-(10**32), 10**32).map(Decimal),
    pa.string(): st.text(max_size=4),
    pa.large_string(): st.text(max_size=4),
    pa.binary(): st.binary(max_size=4),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
    pa.timestamp("us"): st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)),
    UTC_MICROS: st.datetimes(datetime(1800, 1, 2), datetime(9000, 1, 1), timezones=st.just(timezone.utc)),
    pa.duration("us"): st.timedeltas(timedelta(-9), timedelta(9)),
}
NUMBERS = [
    type for type in VALUES if pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)
]
PICKS = aggregate(
    rows=count(), present=count("v"), least=min_("v"), greatest=max_("v"), first=first("v"), last=last("v"),
    first_present=first("v", ignore_nulls=True), last_present=last("v", ignore_nulls=True),
)  # fmt: skip
TOTALS = aggregate(total=sum_("v"), average=mean("v"))


def _expected(rows: pa.Table, names: list[str]) -> dict[int, dict[str, object]]:
    by_key: dict[int, list[Any]] = {}
    for key, value in zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True):
        by_key.setdefault(key, []).append(value)
    return {
        key: {"k": key} | {name: comparable(ORACLE[name](values)) for name in names} for key, values in by_key.items()
    }


@st.composite
def _batches(draw: st.DrawFn, type: pa.DataType) -> list[pa.Table]:
    """Draw rows of few keys, cut into batches that are slices, some of several chunks."""
    pairs = draw(st.lists(st.tuples(st.integers(0, 3), st.none() | VALUES[type]), min_size=1, max_size=30))
    keys, values = zip(*pairs, strict=True)
    rows = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(values, type)})
    cuts = sorted(draw(st.lists(st.integers(0, len(pairs)), max_size=4)))
    pieces = [rows.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(pairs)], strict=True)]
    return [pa.concat_tables([piece.slice(0, 1), piece.slice(1)]) if draw(st.booleans()) else piece for piece in pieces]


def _check(compute: Any, batches: list[pa.Table]) -> None:
    rows, names = pa.concat_tables(batches), [name for name, _ in compute.columns]
    cut, whole = Keyed(compute, rows.schema), Keyed(compute, rows.schema)
    emitted: dict[Any, object] = {}
    for batch in batches:
        output = cut.feed(batch)
        assert {row["k"] for row in output} == set(batch["k"].to_pylist())
        emitted.update({row["k"]: comparable(row) for row in output})
    assert emitted == _expected(rows, names)
    whole.feed(rows)
    assert {key: comparable(row) for key, row in cut.state.items()} == {
        key: comparable(row) for key, row in whole.state.items()
    }


@pytest.mark.parametrize("type", VALUES, ids=str)
@given(data=st.data())
def test_counted_and_kept_values_are_the_oracles_however_rows_are_cut(type: pa.DataType, data: st.DataObject) -> None:
    """Count, min, max, first and last equal Python's, and the state of many batches equals that of one."""
    _check(PICKS, data.draw(_batches(type)))


@pytest.mark.parametrize("type", NUMBERS, ids=str)
@given(data=st.data())
def test_sums_and_means_are_the_oracles_however_rows_are_cut(type: pa.DataType, data: st.DataObject) -> None:
    """Sum and mean equal Python's, floats to the last bit, and the state of many batches equals that of one."""
    _check(TOTALS, data.draw(_batches(type)))


def test_only_touched_keys_are_emitted() -> None:
    """A batch emits one row for each key it has, with the running result, and leaves the others alone."""
    totals = Keyed(
        aggregate(n=count(), total=sum_("v")), rows_of([], pa.int32()).schema.set(0, pa.field("k", pa.string()))
    )
    totals.feed(rows_of([1, 2, 5], pa.int32(), ["a", "b", "a"]))
    assert totals.feed(rows_of([10], pa.int32(), ["b"])) == [{"k": "b", "n": 2, "total": 12}]
    assert totals.feed(rows_of([1], pa.int32(), ["a"])) == [{"k": "a", "n": 3, "total": 7}]


def test_null_is_a_key_of_its_own() -> None:
    """Rows whose key is null, or partly null, are grouped as Spark groups them."""
    rows = pa.table({"a": ["x", None, "x", None], "b": pa.array([1, 1, None, 1]), "v": [1, 2, 3, 4]})
    output = Keyed(aggregate(total=sum_("v")), rows.schema, key=["a", "b"]).feed(rows)
    assert output == [
        {"a": "x", "b": 1, "total": 1}, {"a": None, "b": 1, "total": 6}, {"a": "x", "b": None, "total": 3},
    ]  # fmt: skip


@pytest.mark.parametrize("compute", [PICKS, TOTALS], ids=["picks", "totals"])
def test_an_empty_batch_gives_nothing(compute: Any) -> None:
    """No rows in, no rows and no state out, in the declared schemas."""
    rows = pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], pa.decimal128(10, 2))})
    for empty in (rows, rows.schema.empty_table(), pa.Table.from_batches([], rows.schema)):
        keyed = Keyed(compute, rows.schema)
        assert keyed.feed(empty) == []
        assert keyed.state == {}


@pytest.mark.parametrize("sign", [1, -1])
def test_the_mean_of_decimals_is_rounded_half_up(sign: int) -> None:
    """A tie at the last digit goes away from zero, as in Spark: 1/32 has one digit too many."""
    rows = rows_of([Decimal(sign)] + [Decimal(0)] * 31, pa.decimal128(5, 0))
    assert Keyed(aggregate(m=mean("v")), rows.schema).feed(rows) == [{"k": "a", "m": sign * Decimal("0.0313")}]


@pytest.mark.parametrize("type", [pa.int32(), pa.int64(), pa.decimal128(38, 0), pa.float64()], ids=str)
def test_a_slice_of_a_table_is_summed_alone(type: pa.DataType) -> None:
    """Rows before and after the slice share its buffers and do not count."""
    rows = pa.table({"k": ["a"] * 4, "v": pa.array([1, 2, 4, 8]).cast(pa.decimal128(38, 0)).cast(type)})
    assert Keyed(aggregate(total=sum_("v")), rows.schema).feed(rows.slice(1, 2)) == [{"k": "a", "total": 6}]


@pytest.mark.parametrize("type", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)], ids=str)
@pytest.mark.parametrize("batches", [1, 2])
def test_of_two_zeros_the_first_stays(type: pa.DataType, zeros: tuple[float, float], batches: int) -> None:
    """0.0 and -0.0 are one value to Spark, so the extreme keeps the sign of the first."""
    keyed = Keyed(aggregate(least=min_("v"), greatest=max_("v")), rows_of([0.0], type).schema)
    rows = rows_of([*zeros, *zeros, None, zeros[1]], type, ["b", "b", "a", "a", "a", "b"])
    for start in range(0, 6, 6 // batches):
        output = keyed.feed(rows.slice(start, 6 // batches))
    for row in output:
        assert math.copysign(1, row["least"]) == math.copysign(1, zeros[0])  # type: ignore[arg-type]
        assert math.copysign(1, row["greatest"]) == math.copysign(1, zeros[0])  # type: ignore[arg-type]
