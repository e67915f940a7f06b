"""Running aggregates: the types they declare, and what they refuse."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError, UserFunctionError
from riffle_spark.process.merging.aggregates import aggregate, count, last, max_, mean, min_, sum_
from tests.kit.process.process_calls import Keyed, rows_of


def test_types_are_sparks() -> None:
    """Results and state have the types that Spark gives them."""
    rows = pa.schema([("k", pa.string()), ("i", pa.int16()), ("f", pa.float32()), ("d", pa.decimal128(35, 3))])
    compute = aggregate(
        n=count("*"), si=sum_("i"), sf=sum_("f"), sd=sum_("d"), mi=mean("i"), md=mean("d"), least=min_("f")
    )
    declared = compute.declare(pa.schema([rows.field("k")]), rows)
    assert declared.output == pa.schema(
        [
            ("k", pa.string()), ("n", pa.int64()), ("si", pa.int64()), ("sf", pa.float64()),
            ("sd", pa.decimal128(38, 3)), ("mi", pa.float64()), ("md", pa.decimal128(38, 7)), ("least", pa.float32()),
        ]
    )  # fmt: skip
    assert declared.state == pa.schema(
        [
            ("n", pa.int64()), ("si", pa.int64()), ("sf", pa.float64()), ("sd", pa.decimal128(38, 3)),
            ("mi_sum", pa.float64()), ("mi_count", pa.int64()), ("md_sum", pa.decimal128(38, 3)),
            ("md_count", pa.int64()), ("least", pa.float32()),
        ]
    )  # fmt: skip
    assert not declared.per_key_group


def test_only_the_columns_that_are_read_are_asked_for() -> None:
    """Columns are named once, in the input's order, without the key's."""
    rows = pa.schema([("a", pa.int64()), ("k", pa.string()), ("b", pa.int64()), ("c", pa.int64())])
    compute = aggregate(c=sum_("c"), mean=mean("c"), a=max_("a"), keys=count("k"))
    assert compute.declare(pa.schema([rows.field("k")]), rows).columns == ("a", "c")
    assert aggregate(n=count()).declare(pa.schema([rows.field("k")]), rows).columns == ()


@pytest.mark.parametrize("batches", [[[2**63 - 1, 1]], [[2**63 - 1], [1]], [[-(2**63), -1]], [[-(2**63)], [-1]]])
def test_an_integer_sum_that_does_not_fit_is_an_error(batches: list[list[int]]) -> None:
    """A sum beyond int64, in a batch or over several, is refused with column, key, store and remedy named."""
    keyed = Keyed(aggregate(total=sum_("v")), rows_of([1], pa.int64()).schema)
    with pytest.raises(UserFunctionError, match="RIFFLE-0173") as error:  # noqa: PT012
        for values in batches:
            keyed.feed(rows_of([0, *values], pa.int64(), ["b"] + ["a"] * len(values)))
    assert "decimal(38, 0)" in error.value.remedy
    assert error.value.where == "store 'totals', key {'k': 'a'}"


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [(pa.decimal128(38, 0), "to double, or divide it"), (pa.decimal128(38, 18), "fewer digits after the point")],
)
def test_a_decimal_sum_that_does_not_fit_says_what_makes_room(kind: pa.DataType, remedy: str) -> None:
    """A cast to the type that the sum has would not help."""
    whole = "9" * (38 - kind.scale)
    largest = Decimal(f"{whole}.{'9' * kind.scale}")
    keyed = Keyed(aggregate(total=sum_("v")), rows_of([Decimal(1)], kind).schema)
    with pytest.raises(UserFunctionError, match="RIFFLE-0173") as error:
        keyed.feed(rows_of([largest, largest], kind))
    assert remedy in error.value.remedy
    assert "decimal(38, 0)" not in error.value.remedy


def test_an_integer_sum_has_room_after_the_remedy() -> None:
    """A cast to decimal(38, 0) or double, as the message says, makes the same sum fit."""
    for kind, largest in ((pa.decimal128(38, 0), 2**63 - 1), (pa.float64(), float(2**63))):
        keyed = Keyed(aggregate(total=sum_("v")), rows_of([largest], kind).schema)
        keyed.feed(rows_of([largest, largest], kind))


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.timestamp("us", "UTC"), 2**63 - 1), (pa.timestamp("us"), -(2**63)), (pa.date32(), 2**31 - 1)],
)
def test_a_key_that_python_has_no_date_for_is_named_by_its_number(kind: pa.DataType, value: int) -> None:
    """The error tells what is wrong with the sum, and not that its own words cannot be made."""
    schema = pa.schema([("k", kind), ("v", pa.int64())])
    keyed = Keyed(aggregate(total=sum_("v")), schema)
    with pytest.raises(UserFunctionError, match="RIFFLE-0173") as error:
        keyed.feed(pa.table([pa.array([value, value], kind), [2**63 - 1, 1]], schema=schema))
    assert error.value.where == f"store 'totals', key {{'k': {value}}}"


def test_a_sum_may_leave_its_type_on_the_way() -> None:
    """Only the sum of the whole batch must fit, so the order of its rows does not matter."""
    keyed = Keyed(aggregate(total=sum_("v")), rows_of([1], pa.int64()).schema)
    assert keyed.feed(rows_of([2**63 - 1, 2**63 - 1, -(2**63), 1], pa.int64())) == [{"k": "a", "total": 2**63 - 1}]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("times", [2, 5, 40])
def test_a_decimal_sum_that_does_not_fit_is_an_error(sign: int, times: int) -> None:
    """A sum beyond 38 digits is refused, whether it fits 128 bits or not."""
    most = Decimal(sign) * Decimal(6).scaleb(35)
    keyed = Keyed(aggregate(total=sum_("v")), pa.schema([("k", pa.string()), ("v", pa.decimal128(38, 2))]))
    assert keyed.feed(rows_of([most], pa.decimal128(38, 2)))[0]["total"] == most
    with pytest.raises(UserFunctionError, match="RIFFLE-0173"):
        keyed.feed(rows_of([most] * (times - 1), pa.decimal128(38, 2)))


def test_a_decimal_mean_that_does_not_fit_is_an_error() -> None:
    """A mean that has no room for its four more digits is refused, not cut."""
    keyed = Keyed(aggregate(m=mean("v")), pa.schema([("k", pa.string()), ("v", pa.decimal128(38, 0))]))
    with pytest.raises(UserFunctionError, match="RIFFLE-0173"):
        keyed.feed(rows_of([Decimal(10) ** 37], pa.decimal128(38, 0)))


REFUSED = {
    "missing": (sum_("w"), "the input has no column 'w'", "k, v"),
    "sum of text": (sum_("v"), "sum_('v') cannot take column 'v' of type string", "integers, float, double, decimal"),
    "mean of text": (mean("v"), "mean('v') cannot take column 'v' of type string", "integers"),
    "order of lists": (min_("list"), "min_('list') cannot take column 'list' of type list", "timestamps"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_aggregated_is_refused(case: str) -> None:
    """A missing column or an unsupported type is named, with what would do."""
    accumulator, problem, remedy = REFUSED[case]
    rows = pa.schema([("k", pa.int64()), ("v", pa.string()), ("list", pa.list_(pa.int64()))])
    with pytest.raises(ConfigError) as error:
        aggregate(bad=accumulator).declare(pa.schema([rows.field("k")]), rows)
    assert problem in error.value.problem
    assert remedy in error.value.remedy
    assert error.value.where == "aggregate 'bad'"


@pytest.mark.parametrize(
    "compute", [aggregate(k=count()), aggregate(a=mean("v"), a_sum=sum_("v"))], ids=["a key's name", "a state's name"]
)
def test_a_name_that_is_taken_is_refused(compute: Any) -> None:
    """An aggregate may not be named as a key column, nor its state as another's."""
    rows = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    with pytest.raises(ConfigError, match="RIFFLE-0178"):
        compute.declare(pa.schema([rows.field("k")]), rows)


def test_what_is_no_aggregate_is_refused_at_once() -> None:
    """Nothing at all, or something else than riffle's aggregates, fails where it is written."""
    with pytest.raises(ConfigError, match="RIFFLE-0174"):
        aggregate()
    with pytest.raises(ConfigError, match="RIFFLE-0175"):
        aggregate(total=sum_)  # type: ignore[arg-type]


def test_aggregates_travel_to_executors() -> None:
    """The computation is equal after pickling."""
    compute = aggregate(n=count(), latest=last("v", ignore_nulls=True))
    assert pickle.loads(pickle.dumps(compute)) == compute
