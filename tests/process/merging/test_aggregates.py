"""Running aggregates return the values and types of Spark, as computed in plain Python, and refuse other input."""

from __future__ import annotations

import math
import pickle
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError, UserFunctionError
from riffle_spark.process.merging.accumulators import Accumulator
from riffle_spark.process.merging.aggregates import Aggregates, aggregate, count, first, last, max_, mean, min_, sum_
from tests.kit.process.aggregate_oracle import ORACLE, comparable
from tests.kit.process.process_calls import KeyedComputation, rows_of

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(38, 18): st.decimals(-(10**15), 10**15, places=18),
    pa.string(): st.text(max_size=4),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
}
NUMBERS = [type for type in VALUES if not (pa.types.is_string(type) or pa.types.is_date(type))]
PICKS = aggregate(
    rows=count(),
    present=count("v"),
    least=min_("v"),
    greatest=max_("v"),
    first=first("v"),
    last=last("v"),
    first_present=first("v", ignore_nulls=True),
    last_present=last("v", ignore_nulls=True),
)
TOTALS = aggregate(total=sum_("v"), average=mean("v"))
LONGS = pa.schema([("k", pa.string()), ("v", pa.int64())])


@st.composite
def _batches(draw: st.DrawFn, type: pa.DataType) -> list[pa.Table]:
    """Draw rows of four keys in batches that are slices, some with several chunks."""
    pairs = draw(st.lists(st.tuples(st.integers(0, 3), st.none() | VALUES[type]), min_size=1, max_size=30))
    keys, values = zip(*pairs, strict=True)
    rows = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(values, type)})
    cuts = sorted(draw(st.lists(st.integers(0, len(pairs)), max_size=4)))
    pieces = [rows.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(pairs)], strict=True)]
    return [pa.concat_tables([piece.slice(0, 1), piece.slice(1)]) if draw(st.booleans()) else piece for piece in pieces]


def _check(compute: Aggregates, batches: list[pa.Table]) -> None:
    rows = pa.concat_tables(batches)
    names = [name for name, _ in compute.columns]
    by_key: dict[int, list[Any]] = {}
    for key, value in zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True):
        by_key.setdefault(key, []).append(value)
    in_batches = KeyedComputation(compute, rows.schema)
    at_once = KeyedComputation(compute, rows.schema)
    emitted: dict[Any, object] = {}
    for batch in batches:
        output = in_batches.feed(batch)
        assert {row["k"] for row in output} == set(batch["k"].to_pylist())
        emitted.update({row["k"]: comparable(row) for row in output})
    assert emitted == {
        key: {"k": key} | {name: comparable(ORACLE[name](values)) for name in names} for key, values in by_key.items()
    }
    at_once.feed(rows)
    assert comparable(in_batches.state) == comparable(at_once.state)


@pytest.mark.parametrize("type", VALUES, ids=str)
@given(data=st.data())
def test_counts_extremes_and_picks_equal_plain_python(type: pa.DataType, data: st.DataObject) -> None:
    """Property: counts, extremes and picks are those of plain Python. Several batches give the state of one batch."""
    _check(PICKS, data.draw(_batches(type)))


@pytest.mark.parametrize("type", NUMBERS, ids=str)
@given(data=st.data())
def test_sums_and_means_equal_plain_python(type: pa.DataType, data: st.DataObject) -> None:
    """Property: sums and means are those of plain Python, also the last bit of floats."""
    _check(TOTALS, data.draw(_batches(type)))


def test_null_keys_are_grouped_as_in_spark() -> None:
    """Rows with a null key, or a partly null key, are grouped as in Spark."""
    rows = pa.table({"a": ["x", None, "x", None], "b": pa.array([1, 1, None, 1]), "v": [1, 2, 3, 4]})
    output = KeyedComputation(aggregate(total=sum_("v")), rows.schema, key=["a", "b"]).feed(rows)
    assert [row["total"] for row in output] == [1, 6, 3]


@pytest.mark.parametrize("compute", [PICKS, TOTALS])
def test_an_empty_batch_emits_nothing(compute: Aggregates) -> None:
    """An empty batch emits no row, also as a table without chunks."""
    rows = pa.schema([("k", pa.int64()), ("v", pa.decimal128(10, 2))])
    for empty in (rows.empty_table(), pa.Table.from_batches([], rows)):
        keyed = KeyedComputation(compute, rows)
        assert (keyed.feed(empty), keyed.state) == ([], {})


@pytest.mark.parametrize("sign", [1, -1])
def test_the_mean_of_decimals_is_rounded_half_up(sign: int) -> None:
    """The mean of decimals is rounded half up: 1/32 becomes 0.0313."""
    rows = rows_of([Decimal(sign)] + [Decimal(0)] * 31, pa.decimal128(5, 0))
    assert KeyedComputation(aggregate(m=mean("v")), rows.schema).feed(rows) == [
        {"k": "a", "m": sign * Decimal("0.0313")}
    ]


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)], ids=str)
@pytest.mark.parametrize("batches", [1, 2])
def test_min_and_max_keep_the_sign_of_the_first_zero(zeros: tuple[float, float], batches: int) -> None:
    """0.0 equals -0.0 in Spark, so min and max keep the sign of the first zero."""
    keyed = KeyedComputation(aggregate(least=min_("v"), greatest=max_("v")), rows_of([0.0], pa.float64()).schema)
    rows = rows_of([*zeros, *zeros, None, zeros[1]], pa.float64(), ["b", "b", "a", "a", "a", "b"])
    for start in range(0, 6, 6 // batches):
        output = keyed.feed(rows.slice(start, 6 // batches))
    for row in output:
        assert math.copysign(1, row["least"]) == math.copysign(1, zeros[0])  # type: ignore[arg-type]
        assert math.copysign(1, row["greatest"]) == math.copysign(1, zeros[0])  # type: ignore[arg-type]


def test_results_and_state_have_sparks_types() -> None:
    """Results and state have Spark's types. Only the used columns are declared."""
    rows = pa.schema([("k", pa.string()), ("i", pa.int16()), ("f", pa.float32()), ("d", pa.decimal128(35, 3))])
    compute = aggregate(n=count("*"), keys=count("k"), si=sum_("i"), sd=sum_("d"), md=mean("d"), least=min_("f"))
    declared = compute.declare(pa.schema([rows.field("k")]), rows)
    counts = [("n", pa.int64()), ("keys", pa.int64()), ("si", pa.int64()), ("sd", pa.decimal128(38, 3))]
    means = [("md_sum", pa.decimal128(38, 3)), ("md_count", pa.int64())]
    assert declared.state == pa.schema([*counts, *means, ("least", pa.float32())])
    assert declared.output.types[1:] == [*(type for _, type in counts), pa.decimal128(38, 7), pa.float32()]
    assert declared.columns == ("i", "f", "d")
    assert declared.meanings["least"] == "min_('f')"
    assert pickle.loads(pickle.dumps(compute)) == compute


@pytest.mark.parametrize("batches", [[[2**63 - 1, 1]], [[2**63 - 1], [1]], [[-(2**63)], [-1]]])
def test_an_integer_sum_beyond_int64_is_refused_with_its_key(batches: list[list[int]]) -> None:
    """A sum beyond int64 raises an error with the key, in one batch or over several. A decimal column resolves it."""
    keyed = KeyedComputation(aggregate(total=sum_("v")), LONGS)
    with pytest.raises(UserFunctionError, match="RIFFLE-0173") as error:  # noqa: PT012
        for values in batches:
            keyed.feed(rows_of([0, *values], pa.int64(), ["b"] + ["a"] * len(values)))
    assert "decimal(38, 0)" in error.value.remedy
    assert error.value.where == "store 'totals', key {'k': 'a'}"
    wider = KeyedComputation(aggregate(total=sum_("v")), LONGS.set(1, pa.field("v", pa.decimal128(38, 0))))
    for values in batches:
        wider.feed(rows_of(values, pa.decimal128(38, 0)))


def test_only_the_sum_of_a_whole_batch_must_fit() -> None:
    """Only the sum of the whole batch must fit into int64, so the order of its rows does not matter."""
    rows = rows_of([2**63 - 1, 2**63 - 1, -(2**63), 1], pa.int64())
    assert KeyedComputation(aggregate(total=sum_("v")), LONGS).feed(rows) == [{"k": "a", "total": 2**63 - 1}]


@pytest.mark.parametrize("times", [2, 5, 40])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_decimal_overflow_is_refused(sign: int, times: int) -> None:
    """A decimal sum of more than 38 digits, and a mean without room for four more digits, raise an error."""
    largest = Decimal(sign) * Decimal(6).scaleb(35)
    keyed = KeyedComputation(aggregate(total=sum_("v")), LONGS.set(1, pa.field("v", pa.decimal128(38, 2))))
    assert keyed.feed(rows_of([largest], pa.decimal128(38, 2)))[0]["total"] == largest
    with pytest.raises(UserFunctionError, match="RIFFLE-0173"):
        keyed.feed(rows_of([largest] * (times - 1), pa.decimal128(38, 2)))
    means = KeyedComputation(aggregate(m=mean("v")), LONGS.set(1, pa.field("v", pa.decimal128(38, 0))))
    with pytest.raises(UserFunctionError, match="RIFFLE-0173"):
        means.feed(rows_of([sign * Decimal(10) ** 37], pa.decimal128(38, 0)))


@pytest.mark.parametrize(
    ("type", "value"),
    [(pa.timestamp("us", "UTC"), 2**63 - 1), (pa.timestamp("us"), -(2**63)), (pa.date32(), 2**31 - 1)],
)
def test_an_error_names_a_key_beyond_pythons_dates_by_its_number(type: pa.DataType, value: int) -> None:
    """An error names a key beyond Python's dates by its number."""
    schema = pa.schema([("k", type), ("v", pa.int64())])
    with pytest.raises(UserFunctionError, match="RIFFLE-0173") as error:
        KeyedComputation(aggregate(total=sum_("v")), schema).feed(
            pa.table([pa.array([value, value], type), [2**63 - 1, 1]], schema=schema)
        )
    assert error.value.where == f"store 'totals', key {{'k': {value}}}"


@pytest.mark.parametrize(
    ("accumulator", "id", "remedy"),
    [
        (sum_("w"), "RIFFLE-0176", "k, v"),
        (sum_("v"), "RIFFLE-0177", "integers, float, double, decimal"),
        (mean("v"), "RIFFLE-0177", "integers"),
        (min_("list"), "RIFFLE-0177", "timestamps"),
    ],
)
def test_columns_that_cannot_be_aggregated_are_refused(accumulator: Accumulator, id: str, remedy: str) -> None:
    """Unknown columns and unsupported types are refused. The remedy has the columns or the supported types."""
    rows = pa.schema([("k", pa.int64()), ("v", pa.string()), ("list", pa.list_(pa.int64()))])
    with pytest.raises(ConfigError, match=id) as error:
        aggregate(bad=accumulator).declare(pa.schema([rows.field("k")]), rows)
    assert remedy in error.value.remedy
    assert error.value.where == "aggregate 'bad'"


@pytest.mark.parametrize("compute", [aggregate(k=count()), aggregate(a=mean("v"), a_sum=sum_("v"))])
def test_a_duplicate_result_name_is_refused(compute: Aggregates) -> None:
    """A result name that is a key column, or a state column of another aggregate, is refused."""
    with pytest.raises(ConfigError, match="RIFFLE-0178"):
        compute.declare(pa.schema([LONGS.field("k")]), LONGS)


def test_anything_but_aggregate_functions_is_refused() -> None:
    """An aggregate without functions, or with another object than an aggregate function, is refused."""
    with pytest.raises(ConfigError, match="RIFFLE-0174"):
        aggregate()
    with pytest.raises(ConfigError, match="RIFFLE-0175"):
        aggregate(total=sum_)  # type: ignore[arg-type]
