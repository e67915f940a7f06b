"""Schemas as Spark writes them, read without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

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
def test_a_text_is_read_as_spark_reads_it(text: str, fields: list[tuple[str, pa.DataType]]) -> None:
    """Columns, nested types, quoted names, comments, and one type alone become an Arrow schema."""
    assert schema_of_ddl(text).equals(pa.schema(fields))


def test_not_null_and_comments_are_understood() -> None:
    """A column that is not null is not nullable; what a comment says is not a column."""
    schema = schema_of_ddl("a int NOT NULL COMMENT 'b long, (', c struct<d: int not null> comment \"x\"")
    assert [field.nullable for field in schema] == [False, True]
    assert not schema.field("c").type.field("d").nullable


@pytest.mark.parametrize("text", ddl_texts.REFUSED + ddl_texts.REFUSED_FIRST + ddl_texts.NOT_KEPT)
def test_a_text_that_cannot_be_read_is_refused(text: str) -> None:
    """What Spark's parser refuses, and what cannot be kept, is a ``ConfigError`` that shows the text."""
    with pytest.raises(ConfigError, match="RIFFLE-0206"):
        schema_of_ddl(text)


def test_a_refusal_points_at_the_place() -> None:
    """A sign stands below the first character that does not fit."""
    with pytest.raises(ConfigError) as caught:
        schema_of_ddl("a int, b strng, c long")
    told, text, sign = caught.value.problem.splitlines()
    assert "'strng' is not a type" in told
    assert text[sign.index("^") :].startswith("strng")


@pytest.mark.parametrize("kind", ["char(5)", "varchar(20)"])
def test_a_text_of_bounded_length_is_refused(kind: str) -> None:
    """As Spark refuses it for state and results of functions; nothing would check the length."""
    array = {"type": "array", "elementType": kind, "containsNull": True}
    for declare in (
        lambda: schema_of_ddl(f"n long, a {kind}"), lambda: schema_of_json(json_of(kind)),
        lambda: schema_of_json(json_of(array)),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=re.escape(kind)) as refused:
            declare()
        assert "Declare a plain STRING" in refused.value.remedy


def test_a_name_that_comes_twice_is_refused() -> None:
    """State and results are columns by name."""
    with pytest.raises(ConfigError, match="RIFFLE-0205"):
        schema_of_ddl("a int, b int, a long")


def json_of(kind: object, *, nullable: bool = True, **metadata: str) -> str:
    """Return the JSON of a struct of one field."""
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
def test_the_json_of_a_schema_is_read(kind: object, expected: pa.DataType) -> None:
    """What ``StructType.json()`` writes becomes the same schema as its DDL."""
    assert schema_of_json(json_of(kind)).equals(pa.schema([("a", expected)]))
    assert not schema_of_json(json_of(kind, nullable=False)).field("a").nullable


@pytest.mark.parametrize(
    "text",
    [
        json_of("variant"),
        json_of({"type": "udt", "sqlType": "long"}),
        json_of("string", __COLLATIONS="icu.UNICODE_CI"),
        json_of(5),
        '{"type": "struct"}',
        "no json",
        "[]",
        '{"type": "struct", "fields": ["k"]}',
    ],
)
def test_json_that_cannot_be_read_is_refused(text: str) -> None:
    """User-defined types, collations and what is no schema are ``ConfigError``s."""
    with pytest.raises(ConfigError, match=r"cannot be read|cannot keep"):
        schema_of_json(text)


def test_the_json_of_one_type_is_one_column() -> None:
    """A type alone is a column named as Spark names it."""
    assert schema_of_json('"long"').equals(pa.schema([("value", pa.int64())]))


@pytest.mark.parametrize("read", [schema_of_ddl, schema_of_json])
def test_types_that_are_nested_too_deep_are_refused(read: Callable[[str], pa.Schema]) -> None:
    """Nobody has such state; nor is it Python's error."""
    deep = "array<" * 9000 if read is schema_of_ddl else '{"type": "array", "elementType": ' * 90_000
    with pytest.raises(ConfigError, match=r"RIFFLE-0206|RIFFLE-0207"):
        read(deep)
