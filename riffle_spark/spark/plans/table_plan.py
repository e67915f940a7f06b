"""A join of a stream with a table, of Spark's plan, as a stage: by which key, what of both travels and is kept, and how
results come of a row and what the table has for it. Knows what may stand between the join and the table's changes. Does
not know how the table is kept.

Slots look rows up, no more. What the query makes of the table (columns, conditions), and all that the join asks for
beside the key, is evaluated by Spark on what they answer: so it is as of the row's own batch.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.process.merging.merged_picks import is_ordered
from riffle_spark.process.plans import rules
from riffle_spark.process.plans.cut import Hole, LatestRows, Table, table_of
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.types.stage_specs import TableSpec, free_name
from riffle_spark.spark.engine import routing
from riffle_spark.spark.plans import batch_pieces, grouping_keys, plan_nodes
from riffle_spark.spark.plans.plan_changes import put_in
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, children, id_of, ids_in, items, kind
from riffle_spark.spark.plans.plan_reader import PlanReader

__all__ = ["TablePlan", "read_table"]

_OUTER = ("LeftOuter", "RightOuter")
_ANTI = "LeftAnti"
_ORDER = "latest"
_ATTRIBUTE = "AttributeReference"


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A stage that is such a join: its specification, and its two ends as pieces on the rows of each batch. The holes
    of ``map_side`` are those of the left input and of the right one. ``meanings`` say what is kept, and in what order.
    """

    spec: TableSpec
    meanings: Mapping[str, str]
    map_side: batch_pieces.Piece
    evaluation: batch_pieces.Piece


def read_table(
    reader: PlanReader, stage: PlanNode, taken: tuple[str, ...] = (), read: Collection[int] | None = None
) -> TablePlan:
    """Read such a join of an analysed plan. ``taken`` are names of stores that the query has already, ``read`` the ids
    of columns that somebody reads of it; ``None``: all are read.

    Raises ``ConfigError`` for a join by anything but the table's key, for columns that are no key or have no order, and
    for a store's name that cannot be one.
    """
    catalyst = reader.catalyst
    found = _Found.of(reader, stage)
    rows = _Sent(catalyst, found, read)
    map_side, holes = rows.map_side()
    schema = routing.arrow_schema(catalyst.frame(map_side))
    keys, told, kept = (
        pa.schema([schema.field(name) for name in names]) for names in (rows.key_columns, rows.told, rows.kept.values())
    )
    spec = TableSpec(
        grouping_keys.stored_as("table", found.keys[found.table.side], taken), keys, rows.is_change, told, kept,
        tuple(rows.kept[id_of(one)] for one in found.by), rows.found_column, found.how in (*_OUTER, _ANTI),
    )  # fmt: skip
    _check_order(spec)
    evaluation = plan_nodes.analysed(catalyst.frame(rows.evaluation(spec.answer)))
    return TablePlan(
        spec,
        {_ORDER: f"the last by {', '.join(spec.by)}", **{name: f"table {name}" for name in kept.names}},
        batch_pieces.read_piece(reader, map_side, holes),
        batch_pieces.read_piece(reader, evaluation),
    )


def _check_order(spec: TableSpec) -> None:
    for name in spec.by:
        if not is_ordered(spec.kept.field(name).type):
            raise ConfigError(
                f"by = {name!r} is {spec.kept.field(name).type}, of which none is greater than another",
                remedy="name columns of numbers, times or texts that grow with each change",
                where="riffle_spark.latest",
            )


@dataclass(frozen=True, slots=True)
class _Found:
    """A join with a table: the columns of each side, of the table's those of its changes; the keys of each side, in one
    order; what else has to hold; and the columns by which a change is the last one.
    """

    node: Node
    how: str
    table: Table
    views: tuple[Node, ...]
    outputs: tuple[list[Node], list[Node]]
    keys: tuple[list[grouping_keys.GroupingKey], list[grouping_keys.GroupingKey]]
    rest: list[Node]
    by: list[Node]

    @staticmethod
    def of(reader: PlanReader, stage: PlanNode) -> "_Found":
        """Read a node."""
        table, catalyst, node = table_of(stage), reader.catalyst, reader.found(stage.handle)
        assert table is not None, "a stage of this kind joins a table"
        plans = children(node)
        plans[table.side] = reader.build(table.changes)
        views = tuple(reader.found(view.handle) for view in table.views)
        left, right = (items(one.output()) for one in plans)
        changes = {str(one.name()): one for one in (left, right)[table.side]}
        ids, equal, rest = _key_ids(table.latest, views, changes), dict[str, Node](), list[Node]()
        of_stream = {id_of(one) for one in (left, right)[1 - table.side]}
        for one in plan_nodes.conjuncts(node.condition().get()) if node.condition().isDefined() else ():
            name, other = _equal(one, ids, of_stream)
            if name is None or name in equal:
                rest.append(one)
            else:
                equal[name] = other
        if equal.keys() != set(table.latest.key):
            raise rules.refusal("table_keys", ", ".join(table.latest.key))
        mine = [changes[name] for name in table.latest.key]
        others = [_named(catalyst, equal[name]) for name in table.latest.key]
        of_sides = (others, mine) if table.side else (mine, others)
        one, other = (
            grouping_keys.read_keys(catalyst, named, [], plan) for named, plan in zip(of_sides, plans, strict=True)
        )
        if [len(key.parts) for key in one] != [len(key.parts) for key in other]:
            raise rules.refusal("join_structs", ", ".join(table.latest.key))
        by = [changes[name] for name in table.latest.by]
        return _Found(node, stage.join_type, table, views, (left, right), (one, other), rest, by)


def _key_ids(latest: LatestRows, views: tuple[Node, ...], changes: Mapping[str, Node]) -> dict[int, str]:
    """Return the columns that a table's key has where it is joined, under whatever names, by their ids."""
    known = {id_of(changes[name]): name for name in latest.key}
    for view in (view for view in views if kind(view) == "Project"):
        made = {id_of(one): _bare(one) for one in items(view.projectList())}
        plain = {at: id_of(one) for at, one in made.items() if kind(one) == _ATTRIBUTE}
        known = {at: known[of] for at, of in plain.items() if of in known}
    return known


def _equal(condition: Node, keys: Mapping[int, str], of_stream: Collection[int]) -> tuple[str | None, Node]:
    """Return which column of a table's key equals what of the stream, if that is what a condition says."""
    if kind(condition) == "EqualTo":
        for one, other in (children(condition), children(condition)[::-1]):
            told = ids_in(other)
            if kind(one) == _ATTRIBUTE and id_of(one) in keys and told and told <= set(of_stream):
                return keys[id_of(one)], other
    return None, None


def _named(catalyst: Catalyst, expression: Node) -> Node:
    """Return a key as a column: the attribute that it is, or else under a name."""
    is_plain = kind(expression) == _ATTRIBUTE
    return expression if is_plain else catalyst.alias(expression, plan_nodes.told_in_sql(expression))


@dataclass(slots=True)
class _Sent:
    """What is sent of rows, by names that are one's alone: key columns; columns of the table and of the stream, by the
    ids of attributes, where those are not the key's as they are (``of_key``). ``needed`` are the columns that are
    wanted of the table in front of the first of its views, and behind each.
    """

    catalyst: Catalyst
    found: _Found
    read: Collection[int] | None
    key_columns: list[str] = field(default_factory=list)
    kept: dict[int, str] = field(default_factory=dict)
    of_stream: dict[int, str] = field(default_factory=dict)
    of_key: dict[int, str] = field(default_factory=dict)
    needed: list[set[int]] = field(default_factory=list)
    is_change: str = "is_change"
    found_column: str = "found"

    def __post_init__(self) -> None:
        found, side = self.found, self.found.table.side
        self.key_columns = [column for key in found.keys[side] for column in key.columns]
        for keys in found.keys:
            for key, named in zip(keys, found.keys[side], strict=True):
                if kind(key.expression) == _ATTRIBUTE and len(key.parts) == 1:
                    self.of_key[id_of(key.expression)] = named.columns[0]
        self.needed = self._needed()
        by = {id_of(one) for one in found.by}
        for one in found.outputs[side]:
            if id_of(one) in by or (id_of(one) in self.needed[0] and id_of(one) not in self.of_key):
                self.kept[id_of(one)] = self._free(str(one.name()))
        beside = set[int]().union(*map(ids_in, found.rest))
        for one in found.outputs[1 - side]:
            is_read = self.read is None or id_of(one) in self.read or id_of(one) in beside
            if is_read and id_of(one) not in self.of_key:
                self.of_stream[id_of(one)] = self._free(str(one.name()))
        self.is_change, self.found_column = self._free(self.is_change), self._free(self.found_column)

    @property
    def told(self) -> list[str]:
        """The columns of the stream's rows."""
        return list(self.of_stream.values())

    def _free(self, name: str) -> str:
        return free_name(name, [*self.key_columns, *self.kept.values(), *self.told])

    def _needed(self) -> list[set[int]]:
        wanted = {id_of(one) for one in items(children(self.found.node)[self.found.table.side].output())}
        needed = [wanted]
        for view in reversed(self.found.views):
            if kind(view) == "Project":
                wanted = set[int]().union(*(ids_in(one) for one in items(view.projectList()) if id_of(one) in wanted))
            elif kind(view) == "Filter":
                wanted = wanted | ids_in(view.condition())
            needed.append(wanted)
        return needed[::-1]

    def map_side(self) -> tuple[Node, tuple[Hole, ...]]:
        """Return the rows of both sides as one plan, and where the inputs go. A change without a key is never found."""
        spark, holes, sides = self.catalyst, list[Hole](), list[Node]()
        for at, keys in enumerate(self.found.keys):
            below = spark.no_rows(spark.seq(self.found.outputs[at]))
            if at == self.found.table.side:
                is_whole = spark.literal(True)
                for key in keys:
                    is_whole = spark.where(spark.is_null(key.expression), spark.literal(False), is_whole)
                below = spark.named("plans.logical.Filter")(is_whole, below)
            sides.append(spark.project(list(self._row(at)), below))
            holes.append(Hole((at, 0, 0) if at == self.found.table.side else (at, 0), at))
        return spark.filled("plans.logical.Union", spark.seq(sides)), tuple(holes)

    def _row(self, at: int) -> Iterator[Node]:
        """Yield the columns of one side's rows."""
        spark, side = self.catalyst, self.found.table.side
        yield spark.alias(spark.literal(at == side), self.is_change)
        parts = [one for key in self.found.keys[at] for one in key.taken_apart(spark).values()]
        yield from (spark.alias(one, name) for name, one in zip(self.key_columns, parts, strict=True))
        for of, columns in ((1 - side, self.of_stream), (side, self.kept)):
            attributes = {id_of(one): one for one in self.found.outputs[of]}
            for number, name in columns.items():
                own = attributes[number] if of == at else spark.null(attributes[number])
                yield spark.alias(spark.plain(own), name)

    def evaluation(self, answer: pa.Schema) -> Node:
        """Return the plan of the join's rows, under its own attributes, of what slots answer."""
        spark, found = self.catalyst, self.found
        frame = spark.spark.createDataFrame([], routing.spark_schema(answer))
        leaf = spark.no_rows(plan_nodes.analysed(frame).output())
        columns = {str(one.name()): one for one in items(leaf.output())}
        types = {id_of(one): one.dataType() for output in found.outputs for one in output}
        names = {**self.kept, **self.of_stream, **self.of_key}
        told = {at: spark.typed(columns[name], types[at]) for at, name in names.items()}
        has_row = columns[self.found_column]
        for view, needed in zip(found.views, self.needed[1:], strict=True):
            if kind(view) == "Filter":
                has_row = self._where(view.condition(), has_row, told)
            elif kind(view) == "Project":
                made = [one for one in items(view.projectList()) if id_of(one) in needed]
                told |= {id_of(one): put_in(spark, _bare(one), told) for one in made}
        for one in found.rest:
            has_row = self._where(one, has_row, told)
        return self._joined(leaf, told, has_row)

    def _where(self, condition: Node, has_row: Node, told: Mapping[int, Node]) -> Node:
        """Return whether the table has a row, where only those count for which a condition holds."""
        return self.catalyst.where(put_in(self.catalyst, condition, told), has_row, self.catalyst.literal(False))

    def _joined(self, leaf: Node, told: Mapping[int, Node], has_row: Node) -> Node:
        """Return the rows and columns that the join has; those that nobody reads are null."""
        spark, how, side = self.catalyst, self.found.how, self.found.table.side
        output, columns = items(self.found.node.output()), list[Node]()
        of_stream = {id_of(one) for one in self.found.outputs[1 - side]}
        for one in output:
            made = told[id_of(one)] if id_of(one) in told else spark.null(one)
            if how in _OUTER and id_of(one) not in of_stream:
                made = spark.where(has_row, made, spark.null(made))
            columns.append(spark.alias(made, str(one.name()), one.exprId()))
        if how not in _OUTER:
            passes = spark.where(has_row, spark.literal(how != _ANTI), spark.literal(how == _ANTI))
            leaf = spark.named("plans.logical.Filter")(passes, leaf)
        return spark.project(columns, leaf)


def _bare(column: Node) -> Node:
    return column.child() if kind(column) == "Alias" else column
