"""The grouping columns of a stage, as key columns of plain types.

A struct, such as a window, is split into its fields for the state and assembled again for results. Windows and
watermarks are recognised by Spark's column metadata.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from riffle_spark.process.plans.columns import Column, catalog_name
from riffle_spark.process.plans.new_expressions import (
    Value,
    assemble_struct,
    field_of,
    if_else,
    is_null,
    literal,
    normalise_floats,
)
from riffle_spark.process.plans.plan_values import Expression
from riffle_spark.process.plans.rules import check_key
from riffle_spark.process.types.stage_specs import TimeSpec, make_store_name, make_unique_name
from riffle_spark.state.log.paths import check_store_name

_WINDOWS: Final = {"spark.timeWindow": "time", "spark.sessionWindow": "session"}
_STORE: Final = "riffle.store"
"""The metadata key with which a query names the store of a stage."""
_ALL: Final = "all_rows"
_DISTINCT_FOR: Final = "distinct_for"
_IGNORES_DISTINCT: Final = ("Max", "Min", "BitAndAgg", "BitOrAgg", "First", "Last", "CollectSet", "HyperLogLogPlusPlus")
"""Functions whose result is the same with and without DISTINCT, as Spark's optimiser also knows."""
_SKIPS_NULLS: Final = ("Count", "Sum", "Average")
"""Functions that ignore rows without a value."""
_FLOATING: Final = ("float", "double")
_ID: Final = re.compile(r"#\d+L?")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A grouping column: its expression in SQL, and whether its value differs if a batch runs again."""

    column: Column
    sql: str
    is_random: bool = False

    @property
    def expression(self) -> Expression:
        """The grouping expression without its alias."""
        expression = self.column.expression
        return expression.children[0] if expression.kind == "Alias" else expression


@dataclass(frozen=True, slots=True)
class Result:
    """A result that names a grouping column: the column's id, the name, and metadata if the query sets any."""

    column_id: int
    name: str
    metadata: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """A key column: the field at a position of the key, or a flag that the struct at that position is null."""

    column: str
    path: tuple[int, ...]
    is_null_flag: bool = False


@dataclass(frozen=True, slots=True)
class GroupingKey:
    """A grouping expression, its column in results, and the key columns that store it.

    ``column`` is ``None`` for the constant key of an aggregate without grouping columns.
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
        """The names of the key columns that store this grouping expression."""
        return [part.column for part in self.parts]

    @property
    def is_stored_whole(self) -> bool:
        """Whether one key column holds the value itself. For a struct with one field, the column only has the field."""
        return [part.path for part in self.parts] == [()]

    def column_values(self) -> Mapping[str, Value]:
        """Return the expression of each key column, by its name, over an input row."""
        return {part.column: _extract_part(self.expression, part) for part in self.parts}

    def assemble(self, columns: Mapping[str, Value]) -> Value:
        """Return the grouping expression, assembled from its key columns. ``columns`` has their expressions by name."""
        assert self.column is not None, "an aggregate without grouping columns has no key in its results"
        values = {part.path: columns[part.column] for part in self.parts if not part.is_null_flag}
        nulls = {part.path: columns[part.column] for part in self.parts if part.is_null_flag}
        if self.window:
            nulls[()] = is_null(values[(0,)])  # Neither end of a window is null.
        return assemble_struct(values, nulls, self.column)


@dataclass(frozen=True, slots=True)
class DistinctValues:
    """The values that a function with DISTINCT counts, as key columns. ``condition`` is true for rows with a value.

    ``function`` is the function in SQL.
    """

    function: str
    keys: tuple[GroupingKey, ...]
    condition: Value

    @property
    def columns(self) -> list[str]:
        """The names of the key columns of the values."""
        return [column for key in self.keys for column in key.columns]


@dataclass(frozen=True, slots=True)
class ElementColumns:
    """The element columns: columns of stored keys after the grouping columns, if functions have DISTINCT.

    They are the text of the function that counts a value, and the values of all functions.
    """

    function_column: str
    values: tuple[DistinctValues, ...]

    @property
    def keys(self) -> list[GroupingKey]:
        """The values that functions with DISTINCT count, as grouping keys."""
        return [key for value in self.values for key in value.keys]

    @property
    def names(self) -> list[str]:
        """The names of the element columns; empty without DISTINCT."""
        return [self.function_column, *(column for key in self.keys for column in key.columns)] if self.values else []

    def column_values(self) -> dict[str, Value]:
        """Return the expression of each value column over an input row, followed by the condition of each function."""
        columns = {name: value for key in self.keys for name, value in key.column_values().items()}
        return columns | {f"passes {index}": value.condition for index, value in enumerate(self.values)}


def counts_distinct(function: Expression) -> bool:
    """Return whether an aggregate expression has a DISTINCT that changes its result."""
    return function.fields.get("isDistinct") is True and function.children[0].kind not in _IGNORES_DISTINCT


def read_projected_results(columns: Sequence[Expression], results: Sequence[Expression]) -> tuple[Expression, ...]:
    """Return the columns of a projection above an aggregate, with the aggregate's results in place of their attributes.

    Spark 4 splits an aggregate with functions such as ``count_if`` or with ``BETWEEN``. Its results get generated names
    like ``_aggregateexpression``. Only the projection has the aliases of the query.
    """
    by_id = {result.id: result.children[0] if result.kind == "Alias" else result for result in results}

    def read_result(child: Expression) -> Expression:
        return by_id.get(child.id, child) if child.kind == "AttributeReference" else child

    return tuple(replace(column, children=tuple(map(read_result, column.children))) for column in columns)


def read_element_columns(
    functions: Sequence[tuple[Expression, str, Sequence[KeyColumn]]], used_names: Sequence[str]
) -> ElementColumns:
    """Return the element columns for functions with DISTINCT. ``functions`` are triples of expression, SQL and
    arguments.

    ``used_names`` are the names of the grouping columns. Raises ``ConfigError`` for values that cannot be keys.
    """
    function_column = make_unique_name(_DISTINCT_FOR, used_names)
    used = [*used_names, function_column]
    values = list[DistinctValues]()
    for function, sql, arguments in functions:
        keys = list[GroupingKey]()
        condition: Value = function.children[1] if len(function.children) > 1 else literal(True)
        for argument in arguments:
            keys.append(read_grouping_key(argument, [], used))
            used += keys[-1].columns
            if function.children[0].kind in _SKIPS_NULLS:
                condition = if_else(is_null(argument.expression), literal(False), condition)
        values.append(DistinctValues(sql, tuple(keys), condition))
    return ElementColumns(function_column, tuple(values))


def read_grouping_keys(grouping: Sequence[KeyColumn], results: Sequence[Result] = ()) -> list[GroupingKey]:
    """Return the grouping keys of a stage. Without grouping columns it is a single constant key.

    ``results`` name the columns in the output. Raises ``ConfigError`` for columns that cannot be keys.
    """
    if not grouping:
        return [GroupingKey(_ALL, literal(0), None, (_Part(_ALL, ()),), "0")]
    keys = list[GroupingKey]()
    used_names = list[str]()
    for key_column in grouping:
        keys.append(read_grouping_key(key_column, results, used_names))
        used_names += keys[-1].columns
    return keys


def read_grouping_key(grouped: KeyColumn, results: Sequence[Result], used_names: Sequence[str]) -> GroupingKey:
    """Return a grouping column as a key.

    ``used_names`` are the names of other key columns. Raises ``ConfigError`` if it cannot be a key.
    """
    column = grouped.column
    type_name = catalog_name(column.field)
    check_key({**column.field, "name": grouped.sql}, type_name, grouped.sql, is_random=grouped.is_random)
    metadata = _key_metadata(grouped, results)
    name = remove_column_ids(str(metadata.get("name") or column.name))
    window = next((kind for key, kind in _WINDOWS.items() if metadata.get(key)), "")
    is_floating = any(floating in type_name for floating in _FLOATING)
    parts = list[_Part]()
    used = list(used_names)
    is_nullable = not window and bool(column.field["nullable"])
    for part_name, path, is_null_flag in _flatten_type(column.type, name, (), is_nullable=is_nullable):
        parts.append(_Part(make_unique_name(part_name, used), path, is_null_flag))
        used.append(parts[-1].column)
    return GroupingKey(
        name,
        normalise_floats(grouped.expression) if is_floating else grouped.expression,
        column,
        tuple(parts),
        grouped.sql,
        column.delay_ms,
        window,
        str(metadata.get(_STORE) or ""),
    )


def find_event_time(columns: Sequence[Column]) -> Column | None:
    """Return the column that decides which rows are late: a session window, else the first column with a watermark."""
    timed = [
        column for column in columns if column.expression.kind == "AttributeReference" and column.delay_ms is not None
    ]
    sessions = [column for column in timed if "spark.sessionWindow" in column.metadata]
    return next(iter([*sessions, *timed]), None)


def choose_store_name(stage_kind: str, keys: Sequence[GroupingKey], used_stores: Collection[str]) -> str:
    """Return the name of a stage's store: the name in a key's metadata, else a name made of the kind of stage and the
    keys.

    ``used_stores`` are the names of the query's other stores. Raises ``ConfigError`` for an invalid name.
    """
    name = next((key.store for key in keys if key.store), None)
    key_names = [key.name for key in keys if key.column is not None]
    return check_store_name(name) if name else make_store_name(stage_kind, key_names, used_stores)


def make_time_spec(keys: Sequence[GroupingKey]) -> TimeSpec | None:
    """Return the event time that expires keys: the session window's, else that of the first key with a watermark;
    ``None`` without one.
    """
    timed = [key for key in keys if key.window == "session"] or [key for key in keys if key.delay_ms is not None]
    if not timed:
        return None
    key = timed[0]
    return TimeSpec(key.columns[-1], key.delay_ms, key.window, key.columns[0] if key.window else None)


def remove_column_ids(name: str) -> str:
    """Return a name without Spark's column ids, which differ in each start.

    Spark puts ids into the names of ``rollup`` columns and of ``HAVING`` conditions.
    """
    return _ID.sub("", name)


def _key_metadata(grouped: KeyColumn, results: Sequence[Result]) -> dict[str, object]:
    """Return the metadata of a grouping column, updated by the metadata that the results give it."""
    is_alias = grouped.column.expression.kind == "Alias"
    metadata: dict[str, object] = {**grouped.column.metadata}
    for result in results:
        if result.column_id == grouped.column.id:
            store = metadata.get(_STORE) if result.metadata is None else result.metadata.get(_STORE)
            return {**metadata, _STORE: store, "name": result.name if is_alias else None}
    return {**metadata, "name": grouped.sql} if is_alias else metadata


def _flatten_type(
    data_type: object, name: str, path: tuple[int, ...], *, is_nullable: bool
) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Yield the key columns of a type, one per field that is not a struct: name, position, and whether the column is
    the flag that a struct is null.
    """
    if not isinstance(data_type, Mapping) or data_type["type"] != "struct":
        yield name, path, False
        return
    if is_nullable:
        yield f"{name}_is_null", path, True
    for index, field in enumerate(data_type["fields"]):
        field_name = f"{name}_{field['name']}"
        yield from _flatten_type(field["type"], field_name, (*path, index), is_nullable=bool(field["nullable"]))


def _extract_part(expression: Value, part: _Part) -> Value:
    """Return the expression of one key column: the field of a grouping expression, or the flag that it is null."""
    for index in part.path:
        expression = field_of(expression, index)
    return is_null(expression) if part.is_null_flag else expression
