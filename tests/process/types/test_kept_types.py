"""Which of Spark's types state keeps, by position, and what a refusal says."""

from __future__ import annotations

from typing import get_args

import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.kept_types import Position, check_columns

POSITIONS: tuple[Position, ...] = get_args(Position)
VECTOR = {"type": "udt", "class": "org.apache.spark.ml.linalg.VectorUDT", "sqlType": "long"}
MONTHS = "interval year to month"

PLAIN = (
    *("boolean", "byte", "long", "double", "decimal(38,18)", "string", "binary", "date", "timestamp", "timestamp_ntz"),
    *("interval day to second", "interval hour to minute", "interval second", "string collate UTF8_BINARY"),
)
ARRAY, MAP = {"type": "array", "containsNull": True}, {"type": "map", "valueContainsNull": True}


def struct_of(kind: object) -> dict[str, object]:
    """Return the JSON of a struct with one field."""
    return {"type": "struct", "fields": [{"name": "f", "type": kind, "nullable": True, "metadata": {}}]}


KEPT: list[tuple[object, set[str]]] = [
    ("void", {"value", "declared"}),
    ("variant", {"value", "order"}),
    (struct_of("variant"), {"value", "order"}),
    ("string collate UNICODE_CI", {"value"}),
    ("interval year", set()),
    (MONTHS, set()),
    ("interval", set()),
    (VECTOR, set()),
    ({**ARRAY, "elementType": "void"}, set()),
    ({**ARRAY, "elementType": VECTOR}, set()),
    ({**MAP, "keyType": "long", "valueType": "void"}, set()),
    ({**MAP, "keyType": MONTHS, "valueType": "long"}, set()),
    (struct_of("void"), set()),
]
KEPT += [(name, set(POSITIONS)) for name in PLAIN]
KEPT += [({**ARRAY, "elementType": "long"}, set(POSITIONS))]


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(("kind", "kept"), KEPT)
def test_a_type_is_kept_or_refused_by_position(kind: object, kept: set[str], position: Position) -> None:
    """A refusal names the column and has a remedy."""
    columns: list[dict[str, object]] = [{"name": "n", "type": "long"}, {"name": "c", "type": kind, "metadata": {}}]
    if position in kept:
        check_columns(columns, position)
        return
    with pytest.raises(ConfigError, match="RIFFLE-0204") as refused:
        check_columns(columns, position, where="max_by(c, n)")
    assert refused.value.remedy
    assert refused.value.where == "max_by(c, n)"


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ({"name": "c", "type": "string", "metadata": {"__COLLATIONS": {"c": "spark.UTF8_LCASE"}}}, "UTF8_LCASE"),
        ({"name": "c", "type": "string", "metadata": {"__COLLATIONS": {"c.element": "icu.UNICODE"}}}, "UNICODE"),
    ],
)
def test_a_collation_in_the_metadata_of_a_field_is_found(column: dict[str, object], problem: str) -> None:
    """Spark keeps it there, and not in the type."""
    check_columns([column], "value")
    with pytest.raises(ConfigError, match="RIFFLE-0204"):
        check_columns([column], "key")


def test_the_path_leads_to_the_part_that_cannot_be_kept() -> None:
    """Elements, keys, values and fields are in it, and a column of ours has the user's name."""
    inner = {"type": "map", "keyType": "string", "valueType": MONTHS, "valueContainsNull": True}
    fields = [{"name": "f", "type": {"type": "array", "elementType": inner, "containsNull": True}}]
    column = {"name": "buffer_0", "type": {"type": "struct", "fields": fields}}
    with pytest.raises(ConfigError, match=r"RIFFLE-0204.*sum\(m\)\.f\.element\.value"):
        check_columns([column], display_names={"buffer_0": "sum(m)"})
