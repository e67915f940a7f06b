"""State can store most of Spark's types, depending on the use of the column."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from pyspark.sql import functions

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.kept_types import Position, check_columns, find_type_remedy

POSITIONS: tuple[Position, ...] = get_args(Position)
VECTOR = {"type": "udt", "class": "org.apache.spark.ml.linalg.VectorUDT", "sqlType": "long"}
MONTHS = "interval year to month"
ARRAY = {"type": "array", "containsNull": True}
MAP = {"type": "map", "valueContainsNull": True}


def struct_of(kind: object) -> dict[str, Any]:
    """Return the JSON of a struct with one field."""
    return {"type": "struct", "fields": [{"name": "f", "type": kind, "nullable": True, "metadata": {}}]}


KEPT: list[tuple[object, set[str]]] = [
    ("void", {"value", "declared"}),
    ("variant", {"value", "order"}),
    (struct_of("variant"), {"value", "order"}),
    ("string collate UNICODE_CI", {"value"}),
    ("char(3)", {"value", "key", "order"}),
    ("geometry(OGC:CRS84)", {"value"}),
    ("geography(OGC:CRS84, SPHERICAL)", {"value"}),
    ("timestamp_ltz(9)", set()),
    ("timestamp_ntz(7)", set()),
    ("interval year", set()),
    ("interval", set()),
    (VECTOR, set()),
    ({**ARRAY, "elementType": "void"}, set()),
    ({**MAP, "keyType": "long", "valueType": "void"}, set()),
    ({**MAP, "keyType": MONTHS, "valueType": "long"}, set()),
    (struct_of("void"), set()),
    ({"type": "struct", "fields": 2 * struct_of("long")["fields"]}, {"key"}),
    ({**ARRAY, "elementType": "long"}, set(POSITIONS)),
]
KEPT += [(name, set(POSITIONS)) for name in ("decimal(38,18)", "interval hour to minute", "string collate UTF8_BINARY")]


@pytest.mark.parametrize(("kind", "positions"), KEPT)
def test_a_type_is_stored_or_refused_depending_on_its_use(kind: object, positions: set[str]) -> None:
    """Each type is accepted or refused per use of the column. The error has the column and a remedy."""
    columns: list[dict[str, object]] = [{"name": "n", "type": "long"}, {"name": "c", "type": kind, "metadata": {}}]
    for position in POSITIONS:
        if position in positions:
            check_columns(columns, position)
            continue
        with pytest.raises(ConfigError, match="RIFFLE-0204") as refused:
            check_columns(columns, position, where="max_by(c, n)")
        assert refused.value.remedy
        assert refused.value.where == "max_by(c, n)"


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name", ["string collate UNICODE_CI", "variant", MONTHS, "interval", "void"])
def test_a_remedy_names_only_functions_that_spark_has(name: str, position: Position) -> None:
    """The functions in the remedy for a type exist in Spark."""
    calls = re.findall(r"\b([a-z_]+)\(", find_type_remedy(name, "c", position) or "")
    assert [call for call in calls if not hasattr(functions, call)] == []


@pytest.mark.parametrize("collations", [{"c": "spark.UTF8_LCASE"}, {"c.element": "icu.UNICODE"}])
def test_a_key_with_a_collation_in_its_metadata_is_refused(collations: dict[str, str]) -> None:
    """A collation in the metadata of a field, where Spark stores it, makes the column refused as a key."""
    column = {"name": "c", "type": "string", "metadata": {"__COLLATIONS": collations}}
    check_columns([column], "value")
    with pytest.raises(ConfigError, match="RIFFLE-0204"):
        check_columns([column], "key")


def test_the_error_has_the_path_of_the_type_that_cannot_be_stored() -> None:
    """The error's path has elements, keys, values and fields, and the user's name of an internal column."""
    inner = {"type": "map", "keyType": "string", "valueType": MONTHS, "valueContainsNull": True}
    fields = [{"name": "f", "type": {"type": "array", "elementType": inner, "containsNull": True}}]
    column = {"name": "buffer_0", "type": {"type": "struct", "fields": fields}}
    with pytest.raises(ConfigError, match=r"RIFFLE-0204.*sum\(m\)\.f\.element\.value"):
        check_columns([column], display_names={"buffer_0": "sum(m)"})
