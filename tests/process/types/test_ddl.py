"""Spark's DDL and JSON schemas are parsed without Spark."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.spark_schemas import schema_of_ddl, schema_of_json
from tests.kit.process import ddl_texts

LIST = pa.list_(pa.field("element", pa.string()))
MAP = pa.map_(
    pa.field("key", pa.string(), nullable=False), pa.field("value", pa.list_(pa.field("element", pa.int16())))
)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("count long", [("count", pa.int64())]),
        ("count: long, n INT", [("count", pa.int64()), ("n", pa.int32())]),
        ("total decimal(10,2), d decimal", [("total", pa.decimal128(10, 2)), ("d", pa.decimal128(10, 0))]),
        ("tags array<string>, who struct<a:int>", [("tags", LIST), ("who", pa.struct([("a", pa.int32())]))]),
        ("m map<string, array<short>>", [("m", MAP)]),
        ("t timestamp, n timestamp_ntz", [("t", pa.timestamp("us", "UTC")), ("n", pa.timestamp("us"))]),
        ("`a b` int, `c``d` date", [("a b", pa.int32()), ("c`d", pa.date32())]),
        (
            "a string, i interval day to hour",
            [("a", pa.string()), ("i", pa.duration("us"))],
        ),
        ("int", [("value", pa.int32())]),
        ("array<string>", [("value", LIST)]),
        ("struct<a: int, b: array<string>>", [("a", pa.int32()), ("b", LIST)]),
        ("a int -- one\n, /* two */ b byte", [("a", pa.int32()), ("b", pa.int8())]),
    ],
)
def test_ddl_is_parsed_as_by_spark(text: str, fields: list[tuple[str, pa.DataType]]) -> None:
    """Columns, nested types, quoted names, comments and a single type are parsed as by Spark."""
    assert schema_of_ddl(text).equals(pa.schema(fields))


def test_not_null_and_comments_are_parsed() -> None:
    """NOT NULL makes a column non-nullable. The text of a comment is not parsed as columns."""
    schema = schema_of_ddl("a int NOT NULL COMMENT 'b long, (', c struct<d: int not null> comment \"x\"")
    assert [field.nullable for field in schema] == [False, True]
    assert not schema.field("c").type.field("d").nullable


def test_ddl_that_spark_refuses_or_state_cannot_store_is_refused() -> None:
    """Texts that Spark's parser refuses, and types that state cannot store, are refused."""
    for text in ddl_texts.REFUSED + ddl_texts.REFUSED_FIRST + ddl_texts.NOT_KEPT:
        with pytest.raises(ConfigError, match="RIFFLE-0206"):
            schema_of_ddl(text)


def test_a_parse_error_marks_the_first_wrong_character() -> None:
    """The error marks the first character that does not fit."""
    with pytest.raises(ConfigError) as caught:
        schema_of_ddl("a int, b strng, c long")
    _, text, sign = caught.value.problem.splitlines()
    assert text[sign.index("^") :].startswith("strng")


@pytest.mark.parametrize("kind", ["char(5)", "varchar(20)"])
def test_a_string_of_bounded_length_is_refused(kind: str) -> None:
    """Types with a bounded length are refused, because the length would not be checked."""
    array = {"type": "array", "elementType": kind, "containsNull": True}
    for parse, text in (
        (schema_of_ddl, f"n long, a {kind}"),
        (schema_of_json, json_of(kind)),
        (schema_of_json, json_of(array)),
    ):
        with pytest.raises(ConfigError, match=re.escape(kind)) as refused:
            parse(text)
        assert "Declare a plain STRING" in refused.value.remedy


def test_a_repeated_name_is_refused() -> None:
    """A repeated column name is refused, because state and results are columns by name."""
    with pytest.raises(ConfigError, match="RIFFLE-0205"):
        schema_of_ddl("a int, b int, a long")


def json_of(kind: object, *, nullable: bool = True, **metadata: str) -> str:
    """Return the JSON of a struct with one field."""
    field = {"name": "a", "type": kind, "nullable": nullable, "metadata": metadata}
    return json.dumps({"type": "struct", "fields": [field]})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("long", pa.int64()),
        ("decimal(5,1)", pa.decimal128(5, 1)),
        ("interval day to second", pa.duration("us")),
        ({"type": "array", "elementType": "string", "containsNull": True}, LIST),
        (
            {"type": "array", "elementType": "byte", "containsNull": False},
            pa.list_(pa.field("element", pa.int8(), nullable=False)),
        ),
        (
            {
                "type": "map",
                "keyType": "string",
                "valueType": {"type": "array", "elementType": "short", "containsNull": True},
                "valueContainsNull": True,
            },
            MAP,
        ),
    ],
)
def test_a_json_schema_equals_its_ddl(kind: object, expected: pa.DataType) -> None:
    """JSON of ``StructType.json()`` gives the same schema as the DDL."""
    assert schema_of_json(json_of(kind)).equals(pa.schema([("a", expected)]))
    assert not schema_of_json(json_of(kind, nullable=False)).field("a").nullable


@pytest.mark.parametrize(
    "text",
    [
        json_of("variant"),
        json_of({"type": "udt", "sqlType": "long"}),
        json_of("string", __COLLATIONS="icu.UNICODE_CI"),
        json_of(5),
        json_of({"type": "tensor", "elementType": "long"}),
        '{"type": "struct"}',
        "no json",
        "[]",
        '{"type": "struct", "fields": ["k"]}',
    ],
)
def test_unsupported_json_schemas_are_refused(text: str) -> None:
    """User-defined types, collations and text that is not a schema are refused."""
    with pytest.raises(ConfigError, match=r"RIFFLE-020[47]"):
        schema_of_json(text)


def test_the_json_of_a_single_type_is_a_column_named_value() -> None:
    """A single type is one column with Spark's name ``value``."""
    assert schema_of_json('"long"').equals(pa.schema([("value", pa.int64())]))


def test_types_that_are_nested_too_deeply_are_refused() -> None:
    """A type that is nested too deeply is refused with a ``ConfigError`` and not with a ``RecursionError``."""
    with pytest.raises(ConfigError, match="RIFFLE-0206"):
        schema_of_ddl("array<" * 9000)
    with pytest.raises(ConfigError, match="RIFFLE-0207"):
        schema_of_json('{"type": "array", "elementType": ' * 90_000)
