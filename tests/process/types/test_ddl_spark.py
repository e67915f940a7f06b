"""riffle_spark's DDL parser agrees with Spark's parser on many texts."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CharType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VarcharType,
    _parse_datatype_string,
)

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.spark_schemas import schema_of_ddl, schema_of_json
from tests.kit.process import ddl_texts

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]
# The time zone that PySpark requires from 4.1 on.
ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def plain(kind: Any) -> Any:
    """Return the type with plain strings, because Arrow has no bounded ones."""
    if isinstance(kind, CharType | VarcharType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(plain(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(plain(kind.keyType), plain(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, plain(field.dataType), field.nullable) for field in kind])
    return kind


def has_void_inside(kind: Any) -> bool:
    """Return whether void is inside a nested type, because state cannot store that."""
    if isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    else:
        inner = [field.dataType for field in kind] if isinstance(kind, StructType) else []
    return any(isinstance(inner_type, NullType) or has_void_inside(inner_type) for inner_type in inner)


def sparks(text: str) -> tuple[StructType, pa.Schema] | None:
    """Return Spark's and PySpark's schema of a text, ``None`` if they or state refuse it."""
    try:
        parsed = _parse_datatype_string(text)
        schema = parsed if isinstance(parsed, StructType) else StructType([StructField("value", parsed)])
        if any(has_void_inside(field.dataType) for field in schema):
            return None
        return schema, to_arrow_schema(plain(schema), **ZONE)
    except (PySparkException, ValueError):  # ValueError: Arrow cannot represent a null column that is NOT NULL
        return None


def ours(text: str) -> pa.Schema | None:
    """Return riffle_spark's schema of a text, ``None`` if it refuses the text."""
    try:
        return schema_of_ddl(text)
    except ConfigError:
        return None


@pytest.mark.parametrize("drawn", [50, pytest.param(500, marks=pytest.mark.long)])
def test_ddl_is_parsed_or_refused_as_by_spark(spark: SparkSession, drawn: int) -> None:
    """Every text gives PySpark's schema, as DDL and as JSON, or both parsers refuse it."""
    texts = [*ddl_texts.SIMPLE, *(f"{name} int" for name in ddl_texts.NAMES), *ddl_texts.REFUSED]
    texts += [] if ZONE else ddl_texts.REFUSED_FIRST
    for text in texts + ddl_texts.drawn(drawn, seed=6):
        expected, actual = sparks(text), ours(text)
        assert (actual is None) == (expected is None), (text, expected)
        if expected is not None and actual is not None:
            assert actual.equals(expected[1]), text
            assert schema_of_json(expected[0].json()).equals(expected[1]), text
