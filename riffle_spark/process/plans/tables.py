"""A join of a stream with a table as a stage: its key, the rows that slots get, and the results.

1. Slots only look up the table's row for the key of a stream's row.
2. Spark evaluates the table's columns and filters, and further join conditions, on the slots' rows.

So a row of the stream is joined with the table as of its own batch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.process.merging.merged_picks import is_ordered
from riffle_spark.process.plans.columns import Column
from riffle_spark.process.plans.cut import LatestRows, Table
from riffle_spark.process.plans.grouping_keys import GroupingKey, choose_store_name
from riffle_spark.process.plans.new_expressions import (
    Value,
    cast_back,
    if_else,
    is_null,
    leaf_column,
    literal,
    null_like,
    remove_collation,
    replace_columns,
)
from riffle_spark.process.plans.plan_values import Expression, PlanNode, attribute_ids, split_conjuncts
from riffle_spark.process.plans.rules import refusal_error
from riffle_spark.process.types.stage_specs import TableSpec, make_unique_name

_OUTER: Final = ("LeftOuter", "RightOuter")
_ANTI: Final = "LeftAnti"
_ORDER: Final = "latest"
_ATTRIBUTE: Final = "AttributeReference"


def split_join_condition(
    node: PlanNode, table: Table, columns: Sequence[Sequence[Column]]
) -> tuple[dict[str, Expression], list[Expression]]:
    """Split the condition of a join with a table. Return the stream's expression for each column of the table's key,
    and the other conditions.

    ``columns`` are the columns of each side; for the table, the columns of its changes. Raises ``ConfigError`` if the
    join has no equality for a column of the key.
    """
    changes = {column.name: column for column in columns[table.side]}
    key_names = _trace_key_columns(table.latest, table.views, changes)
    stream_ids = {column.id for column in columns[1 - table.side]}
    equalities = dict[str, Expression]()
    residual_conditions = list[Expression]()
    for condition in node.expressions.get("condition", ()):
        for part in split_conjuncts(condition):
            equality = _match_key_equality(part, key_names, stream_ids)
            if equality is None or equality[0] in equalities:
                residual_conditions.append(part)
            else:
                name, expression = equality
                equalities[name] = expression
    if equalities.keys() != set(table.latest.key):
        raise refusal_error("table_keys", ", ".join(table.latest.key))
    return equalities, residual_conditions


def _trace_key_columns(latest: LatestRows, views: Sequence[PlanNode], changes: Mapping[str, Column]) -> dict[int, str]:
    """Return the key columns of a table as the join sees them, above the views: column id to name.

    Columns that a view computes are left out.
    """
    names = {changes[name].id: name for name in latest.key}
    for view in (view for view in views if view.kind == "Project"):
        columns = {column.id: _strip_alias(column) for column in view.expressions.get("projectList", ())}
        sources = {column_id: column.id for column_id, column in columns.items() if column.kind == _ATTRIBUTE}
        names = {column_id: names[source] for column_id, source in sources.items() if source in names}
    return names


def _match_key_equality(
    condition: Expression, key_names: Mapping[int, str], stream_ids: Collection[int]
) -> tuple[str, Expression] | None:
    """Return the key column and the stream's expression of an equality between them; ``None`` for other conditions."""
    if condition.kind == "EqualTo":
        for key, expression in (condition.children, condition.children[::-1]):
            ids = attribute_ids(expression)
            if key.kind == _ATTRIBUTE and key.id in key_names and ids and ids <= set(stream_ids):
                return key_names[key.id], expression
    return None


@dataclass(frozen=True, slots=True)
class TableJoin:
    """A join with a table. ``columns`` and ``keys`` are per side; for the table they are columns of its changes."""

    node: PlanNode
    table: Table
    columns: tuple[Sequence[Column], Sequence[Column]]
    keys: tuple[Sequence[GroupingKey], Sequence[GroupingKey]]
    residual_conditions: Sequence[Expression]

    @property
    def join_type(self) -> str:
        """Spark's type of the join."""
        return self.node.join_type

    @property
    def order_columns(self) -> list[Column]:
        """The columns that order the changes of a key."""
        changes = {column.name: column for column in self.columns[self.table.side]}
        return [changes[name] for name in self.table.latest.by]


@dataclass(slots=True)
class TableMapSide:
    """The rows that both sides send to the slots, with a unique name for each column.

    ``joined`` are the ids of the table's columns in the join. ``used_columns`` are the ids of the join's columns that
    the query reads; ``None`` means all. ``stored_columns`` and ``stream_columns`` map the ids of columns to names in
    the rows. ``key_backed`` maps the id of a column to the key column that holds its value. ``needed`` are the ids of
    the columns that are read below the table's first view, and above each view.
    """

    join: TableJoin
    joined: Sequence[int]
    used_columns: Collection[int] | None
    key_columns: list[str] = field(default_factory=list)
    stored_columns: dict[int, str] = field(default_factory=dict)
    stream_columns: dict[int, str] = field(default_factory=dict)
    key_backed: dict[int, str] = field(default_factory=dict)
    needed: list[set[int]] = field(default_factory=list)
    is_change: str = "is_change"
    find_column: str = "found"

    def __post_init__(self) -> None:
        """Choose the columns of both sides. Raises ``ConfigError`` if the structs in the keys of both sides differ."""
        join = self.join
        side = join.table.side
        if [len(key.parts) for key in join.keys[0]] != [len(key.parts) for key in join.keys[1]]:
            raise refusal_error("join_structs", ", ".join(join.table.latest.key))
        self.key_columns = [column for key in join.keys[side] for column in key.columns]
        for keys in join.keys:
            for key, table_key in zip(keys, join.keys[side], strict=True):
                expression = key.expression
                if isinstance(expression, Expression) and expression.kind == _ATTRIBUTE and key.is_stored_whole:
                    self.key_backed[expression.id] = table_key.columns[0]
        self.needed = self._needed_columns()
        order_ids = {column.id for column in join.order_columns}
        for column in join.columns[side]:
            if column.id in order_ids or (column.id in self.needed[0] and column.id not in self.key_backed):
                self.stored_columns[column.id] = self._unique_name(column.name)
        condition_ids = set[int]().union(*map(attribute_ids, join.residual_conditions))
        for column in join.columns[1 - side]:
            is_used = self.used_columns is None or column.id in self.used_columns or column.id in condition_ids
            if is_used and column.id not in self.key_backed:
                self.stream_columns[column.id] = self._unique_name(column.name)
        self.is_change = self._unique_name(self.is_change)
        self.find_column = self._unique_name(self.find_column)

    def _unique_name(self, name: str) -> str:
        """Return ``name``, or with a number if a column of the rows has it."""
        return make_unique_name(name, [*self.key_columns, *self.stored_columns.values(), *self.stream_columns.values()])

    def _needed_columns(self) -> list[set[int]]:
        """Return the ids of the columns that are read below the first view, and above each view."""
        ids = set(self.joined)
        needed = [ids]
        for view in reversed(self.join.table.views):
            if view.kind == "Project":
                columns = view.expressions.get("projectList", ())
                ids = set[int]().union(*(attribute_ids(column) for column in columns if column.id in ids))
            elif view.kind == "Filter":
                ids = ids.union(*map(attribute_ids, view.expressions.get("condition", ())))
            needed.append(ids)
        return needed[::-1]

    def has_key(self) -> Value:
        """Return the expression that is true if a change has a key without nulls. Other changes can never match."""
        is_complete: Value = literal(True)
        for key in self.join.keys[self.join.table.side]:
            is_complete = if_else(is_null(key.expression), literal(False), is_complete)
        return is_complete

    def side_columns(self, side: int) -> Iterator[tuple[str, Value]]:
        """Yield the name and the expression of each column of a side's rows."""
        table_side = self.join.table.side
        yield self.is_change, literal(side == table_side)
        parts = [value for key in self.join.keys[side] for value in key.column_values().values()]
        yield from zip(self.key_columns, parts, strict=True)
        for column_side, names in ((1 - table_side, self.stream_columns), (table_side, self.stored_columns)):
            columns = {column.id: column for column in self.join.columns[column_side]}
            for column_id, name in names.items():
                value = columns[column_id].expression
                yield name, remove_collation(columns[column_id], value if column_side == side else null_like(value))

    def make_spec(self, schema: pa.Schema, used_stores: Collection[str]) -> TableSpec:
        """Return the specification of the join. Its slots get rows of ``schema``. ``used_stores`` are the names of the
        query's other stores.

        Raises ``ConfigError`` if the type of an order column has no order.
        """
        keys, stream, stored = (
            pa.schema([schema.field(name) for name in names])
            for names in (self.key_columns, self.stream_columns.values(), self.stored_columns.values())
        )
        spec = TableSpec(
            choose_store_name("table", self.join.keys[self.join.table.side], used_stores),
            keys,
            self.is_change,
            stream,
            stored,
            tuple(self.stored_columns[column.id] for column in self.join.order_columns),
            self.find_column,
            self.join.join_type in (*_OUTER, _ANTI),
        )
        _check_order(spec)
        return spec

    def stored_meanings(self, spec: TableSpec) -> dict[str, str]:
        """Return the meaning of each stored column, and the order of changes, by name. They are compared on restart."""
        return {
            _ORDER: f"the last by {', '.join(spec.order_by)}",
            **{name: f"table {name}" for name in spec.table_columns.names},
        }

    def result_values(self, output: Sequence[Column]) -> tuple[list[tuple[Column, Value]], Value | None]:
        """Return the join's output columns with their expressions over the rows that slots return, and the condition of
        the rows to emit (``None``: all).
        """
        join = self.join
        columns = {column.id: column for side in join.columns for column in side}
        names = {**self.stored_columns, **self.stream_columns, **self.key_backed}
        values = {column_id: cast_back(leaf_column(name), columns[column_id]) for column_id, name in names.items()}
        has_match = leaf_column(self.find_column)
        for view, needed in zip(join.table.views, self.needed[1:], strict=True):
            if view.kind == "Filter":
                for condition in view.expressions.get("condition", ()):
                    has_match = if_else(replace_columns(condition, values), has_match, literal(False))
            elif view.kind == "Project":
                projected = [column for column in view.expressions.get("projectList", ()) if column.id in needed]
                values |= {column.id: replace_columns(_strip_alias(column), values) for column in projected}
        for condition in join.residual_conditions:
            has_match = if_else(replace_columns(condition, values), has_match, literal(False))
        return self._join_results(output, values, has_match)

    def _join_results(
        self, output: Sequence[Column], values: Mapping[int, Value], has_match: Value
    ) -> tuple[list[tuple[Column, Value]], Value | None]:
        """Return ``result_values`` by the type of the join.

        ``values`` has the expressions by column id, ``has_match`` is true for rows with a match.
        """
        join_type = self.join.join_type
        results = list[tuple[Column, Value]]()
        stream_ids = {column.id for column in self.join.columns[1 - self.join.table.side]}
        for column in output:
            value = values.get(column.id, null_like(column.expression))
            if join_type in _OUTER and column.id not in stream_ids:
                value = if_else(has_match, value, null_like(value))
            results.append((column, value))
        if join_type in _OUTER:
            return results, None
        return results, if_else(has_match, literal(join_type != _ANTI), literal(join_type == _ANTI))


def _check_order(spec: TableSpec) -> None:
    """Raise ``ConfigError`` if the type of an order column has no order."""
    for name in spec.order_by:
        if not is_ordered(spec.table_columns.field(name).type):
            raise ConfigError(
                f"Column by = {name!r} has type {spec.table_columns.field(name).type}, whose values have no order.",
                remedy="Name columns of numbers, times or strings that grow with each change.",
                where="riffle_spark.latest",
                id="RIFFLE-0191",
            )


def _strip_alias(column: Expression) -> Expression:
    """Return the expression below an alias, or the expression itself."""
    return column.children[0] if column.kind == "Alias" else column
