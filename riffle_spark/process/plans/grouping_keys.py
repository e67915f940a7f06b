"""What a stage groups by, as key columns of plain types.

A struct, as a window is, is taken apart for the state and put together again for results. Windows and watermarks are
known by the metadata that Spark leaves in a column.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from riffle_spark.process.plans.built import Value, choose, field_of, is_null, literal, normalised, put_together
from riffle_spark.process.plans.columns import Column, catalog_name
from riffle_spark.process.plans.plan_values import Expression
from riffle_spark.process.plans.rules import check_key
from riffle_spark.process.types.stage_specs import TimeSpec, free_name, store_name
from riffle_spark.state.log.paths import check_store_name

__all__ = [
    "DistinctValues",
    "Elements",
    "GroupingKey",
    "KeyColumn",
    "Result",
    "event_time_in",
    "is_exact",
    "key_of",
    "read_elements",
    "read_keys",
    "stored_as",
    "time_of",
    "without_ids",
]

_WINDOWS: Final = {"spark.timeWindow": "time", "spark.sessionWindow": "session"}
_STORE: Final = "riffle.store"
_ALL: Final = "all_rows"
_FOR: Final = "distinct_for"
_ALIKE: Final = ("Max", "Min", "BitAndAgg", "BitOrAgg", "First", "Last", "CollectSet", "HyperLogLogPlusPlus")
"""Functions whose result does not depend on how often a value occurs. Spark's optimiser treats them so, too."""
_OF_VALUES: Final = ("Count", "Sum", "Average")
"""Functions that leave out rows without a value."""
_FLOATING: Final = ("float", "double")
_ID: Final = re.compile(r"#\d+L?")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column that rows are grouped by: its expression in SQL, and whether that differs when a batch runs again."""

    column: Column
    sql: str
    is_random: bool = False

    @property
    def expression(self) -> Expression:
        """Its expression, without the name that it gets."""
        named = self.column.expression
        return named.children[0] if named.kind == "Alias" else named


@dataclass(frozen=True, slots=True)
class Result:
    """A result that is a column under a name: the column's id, the name, and the metadata that the query gives it."""

    of: int
    name: str
    metadata: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """A column of a key: the field at a position, or whether the struct there is null."""

    column: str
    path: tuple[int, ...]
    tells_null: bool = False


@dataclass(frozen=True, slots=True)
class GroupingKey:
    """An expression that rows are grouped by, the column that it is in results, and the key columns that store it.

    ``column`` is ``None`` for the one key of an aggregate that groups by nothing.
    """

    name: str
    expression: Value
    column: Column | None
    parts: tuple[_Part, ...]
    sql: str
    delay_ms: int | None = None
    window: str = ""
    store: str = ""

    @property
    def columns(self) -> list[str]:
        """The names of its key columns."""
        return [part.column for part in self.parts]

    def split_letters(self) -> Mapping[str, Value]:
        """Return its key columns, as expressions of a row."""
        return {part.column: _part_of(self.expression, part) for part in self.parts}

    def put_together(self, columns: Mapping[str, Value]) -> Value:
        """Return it as an expression of its key columns."""
        assert self.column is not None, "an aggregate that groups by nothing has no key in its results"
        values = {part.path: columns[part.column] for part in self.parts if not part.tells_null}
        nulls = {part.path: columns[part.column] for part in self.parts if part.tells_null}
        if self.window:
            nulls[()] = is_null(values[(0,)])  # neither end of a window is null
        return put_together(values, nulls, self.column)


@dataclass(frozen=True, slots=True)
class DistinctValues:
    """The values of which a function counts each once per group, as key columns, and whether a row has any.

    ``function`` is the function in SQL.
    """

    function: str
    keys: tuple[GroupingKey, ...]
    passes: Value

    @property
    def columns(self) -> list[str]:
        """The names of their columns."""
        return [column for key in self.keys for column in key.columns]


@dataclass(frozen=True, slots=True)
class Elements:
    """The columns that stored keys have beside those of their group, if functions count each value once.

    They are the function that a value counts for, and the value. There are none without such a function.
    """

    mark: str
    values: tuple[DistinctValues, ...]

    @property
    def keys(self) -> list[GroupingKey]:
        """The values of all functions."""
        return [key for each in self.values for key in each.keys]

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [self.mark, *(column for key in self.keys for column in key.columns)] if self.values else []

    def split_letters(self) -> dict[str, Value]:
        """Return the columns of values, as expressions of a row, and then for each function whether there is one."""
        columns = {name: part for key in self.keys for name, part in key.split_letters().items()}
        return columns | {f"passes {index}": each.passes for index, each in enumerate(self.values)}


def is_exact(function: Expression) -> bool:
    """Tell whether the result of an aggregate expression depends on that each value counts once."""
    return function.fields.get("isDistinct") is True and function.children[0].kind not in _ALIKE


def read_elements(functions: Sequence[tuple[Expression, str, Sequence[KeyColumn]]], taken: Sequence[str]) -> Elements:
    """Return the values that aggregate expressions count once. Each comes with its text in SQL and its arguments.

    ``taken`` are the names of the group's columns. Raises ``ConfigError`` for what cannot be a key.
    """
    mark, values = free_name(_FOR, taken), list[DistinctValues]()
    used = [*taken, mark]
    for function, sql, arguments in functions:
        keys, passes = list[GroupingKey](), literal(True)
        if len(function.children) > 1:
            passes = function.children[1]
        for argument in arguments:
            keys.append(key_of(argument, [], used))
            used += keys[-1].columns
            if function.children[0].kind in _OF_VALUES:
                passes = choose(is_null(argument.expression), literal(False), passes)
        values.append(DistinctValues(sql, tuple(keys), passes))
    return Elements(mark, tuple(values))


def read_keys(grouping: Sequence[KeyColumn], results: Sequence[Result] = ()) -> list[GroupingKey]:
    """Return what a stage groups by. Without any column it is one key that all rows have.

    Raises ``ConfigError`` for what cannot be a key.
    """
    if not grouping:
        return [GroupingKey(_ALL, literal(0), None, (_Part(_ALL, ()),), "0")]
    keys, taken = list[GroupingKey](), list[str]()
    for each in grouping:
        keys.append(key_of(each, results, taken))
        taken += keys[-1].columns
    return keys


def key_of(grouped: KeyColumn, results: Sequence[Result], taken: Sequence[str]) -> GroupingKey:
    """Return a column as a key. ``taken`` are the names of other key columns."""
    column, expression = grouped.column, grouped.expression
    type_name = catalog_name(column.field)
    check_key({**column.field, "name": grouped.sql}, type_name, grouped.sql, is_random=grouped.is_random)
    stated = _stated(grouped, results)
    name = without_ids(str(stated.get("name") or column.name))
    window = next((kind for mark, kind in _WINDOWS.items() if stated.get(mark)), "")
    is_floating = any(word in type_name for word in _FLOATING)
    used, parts = list(taken), list[_Part]()
    for part, path, tells_null in _fields(
        column.type, name, (), is_nullable=not window and bool(column.field["nullable"])
    ):
        parts.append(_Part(free_name(part, used), path, tells_null))
        used.append(parts[-1].column)
    return GroupingKey(
        name,
        normalised(expression) if is_floating else expression,
        column,
        tuple(parts),
        grouped.sql,
        column.delay_ms,
        window,
        str(stated.get(_STORE) or ""),
    )


def event_time_in(columns: Sequence[Column]) -> Column | None:
    """Return by which of several columns rows are late: a session if there is one, else the first with a watermark."""
    timed = [each for each in columns if each.expression.kind == "AttributeReference" and each.delay_ms is not None]
    return next((each for each in timed if "spark.sessionWindow" in each.metadata), next(iter(timed), None))


def stored_as(kind_of_stage: str, keys: Sequence[GroupingKey], taken: Collection[str]) -> str:
    """Return the name of a stage's store: the name that one of its keys has, or one of its kind and its keys.

    Raises ``ConfigError`` for what cannot be a name.
    """
    named = next((key.store for key in keys if key.store), None)
    names = [key.name for key in keys if key.column is not None]
    return check_store_name(named) if named else store_name(kind_of_stage, names, taken)


def time_of(keys: Sequence[GroupingKey]) -> TimeSpec | None:
    """Return how keys go by event time: by the one that is a session, or the first of them that has a watermark."""
    timed = [key for key in keys if key.window == "session"] or [key for key in keys if key.delay_ms is not None]
    for key in timed[:1]:
        return TimeSpec(key.columns[-1], key.delay_ms, key.window, key.columns[0] if key.window else None)
    return None


def without_ids(name: str) -> str:
    """Return a name without the ids of columns, which differ in each start.

    Spark makes names with ids for what ``rollup`` groups by, and for what ``HAVING`` asks for.
    """
    return _ID.sub("", name)


def _stated(grouped: KeyColumn, results: Sequence[Result]) -> dict[str, object]:
    """Return the metadata of a key, or those of the result that names it; ``name`` among them."""
    is_alias = grouped.column.expression.kind == "Alias"
    stated: dict[str, object] = {**grouped.column.metadata}
    for result in results:
        if result.of == grouped.column.id:
            store = stated.get(_STORE) if result.metadata is None else result.metadata.get(_STORE)
            return {**stated, _STORE: store, "name": result.name if is_alias else None}
    return {**stated, "name": grouped.sql} if is_alias else stated


def _fields(
    data_type: object, name: str, path: tuple[int, ...], *, is_nullable: bool
) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Yield the columns of a type: name, position in it, and whether the column tells that the struct there is null."""
    if not isinstance(data_type, Mapping) or data_type["type"] != "struct":
        yield name, path, False
        return
    if is_nullable:
        yield f"{name}_is_null", path, True
    for index, each in enumerate(data_type["fields"]):
        is_null_too = bool(each["nullable"])
        yield from _fields(each["type"], f"{name}_{each['name']}", (*path, index), is_nullable=is_null_too)


def _part_of(expression: Value, part: _Part) -> Value:
    for index in part.path:
        expression = field_of(expression, index)
    return is_null(expression) if part.tells_null else expression
