"""What an aggregate groups by, as key columns of plain types: a struct, as a window is, is taken apart for the state
and put together again for results. Knows windows and watermarks by the metadata that Spark leaves. Knows no functions.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from riffle_spark.process.plans.rules import check_key
from riffle_spark.process.types.stage_specs import TimeSpec, free_name, store_name
from riffle_spark.spark.plans.plan_nodes import (
    Catalyst,
    Node,
    id_of,
    ids_in,
    is_distinct,
    items,
    kind,
    metadata,
    told_in_sql,
    walk,
)
from riffle_spark.state.log.paths import check_store_name

__all__ = [
    "DistinctValues",
    "Elements",
    "GroupingKey",
    "delay_of",
    "end_of",
    "event_time_of",
    "is_exact",
    "read_elements",
    "read_keys",
    "stored_as",
    "time_of",
    "without_ids",
]

_DELAY = "spark.watermarkDelayMs"
_WINDOWS = {"spark.timeWindow": "time", "spark.sessionWindow": "session"}
_STORE = "riffle.store"
_ALL = "all_rows"
_FOR = "distinct_for"
_ALIKE = ("Max", "Min", "BitAndAgg", "BitOrAgg", "First", "Last", "CollectSet", "HyperLogLogPlusPlus")
"""Functions that make the same of a value that comes once and of one that comes often, as Spark's optimiser has it."""
_OF_VALUES = ("Count", "Sum", "Average")
"""Functions for which a row without a value is none."""
_FLOATING = ("float", "double")
_ID = re.compile(r"#\d+L?")


@dataclass(frozen=True, slots=True)
class _Part:
    """A column of a key: which field of which field it is, or whether a struct is null."""

    column: str
    path: tuple[int, ...]
    tells_null: bool = False


@dataclass(frozen=True, slots=True)
class GroupingKey:
    """One expression that rows are grouped by, the attribute that it is in results, and its columns.

    ``attribute`` is ``None`` for the one key of an aggregate that groups by nothing.
    """

    name: str
    expression: Node
    attribute: Node
    parts: tuple[_Part, ...]
    delay_ms: int | None = None
    window: str = ""
    store: str = ""

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [part.column for part in self.parts]

    def taken_apart(self, catalyst: Catalyst) -> Mapping[str, Node]:
        """Return its columns, as expressions of a row."""
        return {part.column: _part_of(catalyst, self.expression, part) for part in self.parts}

    def put_together(self, catalyst: Catalyst, columns: Mapping[str, Node]) -> Node:
        """Return it as an expression of its columns."""
        told = {part.path: columns[part.column] for part in self.parts if not part.tells_null}
        nulls = {part.path: columns[part.column] for part in self.parts if part.tells_null}
        if self.window:
            nulls[()] = catalyst.is_null(told[(0,)])  # neither end of a window is null
        return _whole(catalyst, self.attribute.dataType(), (), told, nulls)


@dataclass(frozen=True, slots=True)
class DistinctValues:
    """The values of which a function, told by its text, counts each once a group, as columns of keys, and whether a row
    has any.
    """

    function: str
    keys: tuple[GroupingKey, ...]
    passes: Node

    @property
    def columns(self) -> list[str]:
        """The names of their columns."""
        return [column for key in self.keys for column in key.columns]


@dataclass(frozen=True, slots=True)
class Elements:
    """What stored keys have beside the columns of their group, where functions count values: for which function one
    counts, and the value. Without such a function there is nothing.
    """

    mark: str
    values: tuple[DistinctValues, ...]

    @property
    def keys(self) -> list[GroupingKey]:
        """The values of all functions."""
        return [key for one in self.values for key in one.keys]

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [self.mark, *(column for key in self.keys for column in key.columns)] if self.values else []

    def taken_apart(self, catalyst: Catalyst) -> dict[str, Node]:
        """Return the columns of values, as expressions of a row, and then for each function whether there is one."""
        columns = {name: one for key in self.keys for name, one in key.taken_apart(catalyst).items()}
        return columns | {f"passes {index}": value.passes for index, value in enumerate(self.values)}

    def beside(self, catalyst: Catalyst, plan: Node, keys: int, sent: list[str | None]) -> Node:
        """Return a plan's rows once for their group, with the buffers of functions that count rows, and once for each
        function that counts values, where there is one, with it and this function's buffers.

        The plan has so many columns of keys, of buffers those that are ``sent``, by functions, and ``taken_apart``.
        """
        output, owners = items(plan.output()), [value.function for value in self.values]
        beside = [value.function for value in self.values for _ in value.columns]
        buffers, more = output[keys : keys + len(sent)], output[keys + len(sent) :]
        passes: dict[str | None, Node] = dict(zip(owners, more[len(beside) :], strict=True))
        rows = list[list[Node]]()
        for owner in (None, *owners):
            told = catalyst.literal(owner or "")
            values = [one if of == owner else catalyst.null(one) for of, one in zip(beside, more, strict=False)]
            mine = [one if of == owner else catalyst.null(one) for of, one in zip(sent, buffers, strict=True)]
            mark, passing = (told, passes[owner]) if owner else (catalyst.null(told), catalyst.literal(True))
            rows.append([*output[:keys], mark, *values, *mine, passing])
        first, then = ([str(one.name()) for one in columns] for columns in (output[:keys], buffers))
        return catalyst.for_each(rows, [*first, *self.names, *then, "passes"], plan)


def is_exact(function: Node) -> bool:
    """Tell whether it matters that an aggregate expression is to count each value once."""
    return is_distinct(function) and kind(function.aggregateFunction()) not in _ALIKE


def read_elements(catalyst: Catalyst, functions: list[Node], below: Node, taken: list[str]) -> Elements:
    """Return what aggregate expressions are to count once; ``taken`` are the names of the group's columns.

    Raises ``ConfigError`` for what cannot be a key.
    """
    mark, values = free_name(_FOR, taken), list[DistinctValues]()
    used = [*taken, mark]
    for function in filter(is_exact, functions):
        told, keys = function.aggregateFunction(), list[GroupingKey]()
        passes = function.filter().get() if function.filter().isDefined() else catalyst.literal(True)
        for value in items(told.children()):
            keys.append(_read(catalyst, catalyst.alias(value, "value"), [], below, used))
            used += keys[-1].columns
            if kind(told) in _OF_VALUES:
                passes = catalyst.where(catalyst.is_null(value), catalyst.literal(False), passes)
        values.append(DistinctValues(told_in_sql(function), tuple(keys), passes))
    return Elements(mark, tuple(values))


def read_keys(catalyst: Catalyst, grouping: list[Node], results: list[Node], below: Node) -> list[GroupingKey]:
    """Return what an aggregate groups by; without anything, one key that all rows have.

    Raises ``ConfigError`` for what cannot be a key.
    """
    if not grouping:
        return [GroupingKey(_ALL, catalyst.literal(0), None, (_Part(_ALL, ()),))]
    found, taken = list[GroupingKey](), list[str]()
    for one in grouping:
        found.append(_read(catalyst, one, results, below, taken))
        taken += found[-1].columns
    return found


def delay_of(attribute: Node) -> int | None:
    """Return how far the watermark is behind an attribute's newest time; ``None``: it is not of event time."""
    found = json.loads(metadata(attribute)).get(_DELAY)
    return found if isinstance(found, int) else None


def event_time_of(catalyst: Catalyst, node: Node) -> Node | None:
    """Return by what the rows below a stateful node are late, as an expression of them; ``None``: by nothing."""
    named = items(node.groupingExpressions()) if kind(node) == "Aggregate" else items(node.child().output())
    columns = [one.child() if kind(one) == "Alias" else one for one in named]
    timed = [one for one in columns if kind(one) == "AttributeReference" and delay_of(one) is not None]
    found = next((one for one in timed if "spark.sessionWindow" in metadata(one)), next(iter(timed), None))
    return None if found is None else end_of(catalyst, found)


def end_of(catalyst: Catalyst, time: Node) -> Node:
    """Return what of an event time is compared with the watermark: of a window it is the end."""
    return catalyst.field(time, 1) if str(time.dataType().typeName()) == "struct" else time


def stored_as(kind_of_stage: str, keys: list[GroupingKey], taken: Collection[str]) -> str:
    """Return the name of a stage's store: what one of its keys says of it, or what it is and by which keys.

    Raises ``ConfigError`` for what cannot be a name.
    """
    named = next((key.store for key in keys if key.store), None)
    told = [key.name for key in keys if key.attribute is not None]
    return check_store_name(named) if named else store_name(kind_of_stage, told, taken)


def time_of(keys: list[GroupingKey]) -> TimeSpec | None:
    """Return how keys go by event time: by the one that is a session, or the first of them that has a watermark."""
    timed = [key for key in keys if key.window == "session"] or [key for key in keys if key.delay_ms is not None]
    for key in timed[:1]:
        return TimeSpec(key.columns[-1], key.delay_ms, key.window, key.columns[0] if key.window else None)
    return None


def _read(catalyst: Catalyst, named: Node, results: list[Node], below: Node, taken: list[str]) -> GroupingKey:
    expression = named.child() if kind(named) == "Alias" else named
    _check_key(catalyst, expression, below)
    told = _metadata_of(named, results)
    name = without_ids(str(told.get("name") or named.name()))
    window = next((kind for mark, kind in _WINDOWS.items() if told.get(mark)), "")
    if any(word in str(expression.dataType().catalogString()) for word in _FLOATING):
        expression = catalyst.normalised(expression)
    used, parts = list(taken), list[_Part]()
    for column, path, tells_null in _fields(expression.dataType(), name, (), is_nullable=_may_be_null(named, window)):
        parts.append(_Part(free_name(column, used), path, tells_null))
        used.append(parts[-1].column)
    delay, store = told.get(_DELAY), told.get(_STORE)
    return GroupingKey(
        name, expression, named.toAttribute(), tuple(parts), delay if isinstance(delay, int) else None, window,
        str(store or ""),
    )  # fmt: skip


def _check_key(catalyst: Catalyst, expression: Node, below: Node) -> None:
    is_random = not below.deterministic() and not ids_in(expression).isdisjoint(_random_in(below))
    field = catalyst.json_field(expression, told_in_sql(expression))
    check_key(field, str(expression.dataType().catalogString()), str(expression.sql()), is_random=is_random)


def _random_in(plan: Node) -> set[int]:
    """Return the ids of columns that are another one each time: those of which a projection somewhere below says so,
    as Spark makes one of what is random, and those that are made of them.
    """
    found = set[int]()
    for node in reversed([one for one in walk(plan) if kind(one) == "Project"]):
        for one in items(node.projectList()):
            if kind(one) == "Alias" and (not one.deterministic() or not ids_in(one).isdisjoint(found)):
                found.add(id_of(one))
    return found


def without_ids(name: str) -> str:
    """Return a name without ids of columns, others in each start: Spark makes names of what ``rollup`` groups by, and
    of what ``HAVING`` asks for, that have some.
    """
    return _ID.sub("", name)


def _metadata_of(named: Node, results: list[Node]) -> dict[str, object]:
    """Return what is told of a key by Spark, or by the user where it is named in the results; ``name`` among it."""
    told: dict[str, object] = {**json.loads(metadata(named))}
    for one in results:
        is_it = kind(one) == "Alias" and kind(one.child()) == "AttributeReference"
        if is_it and one.child().exprId().equals(named.exprId()):
            given = json.loads(metadata(one))
            told |= {_STORE: given.get(_STORE), "name": str(one.name()) if kind(named) == "Alias" else None}
            break
    else:
        if kind(named) == "Alias":
            told["name"] = told_in_sql(named.child())
    return told


def _may_be_null(named: Node, window: str) -> bool:
    return not window and bool(named.nullable())


def _fields(data_type: Node, name: str, path: tuple[int, ...], *, is_nullable: bool) -> Iterator[
    tuple[str, tuple[int, ...], bool]
]:  # fmt: skip
    """Yield the columns of a type: name, place in it, and whether the column says that the struct there is null."""
    if str(data_type.typeName()) != "struct":
        yield name, path, False
        return
    if is_nullable:
        yield f"{name}_is_null", path, True
    for index, field in enumerate(data_type.fields()):
        yield from _fields(
            field.dataType(), f"{name}_{field.name()}", (*path, index), is_nullable=bool(field.nullable())
        )


def _part_of(catalyst: Catalyst, expression: Node, part: _Part) -> Node:
    for index in part.path:
        expression = catalyst.field(expression, index)
    return catalyst.is_null(expression) if part.tells_null else expression


def _whole(
    catalyst: Catalyst, data_type: Node, path: tuple[int, ...], told: Mapping[tuple[int, ...], Node],
    nulls: Mapping[tuple[int, ...], Node],
) -> Node:  # fmt: skip
    """Return the value at a place of a type, of the columns of its fields."""
    if path in told:
        return catalyst.typed(told[path], data_type)
    fields = {
        str(field.name()): _whole(catalyst, field.dataType(), (*path, index), told, nulls)
        for index, field in enumerate(data_type.fields())
    }
    made = catalyst.struct(fields)
    return catalyst.null_where(nulls[path], made) if path in nulls else made
