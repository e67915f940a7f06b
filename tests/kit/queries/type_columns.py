"""Columns of every type that Spark has, as SQL over a row number, with ordinary and extreme values and NULL.

A ``TypeColumn`` is data: tests build one wide frame of many of them, so that a whole matrix of types is a few queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.ml.linalg import DenseVector, Vectors
from pyspark.sql import types

__all__ = ["COLLATED", "KEPT", "READABLE", "REFUSED", "RefusedColumn", "TypeColumn", "exploded", "vector_of"]

_HAS_SPARK4 = hasattr(types, "VariantType")
"""Whether Spark has the types variant and collated string."""


@dataclass(frozen=True, slots=True)
class TypeColumn:
    """A column of one type. The rows have the SQL expressions ``values`` in turn, followed by NULL.

    ``is_key`` says whether Spark groups by the type, ``is_ordered`` whether it compares the type. ``pandas`` says
    whether Spark's pandas functions accept all of the values.
    """

    name: str
    type: str
    values: tuple[str, ...]
    is_key: bool = True
    is_ordered: bool = True
    pandas: bool = True

    @property
    def sql(self) -> str:
        """The column as SQL over ``n``, the number of the row."""
        cases = " ".join(f"WHEN {at} THEN CAST({value} AS {self.type})" for at, value in enumerate(self.values))
        return f"CASE n % {len(self.values) + 1} {cases} END"

    @property
    def text(self) -> str:
        """A SQL expression that shows the column as text.

        Different values have different texts, even if not valid UTF-8.
        """
        return f"to_json({self.name})" if self.type == "variant" else f"hex(CAST({self.name} AS STRING))"


@dataclass(frozen=True, slots=True)
class RefusedColumn:
    """A column of a type that riffle refuses as a value.

    ``sql`` is an expression over ``n``. ``path`` and ``type`` occur in the message, and ``remedy`` in its remedy.
    """

    name: str
    sql: str
    path: str
    type: str
    remedy: str


_STRUCT = "struct<a: bigint, b: string>"
_SCALARS = (
    TypeColumn("c_boolean", "boolean", ("true", "false")),
    TypeColumn("c_byte", "tinyint", ("1", "127", "-128")),
    TypeColumn("c_short", "smallint", ("1", "32767", "-32768")),
    TypeColumn("c_int", "int", ("1", "2147483647", "-2147483648")),
    TypeColumn("c_long", "bigint", ("1", "9223372036854775807L", "-9223372036854775807L - 1L"), pandas=False),
    TypeColumn("c_float", "float", ("1.5", "'NaN'", "'Infinity'", "'-Infinity'", "3.4028235e38", "1.4e-45")),
    TypeColumn(
        "c_double", "double", ("1.5", "'NaN'", "'Infinity'", "'-Infinity'", "1.7976931348623157e308", "4.9e-324")
    ),
    TypeColumn("c_decimal_5_2", "decimal(5,2)", ("1.25", "999.99", "-999.99", "0")),
    TypeColumn("c_decimal_38_0", "decimal(38,0)", ("1", f"{'9' * 38}BD", f"-{'9' * 38}BD")),
    TypeColumn("c_decimal_38_18", "decimal(38,18)", ("1.5", f"{'9' * 20}.{'9' * 18}BD", f"-0.{'0' * 17}1BD")),
    TypeColumn("c_string", "string", ("'a'", "''", "'é𝄞'", "repeat('long ', 400)")),
    TypeColumn("c_invalid", "string", ("X'636166E9'", "X'FF'", "'caf'", "X'EDA080'"), pandas=False),
    TypeColumn("c_binary", "binary", ("X'00FF'", "X''", "X'636166E9'")),
    TypeColumn("c_date", "date", ("'2024-02-29'", "'0001-01-01'", "'9999-12-31'")),
    TypeColumn(
        "c_timestamp", "timestamp", ("'2024-02-29 12:00:00.123456'", "'1969-12-31 23:59:59.999999'", "'2100-01-01'")
    ),
    TypeColumn("c_timestamp_far", "timestamp", ("'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"), pandas=False),
    TypeColumn("c_ntz", "timestamp_ntz", ("'2024-02-29 12:00:00.123456'", "'1969-12-31 23:59:59.999999'")),
    TypeColumn("c_ntz_far", "timestamp_ntz", ("'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"), pandas=False),
    TypeColumn(
        "c_day_time", "interval day to second", ("INTERVAL '1 02:03:04.000005' DAY TO SECOND", "INTERVAL '-9' DAY")
    ),
    TypeColumn(
        "c_hours",
        "interval hour to minute",
        ("INTERVAL '25:10' HOUR TO MINUTE", "INTERVAL '-0:01' HOUR TO MINUTE"),
        pandas=False,
    ),
)
_NESTED = (
    TypeColumn(
        "c_struct", _STRUCT, ("named_struct('a', 1L, 'b', 'x')", "named_struct('a', NULL, 'b', NULL)"), pandas=False
    ),
    TypeColumn("c_array", "array<string>", ("array('a', NULL)", "array()"), is_key=False),
    TypeColumn("c_map", "map<string, bigint>", ("map('a', 1L, 'b', NULL)", "map()"), is_key=False, is_ordered=False,
        pandas=False),
    TypeColumn(
        "c_nested", f"array<struct<m: map<string, array<decimal(38,18)>>, s: {_STRUCT}>>",
        ("array(named_struct('m', map('k', array(1.5, NULL)), 's', NULL), NULL)", "array()"),
        is_key=False, is_ordered=False, pandas=False,
    ),
)  # fmt: skip


def _struct_of(columns: Sequence[TypeColumn]) -> str:
    """Return the SQL of a struct with a NOT NULL field for each column."""
    fields = (
        f"'{column.name[2:]}', coalesce({column.sql}, CAST({column.values[0]} AS {column.type}))" for column in columns
    )
    return f"named_struct({', '.join(fields)})"


_NOT_NULL = _struct_of(_SCALARS)


@dataclass(frozen=True, slots=True)
class _Whole(TypeColumn):
    """A column whose SQL is its only value. It adds no cast, so fields that are NOT NULL remain so."""

    @property
    def sql(self) -> str:
        """The column as SQL over ``n``."""
        return self.values[0]


_WHOLE = (
    _Whole("c_required", "struct", (f"CASE WHEN n % 3 > 0 THEN {_NOT_NULL} END",), pandas=False),
    _Whole(
        "c_required_array", "array", (f"CASE WHEN n % 3 > 0 THEN array({_NOT_NULL}) END",), is_key=False, pandas=False
    ),
    _Whole(
        "c_required_map", "map", (f"CASE WHEN n % 3 > 0 THEN map('k', {_NOT_NULL}) END",), is_key=False,
        is_ordered=False, pandas=False,
    ),
    _Whole("c_constant", "string", ("'constant'",)),
    _Whole("c_void", "void", ("NULL",), is_key=False, is_ordered=False, pandas=False),
    _Whole(
        "c_variant", "variant", ("""CASE WHEN n % 3 > 0 THEN parse_json('{"a": [1, "x", null]}') END""",), is_key=False,
        is_ordered=False, pandas=False,
    ),
)  # fmt: skip

KEPT: Sequence[TypeColumn] = tuple(
    column for column in (*_SCALARS, *_NESTED, *_WHOLE) if column.type != "variant" or _HAS_SPARK4
)
"""Columns of the types that riffle stores as Spark does."""
_UNREADABLE = ("c_invalid", "c_timestamp_far", "c_ntz_far")
_NULL_IN_PANDAS = ("c_float", "c_double")
"""pandas returns NaN as NULL in these columns."""
_IN_REQUIRED = [column for column in _SCALARS if column.pandas and column.name not in _NULL_IN_PANDAS]
READABLE: Sequence[TypeColumn] = (
    *(column for column in KEPT if column.name not in _UNREADABLE and not column.name.startswith("c_required")),
    _Whole("c_readable_required", "struct", (f"CASE WHEN n % 3 > 0 THEN {_struct_of(_IN_REQUIRED)} END",)),
)
"""Columns whose values pandas can hold: text is valid UTF-8, and times are between 1677 and 2262."""
_COLLATED = (
    _Whole("c_collated", "string", ("CASE WHEN n % 3 > 0 THEN CAST(n AS STRING) COLLATE UTF8_LCASE END",)),
    _Whole(
        "c_collated_fields", "array",
        ("CASE WHEN n % 3 > 0 THEN array(named_struct('a', CAST(n AS STRING) COLLATE UNICODE_CI, 'b', 1)) END",),
    ),
)  # fmt: skip
COLLATED: Sequence[TypeColumn] = _COLLATED if _HAS_SPARK4 else ()
"""Columns that can be stored as values, but cannot be keys and are not compared."""
REFUSED: Sequence[RefusedColumn] = (
    RefusedColumn("r_months", "INTERVAL '1-2' YEAR TO MONTH", "r_months", "interval year to month", "make_ym_interval"),
    RefusedColumn("r_years", "INTERVAL '3' YEAR", "r_years", "interval year", "make_ym_interval"),
    RefusedColumn("r_calendar", "make_interval(1, 2, 3, 4)", "r_calendar", "interval", "CAST(r_calendar AS STRING)"),
    RefusedColumn(
        "r_field",
        "named_struct('f', INTERVAL '1' MONTH)",
        "r_field.f",
        "interval month",
        "extract(YEAR FROM r_field.f)",
    ),
    RefusedColumn("r_array", "array()", "r_array.element", "void", "Cast the column"),
    RefusedColumn("r_map", "map(1, NULL)", "r_map.value", "void", "Cast the column"),
    RefusedColumn("r_void_field", "named_struct('x', NULL)", "r_void_field.x", "void", "Cast the column"),
    RefusedColumn(
        "r_vector", "vector_of(n)", "r_vector", "VectorUDT (a user-defined type)", "vector_to_array(r_vector)"
    ),
    RefusedColumn(
        "r_vectors", "array(vector_of(n))", "r_vectors.element", "VectorUDT (a user-defined type)", "vector_to"
    ),
)
"""Columns whose types riffle refuses as values, and thus everywhere.

The function ``vector_of`` makes vectors of Spark ML.
"""


def exploded(columns: Sequence[TypeColumn]) -> list[str]:
    """Return SQL that shows only column number ``t`` of a row. The other columns are NULL."""
    return [
        "n",
        "k",
        "t",
        *(f"CASE WHEN t = {at} THEN {column.name} END AS {column.name}" for at, column in enumerate(columns)),
    ]


def vector_of(number: int) -> DenseVector:
    """Return a vector of Spark ML with this number."""
    return Vectors.dense([float(number)])
