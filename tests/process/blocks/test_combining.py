"""Rows that are combined before the shuffle give the same results as the rows themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riffle_spark import aggregate, count, first, max_, mean, min_, sum_
from riffle_spark.errors import UserFunctionError
from riffle_spark.process.blocks.block import BlockComputation
from riffle_spark.process.blocks.combining import ROWS, Combined, decode_rows, decoded_schema, encoded_names
from riffle_spark.process.merging.aggregates import Aggregates
from riffle_spark.process.stages.merged_groups import MergedGroups
from riffle_spark.process.types.stage_specs import AggregateSpec, Buffer, FunctionSpec
from riffle_spark.state.formats.arrow_casts import cast_table
from tests.kit.process.process_calls import KeyedComputation

LARGE = 2**63 - 1
LONGS = st.sampled_from([None, 0, 1, -1, 2**32, -(2**32) - 1, LARGE, -LARGE - 1]) | st.integers(-9, 9)
ROWS_OF_KEYS = st.lists(st.tuples(st.sampled_from("ab"), LONGS), max_size=12)
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def combined_value(function: str, values: list[Any]) -> int | None:
    """Return the value that Spark's aggregate function returns for these values."""
    some = [value for value in values if value is not None]
    if function == "count":
        return len(some)
    if not some:
        return None
    choices: dict[str, Callable[[list[int]], int]] = {"add": sum, "min": min, "max": max}
    return choices[function](some)


def combined_rows(combined: Combined, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per key of a partition, as Spark sends it to the slots."""
    sent = []
    for key in dict.fromkeys(row["k"] for row in rows):
        of_key = [row for row in rows if row["k"] == key]
        row: dict[str, Any] = {"k": key, ROWS: len(of_key)}
        for column in combined.columns:
            values = [1 if column.source is None else each[column.source] for each in of_key]
            if column.function == "sum":
                high, low = encoded_names([column.name], [column.name])
                row[high] = combined_value("add", [None if value is None else value >> 32 for value in values])
                row[low] = combined_value("add", [None if value is None else value & (2**32 - 1) for value in values])
            else:
                row[column.name] = combined_value(column.function, values)
        sent.append(row)
    return sent


def decoded(combined: Combined, partitions: list[list[dict[str, Any]]], key: pa.Schema) -> pa.Table:
    """Return the rows that a slot decodes from the combined rows of several partitions."""
    sums = [column.name for column in combined.columns if column.function == "sum"]
    schema = decoded_schema(key, combined.columns)
    types = {name: schema.field(name).type if name in schema.names else pa.int64() for name in schema.names}
    names = encoded_names(schema.names, sums)
    sent = [row for rows in partitions for row in combined_rows(combined, rows)]
    table = pa.table({name: pa.array([row[name] for row in sent], types.get(name, pa.int64())) for name in names})
    rows = decode_rows(table, [column.name for column in combined.columns], sums)
    assert sum(rows[ROWS].to_pylist()) == sum(map(len, partitions))
    return cast_table(rows, schema)


def outcome(keyed: KeyedComputation, rows: pa.Table) -> object:
    """Return the sorted output rows and the state, or the error."""
    try:
        output = keyed.feed(rows)
    except UserFunctionError as error:
        return error.id, error.problem
    return sorted(map(str, output)), keyed.state


def check_same(compute: BlockComputation, schema: pa.Schema, batches: list[list[list[dict[str, Any]]]]) -> None:
    """Feed the same batches to a computation with and without combining. Compare both after each batch."""
    assert isinstance(compute, (Aggregates, MergedGroups))
    key = pa.schema([schema.field("k")])
    combined = compute.combine(["k"], schema)
    assert combined is not None
    plain, with_combined = KeyedComputation(compute, schema), KeyedComputation(compute, schema)
    with_combined.compute = combined.compute
    for partitions in batches:
        rows = pa.Table.from_pylist([row for each in partitions for row in each], schema)
        assert outcome(with_combined, decoded(combined, partitions, key)) == outcome(plain, rows)


def partitions_of(rows: list[tuple[str, int | None]], split: int) -> list[list[dict[str, Any]]]:
    """Return rows as two partitions, split at a position."""
    named = [{"k": key, "v": value} for key, value in rows]
    return [named[:split], named[split:]]


@given(first_rows=ROWS_OF_KEYS, second_rows=ROWS_OF_KEYS, split=st.integers(0, 12))
@example(first_rows=[("a", LARGE)] * 5 + [("a", -LARGE - 1)] * 5 + [("a", None)], second_rows=[("a", 1)], split=5)
def test_aggregates_of_combined_rows_equal_those_of_the_rows(
    first_rows: list[tuple[str, int | None]], second_rows: list[tuple[str, int | None]], split: int
) -> None:
    """Property: aggregates of combined rows equal those of the rows, also if the sum of a partition exceeds int64."""
    compute = aggregate(n=count(), c=count("v"), total=sum_("v"), least=min_("v"), most=max_("v"), again=sum_("v"))
    check_same(compute, SCHEMA, [partitions_of(first_rows, split), partitions_of(second_rows, split)])


@given(rows=ROWS_OF_KEYS, split=st.integers(0, 12), mode=st.sampled_from(["ANSI", "LEGACY"]))
@example(rows=[("a", LARGE)] * 3, split=2, mode="LEGACY")
def test_buffers_of_combined_rows_merge_like_those_of_rows(
    rows: list[tuple[str, int | None]], split: int, mode: str
) -> None:
    """Property: counts of rows and of values, sums and extremes of combined rows merge to those of the rows."""

    def function(name: str, column: str, literal: int | None = None, **options: str) -> FunctionSpec:
        buffer = Buffer(column, pa.int64(), column, literal)
        return FunctionSpec(name, (buffer,), options=tuple(options.items()))

    functions = (
        function("Count", "rows", 1),
        function("Count", "valid"),
        function("Sum", "v", evalMode=mode),
        function("Max", "most"),
        function("Min", "least"),
    )
    spec = AggregateSpec("totals", pa.schema([("k", pa.string())]), functions, None)
    named = [
        {"k": key, "v": value, "valid": int(value is not None), "most": value, "least": value} for key, value in rows
    ]
    check_same(MergedGroups(spec, "update"), spec.rows, [[named[:split], named[split:]]])


SUMS = {"v": pa.float64(), "d": pa.decimal128(9, 2), "s": pa.string(), "i": pa.int32()}
ORDERED = {
    "floats": sum_("v"),
    "means": mean("i"),
    "first rows": first("i"),
    "least texts": min_("s"),
    "decimals": sum_("d"),
}


@pytest.mark.parametrize("name", ORDERED)
def test_rows_are_not_combined_for_order_dependent_functions(name: str) -> None:
    """One function whose result may depend on the order of rows is enough to send each row to the slots."""
    schema = pa.schema([("k", pa.string()), *SUMS.items()])
    assert aggregate(n=count(), other=ORDERED[name]).combine(["k"], schema) is None
    assert aggregate(n=count(), other=sum_("i")).combine(["k"], schema) is not None


BUFFERS = {
    "sums of doubles": FunctionSpec("Sum", (Buffer("b", pa.float64(), "sum(v)"),)),
    "sums of decimals": FunctionSpec("Sum", (Buffer("b", pa.decimal128(20, 2), "s"), Buffer("e", pa.bool_(), "e"))),
    "greatest doubles": FunctionSpec("Max", (Buffer("b", pa.float64(), "max(v)"),)),
    "sums of a constant": FunctionSpec("Sum", (Buffer("b", pa.int64(), "sum(2)", 2),)),
    "distinct counts": FunctionSpec("Count", (Buffer("b", pa.int64(), "count(v)"),), distinct="count(DISTINCT v)"),
    "collected values": FunctionSpec(
        "CollectList", (Buffer("l", pa.list_(pa.int64()), "l"),), argument=Buffer("b", pa.int64(), "v")
    ),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_rows_are_not_combined_for_order_dependent_buffers(name: str) -> None:
    """One such buffer is enough, also if other functions of the query could be combined."""
    counted = FunctionSpec("Count", (Buffer("c", pa.int64(), "count(v)"),))
    key = pa.schema([("k", pa.string())])
    spec = AggregateSpec("totals", key, (counted, BUFFERS[name]), None)
    plain = AggregateSpec("totals", key, (counted,), None)
    assert MergedGroups(spec, "update").combine(["k"], spec.rows) is None
    assert MergedGroups(plain, "update").combine(["k"], plain.rows) is not None


def test_a_combined_sum_is_named_after_its_column() -> None:
    """A combined sum has the name of its column, for errors. If a key has it, ignoring case, a suffix is added."""
    schema = pa.schema([("V", pa.int64()), ("v sum", pa.int64()), ("k", pa.int64())])
    combined = aggregate(least=min_("k"), total=sum_("k")).combine(["V"], schema)
    assert combined is not None
    assert [(column.name, column.function) for column in combined.columns] == [("k", "sum"), ("k min", "min")]
    combination = aggregate(total=sum_("V")).combine(["V", "v sum"], schema)
    assert combination is not None
    assert [column.name for column in combination.columns] == ["V sum 0"]
