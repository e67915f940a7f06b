"""The input that an operator needs, and the stored schema that it must match."""

from __future__ import annotations

import base64
from dataclasses import replace

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import ATTEMPT, HASH, INITIAL, KEY_GROUP, RECEIPT, SLOT, Watermark
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.process.merging.aggregates import aggregate, count, sum_
from riffle_spark.protocol.batch.enter import check_schemas
from riffle_spark.protocol.operator import Operator, operator_of, with_watermark
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import make_recorded_text

ROWS = pa.schema([("k", pa.string()), ("n", pa.int32()), ("v", pa.int64()), ("tags", pa.list_(pa.string()))])


def operator(key: tuple[str, ...] = ("k",), rows: pa.Schema = ROWS, store: str = "totals") -> Operator:
    """Return a sum per key."""
    return operator_of(store, key, aggregate(total=sum_("v")), (), rows)


@pytest.mark.parametrize("name", ["a/b", "..", "", "log", "-a", "a" * 65, "ä", "a b"])
def test_an_invalid_store_name_is_refused(name: str) -> None:
    """A store name must be a valid part of object names and folders."""
    with pytest.raises(ConfigError, match="RIFFLE-0410"):
        operator(store=name)


def test_a_missing_key_column_is_refused() -> None:
    """A missing key or order column is refused, and the error lists the columns."""
    with pytest.raises(ConfigError, match="RIFFLE-0229") as caught:
        operator(("user",))
    assert caught.value.remedy == "Use one of k, n, v, tags."
    with pytest.raises(ConfigError, match="RIFFLE-0229"):
        operator_of("totals", ["k"], aggregate(n=count()), ["offset"], ROWS)


def test_a_key_of_an_unsupported_type_is_refused() -> None:
    """Lists, maps and structs cannot be keys."""
    with pytest.raises(ConfigError, match="RIFFLE-0119") as caught:
        operator(("tags",))
    assert caught.value.where == "tags"


def test_equal_operators_have_equal_stored_schemas() -> None:
    """Equal operators have equal stored schemas."""
    check_schemas({"totals": operator().schema.to_text(), "other": {"key": "", "state": "", "text": ""}}, [operator()])
    assert operator().schema.to_text()["text"] == "k: string | total: int64"


@pytest.mark.parametrize(
    "now",
    [
        operator(("k", "n")),
        operator(rows=ROWS.set(2, pa.field("v", pa.float64()))),
        operator(rows=ROWS.set(0, pa.field("k", pa.binary()))),
    ],
    ids=["another key", "another type", "another key type"],
)
def test_a_changed_schema_is_refused(now: Operator) -> None:
    """Another key, key type or state type is refused. The error shows both schemas."""
    with pytest.raises(ConfigError, match="RIFFLE-0223") as caught:
        check_schemas({"totals": operator().schema.to_text()}, [now])
    assert "stored:   k: string | total: int64" in caught.value.problem


def test_metadata_and_nullability_of_the_input_do_not_matter() -> None:
    """The metadata and nullability of input columns may change."""
    changed_rows = ROWS.with_metadata({"a": "b"}).set(
        0, pa.field("k", pa.string(), nullable=False, metadata={"c": "d"})
    )
    check_schemas({"totals": operator().schema.to_text()}, [operator(rows=changed_rows)])


def test_stored_schemas_are_not_compared_as_bytes() -> None:
    """Schemas that another Arrow release serialized are compared as schemas, not as bytes."""
    schema = operator().schema
    assert isinstance(schema, PlainColumns)
    stored = schema.to_text()
    for part, of_part in (("key", schema.key), ("state", schema.state)):
        stored[part] = base64.b64encode(of_part.with_metadata({"release": "other"}).serialize()).decode()
    assert stored != schema.to_text()
    check_schemas({"totals": stored}, [operator()])


def test_an_operator_is_refused_for_a_store_of_a_wrapped_query() -> None:
    """An operator is refused for a store of a wrapped query, unless it is a wrapped query too."""
    stored = {"totals": make_recorded_text(None, operator().schema, 0, {"total": "sum(v)"})}
    with pytest.raises(ConfigError, match="RIFFLE-0222") as caught:
        check_schemas(stored, [operator()])
    assert "riffle rollback" in caught.value.remedy
    check_schemas(stored, [replace(operator(), meanings={})])


WIRE = (ATTEMPT, HASH, INITIAL, KEY_GROUP, RECEIPT, SLOT, "__riffle_output", "__RIFFLE_SLOT")


PLACES = [*((name, "key") for name in WIRE), *((WIRE[0], place) for place in ("input", "result", "output"))]


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_names_of_internal_columns_are_refused(name: str, place: str) -> None:
    """Names of internal columns are refused in keys, input, results and output."""
    rows = ROWS.append(pa.field(name, pa.int64())) if place in ("key", "input") else ROWS
    one, output = pa.schema([("n", pa.int64())]), pa.schema([("n", pa.int64()), (name, pa.int64())])
    function = arrow_function(lambda rows, state: (rows, state), state=one, output=output)
    compute = {"key": aggregate(n=count()), "input": aggregate(n=sum_(name)), "result": aggregate(**{name: count()})}
    with pytest.raises(ConfigError, match="RIFFLE-0194"):
        operator_of("totals", (name if place == "key" else "k",), compute.get(place, function), (), rows)


def test_a_function_on_tables_is_refused_for_repeated_columns() -> None:
    """A function on Arrow tables is refused if two columns of the input have one name, unless it declares columns."""
    one = pa.schema([("n", pa.int64())])
    function = arrow_function(lambda rows, state: (rows, state), state=one, output=one)
    twice = pa.schema([*ROWS, ("v", pa.int64())])
    with pytest.raises(ConfigError, match="RIFFLE-0234") as caught:
        operator_of("totals", ["k"], function, (), twice)
    assert "'v'" in caught.value.problem
    operator_of("totals", ["k"], aggregate(n=count()), (), twice)


def test_a_watermark_may_be_by_a_field_that_the_operator_does_not_read() -> None:
    """The watermark column may be a field of a struct. It is then read in addition to the operator's own columns."""
    rows = pa.schema([*ROWS, ("s", pa.struct([("at", pa.timestamp("us", "UTC"))]))])
    timed = with_watermark(operator(rows=rows), Watermark("s.at", 10))
    assert timed.watermark == Watermark("at", 10)
    assert [(column.name, column.path) for column in timed.fields] == [("at", ("s", "at"))]
    assert "at" in timed.input.names
    assert with_watermark(timed, None) is timed
