"""Schemas of several variables and tables of wide rows that Hypothesis draws."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
from hypothesis import strategies as st

from riffle_spark.state.schemas.variable_kinds import DUE, INDEX, TIMER, VARIABLE, Variable
from riffle_spark.state.schemas.variables import VariableColumns
from tests.kit.state.drawn_tables import KEY_TYPES, LEAVES, Values, nested, nullable_lists, structs

Types = st.SearchStrategy[tuple[pa.DataType, Values]]
"""A strategy that draws a type together with a strategy for its values."""
KINDS: tuple[Literal["value", "list", "map"], ...] = ("value", "list", "map")
LONG = ["k" * length for length in (150, 236, 237, 238, 300, 900)]
TYPES = nested(LEAVES)
TEXT = st.one_of(KEY_TYPES[pa.string()], st.sampled_from(LONG))


def nested_in_keys(inner: Types) -> Types:
    """Draw arrays and structs of types, as far as the keys of maps can have them."""
    return st.one_of(
        inner.map(lambda t: (pa.list_(t[0]), nullable_lists(t[1]))), st.lists(inner, max_size=3).map(structs)
    )


@st.composite
def fields(draw: st.DrawFn, types: Types, name: str) -> list[tuple[str, pa.DataType, Values]]:
    """Draw the names, the types and the strategies of the fields of a struct."""
    drawn = draw(st.lists(types, min_size=1, max_size=3))
    return [(f"{name}{number}", kind, values) for number, (kind, values) in enumerate(drawn)]


KEY_FIELDS: Types = st.sampled_from(
    [(kind, TEXT if kind == pa.string() else values) for kind, values in KEY_TYPES.items()]
)
MAP_KEY_FIELDS = st.recursive(KEY_FIELDS, nested_in_keys, max_leaves=3)


def rows_of(drawn: list[tuple[str, pa.DataType, Values]]) -> st.SearchStrategy[dict[str, object]]:
    """Return a strategy that draws the values of fields as a struct."""
    return st.fixed_dictionaries({name: st.one_of(st.none(), values) for name, _, values in drawn})


def schema_of(drawn: list[tuple[str, pa.DataType, Values]]) -> pa.Schema:
    """Return the schema of drawn fields."""
    return pa.schema([(name, kind) for name, kind, _ in drawn])


@st.composite
def wide_tables(draw: st.DrawFn) -> tuple[VariableColumns, pa.Table]:
    """Draw a schema and rows in any order. Except for duplicates, the rows could be those of a snapshot."""
    key = draw(fields(KEY_FIELDS, "k"))
    indexed = draw(st.booleans())
    variables: list[Variable] = []
    rows: dict[str, st.SearchStrategy[dict[str, object]]] = {}
    for number, kind in enumerate(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))):
        value = draw(fields(TYPES, "v"))
        of_map = draw(fields(MAP_KEY_FIELDS, "m")) if kind == "map" else None
        variables.append(Variable(f"s{number}", kind, schema_of(value), schema_of(of_map) if of_map else None))
        column = variables[-1].column
        element = {"key": rows_of(of_map), "value": rows_of(value)} if of_map else None
        struct = st.fixed_dictionaries(element) if element else rows_of(value)
        index = st.integers(0, 2**40) if kind == "list" else st.none()
        due = st.none() | st.integers(-(2**40), 2**60) if indexed else st.none()
        rows[f"s{number}"] = st.fixed_dictionaries(
            {VARIABLE: st.just(f"s{number}"), INDEX: index, DUE: due, column: struct}
        )
    if indexed:
        rows[TIMER] = st.fixed_dictionaries({VARIABLE: st.just(TIMER), DUE: st.integers(-(2**40), 2**60)})
    schema = VariableColumns("s", schema_of(key), tuple(variables), indexed)
    drawn = draw(st.lists(st.tuples(rows_of(key), st.one_of(list(rows.values()))), max_size=8))
    return schema, table_of(schema, [{**of_key, **row} for of_key, row in drawn])


def table_of(schema: VariableColumns, rows: list[dict[str, object]], *, delta: bool = False) -> pa.Table:
    """Return rows as a table of a part. Columns that a row does not name are null."""
    columns = schema.part_schema(delta=delta)
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in columns]
    return pa.table(arrays, schema=columns)
