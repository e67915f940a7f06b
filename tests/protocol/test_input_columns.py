"""Names of input columns: upper and lower case, fields of structs, and duplicate names."""

from __future__ import annotations

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.process.merging.aggregates import aggregate, count, sum_
from riffle_spark.protocol.input_columns import Column, column_of, input_of, is_same_name, source_of
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.state.schemas.plain_columns import PlainColumns

STRUCT = pa.struct([("x", pa.string()), ("At", pa.timestamp("us", "UTC")), ("in", pa.struct([("y", pa.int64())]))])
ROWS = pa.schema([("User", pa.string()), ("v", pa.int64()), ("s", STRUCT), ("a.b", pa.int64())])


@pytest.mark.parametrize(
    ("name", "case_sensitive", "path"),
    [
        ("User", True, ("User",)),
        ("USER", False, ("User",)),
        ("`user`", False, ("User",)),
        ("s.x", True, ("s", "x")),
        ("S.AT", False, ("s", "At")),
        ("s.in.y", False, ("s", "in", "y")),
        ("s.`x`", True, ("s", "x")),
        ("a.b", True, ("a.b",)),
        ("`a.b`", True, ("a.b",)),
        ("A.B", False, ("a.b",)),
    ],
)
def test_a_column_is_found_as_spark_finds_it(name: str, case_sensitive: bool, path: tuple[str, ...]) -> None:
    """A column or field is found by its name, in any case unless names are case-sensitive, as in Spark."""
    assert column_of(name, ROWS, "store", case_sensitive=case_sensitive) == Column(path[-1], path)


@pytest.mark.parametrize(
    ("name", "other_name", "is_same"),
    [
        ("user", "USER", True),
        ("größe", "GRÖSSE", False),
        ("größe", "GRÖßE", True),
        ("ΟΔΟΣ", "οδος", True),
        ("\u212a", "k", True),
        ("\u0130", "i", False),
        ("ſ", "s", False),
    ],
)
def test_case_insensitive_names_are_compared_in_lower_case(name: str, other_name: str, is_same: bool) -> None:
    """Names without case sensitivity are compared in lower case, as in Spark, and not by Unicode case folding."""
    assert (
        is_same_name(name, other_name, case_sensitive=False)
        == is_same_name(other_name, name, case_sensitive=False)
        == is_same
    )
    assert not is_same_name(name, other_name, case_sensitive=True)
    assert is_same_name(name, name, case_sensitive=True)


@pytest.mark.parametrize("name", ["USER", "s.X", "none", "s.none", "v.x", "s..x", "`s", ""])
def test_an_unknown_column_is_refused_with_the_known_columns(name: str) -> None:
    """An unknown column is refused, and the error lists the columns."""
    with pytest.raises(ConfigError, match="RIFFLE-0229") as caught:
        column_of(name, ROWS, "store", case_sensitive=True)
    assert "User, v, s, a.b" in caught.value.remedy


def test_an_ambiguous_column_name_is_refused() -> None:
    """A name that matches several columns is refused: columns that differ only in case, or not at all."""
    rows = pa.schema([("v", pa.int64()), ("V", pa.int64()), ("w", pa.int64()), ("w", pa.int64())])
    assert column_of("V", rows, "store", case_sensitive=True) == Column("V", ("V",))
    for name in ("w", "W", "V"):
        with pytest.raises(ConfigError, match="RIFFLE-0231"):
            column_of(name, rows, "store")
    with pytest.raises(ConfigError, match="RIFFLE-0231"):
        column_of("`Vv`", pa.schema([("vV", pa.int64()), ("VV", pa.int64())]), "store")


def test_a_field_with_the_name_of_another_column_is_refused() -> None:
    """A field is refused if its name is that of a column or of another field."""
    with pytest.raises(ConfigError, match="RIFFLE-0230"):
        column_of("s.x", pa.schema([*ROWS, ("x", pa.int64())]), "store")
    twice = pa.schema([("s", STRUCT), ("t", STRUCT)])
    with pytest.raises(ConfigError, match="RIFFLE-0228"):
        operator_of("totals", ["s.x", "t.x"], aggregate(n=count()), (), twice)


def test_the_source_of_a_field_has_a_name_that_no_column_has() -> None:
    """The inner name of a struct field differs from the names of all columns."""
    rows = pa.schema([*ROWS, ("s.x", pa.int64()), ("s.x'", pa.int64())])
    assert source_of("s.x", ROWS, "store") == Column("s.x", ("s", "x"))
    assert source_of("s.`x`", rows, "store") == Column("s.x''", ("s", "x"))
    assert source_of("User", rows, "store") == Column("User", ("User",))


def test_columns_with_the_same_name_get_distinct_internal_names() -> None:
    """Columns with the same name get distinct internal names."""
    rows = pa.schema([("v", pa.int64()), ("k", pa.string()), ("v", pa.string()), ("v (2)", pa.int8())])
    columns = input_of(rows)
    assert list(columns.shown.values()) == rows.names
    assert len(set(columns.rows.names)) == 4
    assert columns.rows.types == rows.types
    assert not columns.is_plain
    assert input_of(ROWS).is_plain


def totals(rows: pa.Schema, key: str = "user", order: tuple[str, ...] = ()) -> Operator:
    """Return an aggregate by a key."""
    return operator_of("totals", [key], aggregate(n=count(), total=sum_("v")), order, rows)


@pytest.mark.parametrize(
    ("name", "inside", "path"),
    [
        ("V", "v", ("v",)),
        ("S.IN.Y", "s.in.y", ("s", "in", "y")),
        ("`s`.`in`.y", "s.in.y", ("s", "in", "y")),
        ("A.B", "a.b", ("a.b",)),
    ],
)
def test_an_aggregate_finds_columns_in_any_case_and_struct_fields(
    name: str, inside: str, path: tuple[str, ...]
) -> None:
    """An aggregate can use a column in any case, or a field of a struct."""
    rows = pa.schema([*ROWS, ("y", pa.int64())])
    operator = operator_of("totals", ["user"], aggregate(total=sum_(name), n=count(name)), (), rows)
    assert operator.declared.columns == (inside,)
    assert operator.fields == ((Column(inside, path),) if path[1:] else ())
    assert operator.rows.names == ["User", inside]
    assert operator.declared.output.names == ["User", "total", "n"]
    assert isinstance(operator.schema, PlainColumns)
    assert operator.schema.state.names == ["total", "n"]
