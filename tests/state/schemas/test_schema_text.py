"""A store's schema is written to a record as text and read back."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pytest

from riffle_spark.state.formats.arrow_schemas import schema_from_text, schema_to_text
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.state.schemas.variable_kinds import Variable
from riffle_spark.state.schemas.variables import VariableColumns

KEY = pa.schema([("user", pa.string()), ("day", pa.date32())])
VALUE = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])
VARIABLES = (
    Variable("seen", "value", VALUE),
    Variable("last", "list", VALUE, ttl_ms=60_000),
    Variable("by_shop", "map", VALUE, key=pa.schema([("shop", pa.int32())]), ttl_ms=1),
)


@pytest.mark.parametrize("state", [VALUE, pa.schema([])], ids=["columns", "no column"])
def test_a_schema_of_columns_is_equal_after_a_text_round_trip(state: pa.Schema) -> None:
    """A schema of plain columns equals the one that is read from its text, and a process caches it."""
    schema = PlainColumns("s", KEY, state)
    back = schema_of_text("s", schema.to_text())
    assert back == schema
    assert schema_of_text("s", schema.to_text()) is back, "a process caches the schema with its codecs"


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("variables", [VARIABLES, VARIABLES[:1], ()], ids=["of each kind", "one", "none"])
def test_a_schema_of_variables_is_equal_after_a_text_round_trip(variables: Sequence[Variable], indexed: bool) -> None:
    """A schema of variables equals the one that is read from its text, with names, kinds, fields, TTLs and index."""
    schema = VariableColumns("s", KEY, tuple(variables), indexed=indexed)
    back = schema_of_text("s", schema.to_text())
    assert back == schema


def test_the_text_of_a_schema_has_the_fields_of_earlier_versions() -> None:
    """The text has the same fields as in all earlier versions, so that old and new drivers read each other's."""
    text = VariableColumns("s", KEY, VARIABLES[1:], indexed=True).to_text()
    assert [*text] == ["key", "variables", "indexed", "text"]
    value, shop = schema_to_text(VALUE), schema_to_text(VARIABLES[2].key)
    assert json.loads(text["variables"]) == [
        ["last", "list", value, None, 60_000],
        ["by_shop", "map", value, shop, 1],
    ]
    assert schema_from_text(text["key"]) == KEY
    assert text["indexed"] == "true"
    assert text["text"] == (
        "user: string, day: date32[day] | list last: (n: int64, tags: list<item: string>) for 60000 ms, "
        "map by_shop: (shop: int32) to (n: int64, tags: list<item: string>) for 1 ms"
    )
    plain = PlainColumns("s", KEY, pa.schema([("n", pa.int64())])).to_text()
    assert [*plain] == ["key", "state", "text"]
    assert plain["text"] == "user: string, day: date32[day] | n: int64"
