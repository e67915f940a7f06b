"""A join of a stream with a table as a stage: by which key, what of both travels and is kept, and how results are made
of a row and what the table has for it.

Slots only look rows up. Spark evaluates what the query makes of the table (columns, conditions), and the rest of the
join's condition, on what slots answer. So the table is seen as of the row's own batch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.process.merging.merged_picks import is_ordered
from riffle_spark.process.plans.built import (
    Value,
    cast_back,
    choose,
    is_null,
    leaf_column,
    literal,
    null_like,
    with_columns,
    without_collation,
)
from riffle_spark.process.plans.columns import Column
from riffle_spark.process.plans.cut import LatestRows, Table
from riffle_spark.process.plans.grouping_keys import GroupingKey, stored_as
from riffle_spark.process.plans.plan_values import Expression, PlanNode, attribute_ids, conjuncts
from riffle_spark.process.plans.rules import refusal
from riffle_spark.process.types.stage_specs import TableSpec, free_name

__all__ = ["FoundTable", "TableRows", "equalities"]

_OUTER: Final = ("LeftOuter", "RightOuter")
_ANTI: Final = "LeftAnti"
_ORDER: Final = "latest"
_ATTRIBUTE: Final = "AttributeReference"


def equalities(
    node: PlanNode, table: Table, outputs: Sequence[Sequence[Column]]
) -> tuple[dict[str, Expression], list[Expression]]:
    """Return what of the stream equals each column of a table's key, and the other parts of the join's condition.

    ``outputs`` are the columns of each side, for the table those of its changes. Raises ``ConfigError`` if a column of
    the key is missing.
    """
    changes = {column.name: column for column in outputs[table.side]}
    ids = _key_ids(table.latest, table.views, changes)
    of_stream = {column.id for column in outputs[1 - table.side]}
    equal, rest = dict[str, Expression](), list[Expression]()
    for condition in node.expressions.get("condition", ()):
        for part in conjuncts(condition):
            name, other = _equal(part, ids, of_stream)
            if name is None or other is None or name in equal:
                rest.append(part)
            else:
                equal[name] = other
    if equal.keys() != set(table.latest.key):
        raise refusal("table_keys", ", ".join(table.latest.key))
    return equal, rest


def _key_ids(latest: LatestRows, views: Sequence[PlanNode], changes: Mapping[str, Column]) -> dict[int, str]:
    """Return the names of a table's key columns by the ids that they have in the join."""
    known = {changes[name].id: name for name in latest.key}
    for view in (view for view in views if view.kind == "Project"):
        made = {each.id: _bare(each) for each in view.expressions.get("projectList", ())}
        plain = {made_id: each.id for made_id, each in made.items() if each.kind == _ATTRIBUTE}
        known = {made_id: known[of] for made_id, of in plain.items() if of in known}
    return known


def _equal(
    condition: Expression, keys: Mapping[int, str], of_stream: Collection[int]
) -> tuple[str | None, Expression | None]:
    """Return which column of a table's key equals what of the stream, if the condition is such an equality."""
    if condition.kind == "EqualTo":
        for key, other in (condition.children, condition.children[::-1]):
            ids = attribute_ids(other)
            if key.kind == _ATTRIBUTE and key.id in keys and ids and ids <= set(of_stream):
                return keys[key.id], other
    return None, None


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A join with a table: the columns of each side, for the table those of its changes; the keys of each side, in the
    same order; and the other parts of the condition.
    """

    node: PlanNode
    table: Table
    outputs: tuple[Sequence[Column], Sequence[Column]]
    keys: tuple[Sequence[GroupingKey], Sequence[GroupingKey]]
    rest: Sequence[Expression]

    @property
    def how(self) -> str:
        """The type of the join."""
        return self.node.join_type

    @property
    def by(self) -> list[Column]:
        """The columns by which a change is the last one."""
        changes = {column.name: column for column in self.outputs[self.table.side]}
        return [changes[name] for name in self.table.latest.by]


@dataclass(slots=True)
class TableRows:
    """What is sent of rows, by names that are unique: key columns, and columns of the table and of the stream.

    The latter are known by the ids of their attributes. Those that are a key as they are have its column (``of_key``).
    ``needed`` are the ids of the columns that are needed of the table below the first of its views, and above each.
    """

    found: FoundTable
    joined: Sequence[int]
    """The ids of the columns that the table has in the join."""
    read: Collection[int] | None
    key_columns: list[str] = field(default_factory=list)
    kept: dict[int, str] = field(default_factory=dict)
    of_stream: dict[int, str] = field(default_factory=dict)
    of_key: dict[int, str] = field(default_factory=dict)
    needed: list[set[int]] = field(default_factory=list)
    is_change: str = "is_change"
    found_column: str = "found"

    def __post_init__(self) -> None:
        """Choose the columns."""
        found, side = self.found, self.found.table.side
        if [len(key.parts) for key in found.keys[0]] != [len(key.parts) for key in found.keys[1]]:
            raise refusal("join_structs", ", ".join(found.table.latest.key))
        self.key_columns = [column for key in found.keys[side] for column in key.columns]
        for keys in found.keys:
            for key, named in zip(keys, found.keys[side], strict=True):
                expression = key.expression
                if isinstance(expression, Expression) and expression.kind == _ATTRIBUTE and len(key.parts) == 1:
                    self.of_key[expression.id] = named.columns[0]
        self.needed = self._needed()
        by = {column.id for column in found.by}
        for column in found.outputs[side]:
            if column.id in by or (column.id in self.needed[0] and column.id not in self.of_key):
                self.kept[column.id] = self._free(column.name)
        beside = set[int]().union(*map(attribute_ids, found.rest))
        for column in found.outputs[1 - side]:
            is_read = self.read is None or column.id in self.read or column.id in beside
            if is_read and column.id not in self.of_key:
                self.of_stream[column.id] = self._free(column.name)
        self.is_change, self.found_column = self._free(self.is_change), self._free(self.found_column)

    @property
    def told(self) -> list[str]:
        """The columns of the stream's rows."""
        return list(self.of_stream.values())

    def _free(self, name: str) -> str:
        return free_name(name, [*self.key_columns, *self.kept.values(), *self.told])

    def _needed(self) -> list[set[int]]:
        wanted = set(self.joined)
        needed = [wanted]
        for view in reversed(self.found.table.views):
            if view.kind == "Project":
                columns = view.expressions.get("projectList", ())
                wanted = set[int]().union(*(attribute_ids(each) for each in columns if each.id in wanted))
            elif view.kind == "Filter":
                wanted = wanted.union(*map(attribute_ids, view.expressions.get("condition", ())))
            needed.append(wanted)
        return needed[::-1]

    def has_key(self) -> Value:
        """Return whether a change has a key: one without a key is never found."""
        is_whole: Value = literal(True)
        for key in self.found.keys[self.found.table.side]:
            is_whole = choose(is_null(key.expression), literal(False), is_whole)
        return is_whole

    def row(self, at: int) -> Iterator[tuple[str, Value]]:
        """Yield the columns of one side's rows."""
        side = self.found.table.side
        yield self.is_change, literal(at == side)
        parts = [part for key in self.found.keys[at] for part in key.split_letters().values()]
        yield from zip(self.key_columns, parts, strict=True)
        for of, names in ((1 - side, self.of_stream), (side, self.kept)):
            columns = {column.id: column for column in self.found.outputs[of]}
            for number, name in names.items():
                own = columns[number].expression
                yield name, without_collation(columns[number], own if of == at else null_like(own))

    def spec(self, schema: pa.Schema, taken: Collection[str]) -> TableSpec:
        """Return the specification of the join, whose rows are sent with this schema. Raises ``ConfigError`` if changes
        have no order.
        """
        keys, told, kept = (
            pa.schema([schema.field(name) for name in names])
            for names in (self.key_columns, self.told, self.kept.values())
        )
        spec = TableSpec(
            stored_as("table", self.found.keys[self.found.table.side], taken),
            keys,
            self.is_change,
            told,
            kept,
            tuple(self.kept[column.id] for column in self.found.by),
            self.found_column,
            self.found.how in (*_OUTER, _ANTI),
        )
        _check_order(spec)
        return spec

    def meanings(self, spec: TableSpec) -> dict[str, str]:
        """Return what is kept, and in what order."""
        return {
            _ORDER: f"the last by {', '.join(spec.order_by)}",
            **{name: f"table {name}" for name in spec.table_columns.names},
        }

    def results(self, output: Sequence[Column]) -> tuple[list[tuple[Column, Value]], Value | None]:
        """Return the columns of the join's output, of what slots answer, and the condition that its rows pass."""
        found = self.found
        columns = {column.id: column for outputs in found.outputs for column in outputs}
        names = {**self.kept, **self.of_stream, **self.of_key}
        told = {number: cast_back(leaf_column(name), columns[number]) for number, name in names.items()}
        has_row = leaf_column(self.found_column)
        for view, needed in zip(found.table.views, self.needed[1:], strict=True):
            if view.kind == "Filter":
                for condition in view.expressions.get("condition", ()):
                    has_row = choose(with_columns(condition, told), has_row, literal(False))
            elif view.kind == "Project":
                made = [each for each in view.expressions.get("projectList", ()) if each.id in needed]
                told |= {each.id: with_columns(_bare(each), told) for each in made}
        for condition in found.rest:
            has_row = choose(with_columns(condition, told), has_row, literal(False))
        return self._joined(output, told, has_row)

    def _joined(
        self, output: Sequence[Column], told: Mapping[int, Value], has_row: Value
    ) -> tuple[list[tuple[Column, Value]], Value | None]:
        how, columns = self.found.how, list[tuple[Column, Value]]()
        of_stream = {column.id for column in self.found.outputs[1 - self.found.table.side]}
        for column in output:
            made = told.get(column.id, null_like(column.expression))
            if how in _OUTER and column.id not in of_stream:
                made = choose(has_row, made, null_like(made))
            columns.append((column, made))
        if how in _OUTER:
            return columns, None
        return columns, choose(has_row, literal(how != _ANTI), literal(how == _ANTI))


def _check_order(spec: TableSpec) -> None:
    for name in spec.order_by:
        if not is_ordered(spec.table_columns.field(name).type):
            raise ConfigError(
                f"by = {name!r} is {spec.table_columns.field(name).type}, of which none is greater than another",
                remedy="name columns of numbers, times or texts that grow with each change",
                where="riffle_spark.latest",
                id="RIFFLE-0191",
            )


def _bare(column: Expression) -> Expression:
    return column.children[0] if column.kind == "Alias" else column
