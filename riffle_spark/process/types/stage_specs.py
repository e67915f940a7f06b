"""Specifications of a query's stateful stages: names, Arrow types and plain values that a slot reads without Spark."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

Literal = bool | int | float
_NAME_LENGTH = 64
_NO_COLUMNS = pa.schema([])
_KINDS = {"exact": "aggregate", "within": "distinct", "processor": "groups"}
_NUMBER = re.compile(r"-\d+\Z")
_REFUSED = re.compile(r"[^a-z0-9._-]+|\.\.+")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A column of an aggregate function's buffer, of a single row or of all rows of a key.

    ``literal`` is set if each row's buffer has this value. Rows do not carry such a column. ``meaning`` is the function
    in SQL and Spark's name of the buffer. Columns with different meanings are never taken for each other.
    """

    name: str
    type: pa.DataType
    meaning: str
    literal: Literal | None = None


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """An aggregate function.

    ``function`` is the name of Spark's class, and ``buffers`` are in Spark's order. If rows carry the function's
    ``argument`` (or its hash) in place of one-row buffers, ``buffers`` has a single column: the function's result, or
    the struct that Spark evaluates. ``options`` are constructor arguments by Spark's names: ``evalMode``,
    ``ignoreNulls``, ``delimiter``, ``relativeSD``. ``distinct`` is set if the function counts each value once. It is
    the value of the first element column (see ``AggregateSpec``) in the rows for this function. ``user_function`` is a
    ``UserAggregate``, and its argument is a struct of its columns.
    """

    function: str
    buffers: tuple[Buffer, ...]
    argument: Buffer | None = None
    options: tuple[tuple[str, str], ...] = ()
    distinct: str | None = None
    user_function: object | None = None

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The columns that are merged into the state of a key: the argument, or the buffers."""
        return self.buffers if self.argument is None else (self.argument,)

    @property
    def row_buffers(self) -> tuple[Buffer, ...]:
        """The inputs that rows carry, which are all except literals."""
        return tuple(buffer for buffer in self.inputs if buffer.literal is None)


@dataclass(frozen=True, slots=True)
class TimeSpec:
    """The event time that expires a stage's keys.

    Key column ``column`` is compared with the watermark, which is ``delay_ms`` behind the newest row. Without a delay
    there is no watermark, and sessions never end. For windows ``kind`` is ``time`` or ``session``, and ``start`` is the
    column with the window's start.
    """

    column: str
    delay_ms: int | None
    kind: str = ""
    start: str | None = None


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """An aggregate of a store.

    Keys never expire without ``time``. With ``keyless`` the query has no grouping columns: its one key column is an
    integer that is 0 in all rows.

    ``elements`` is set if functions count distinct values: a column with the function and a column with the value,
    both part of the stored key. A row is sent once for its group, with nulls in these columns, and once for each such
    function.
    """

    store: str
    keys: pa.Schema
    functions: tuple[FunctionSpec, ...]
    time: TimeSpec | None
    keyless: bool = False
    elements: pa.Schema = _NO_COLUMNS

    @property
    def rows(self) -> pa.Schema:
        """The columns of the rows that slots get."""
        row_buffers = _fields(buffer for function in self.functions for buffer in function.row_buffers)
        return pa.schema([*self.keys, *self.elements, *row_buffers])

    @property
    def stored_key(self) -> pa.Schema:
        """The key columns in the store."""
        return pa.schema([*self.routing_key, *self.elements])

    @property
    def routing_key(self) -> pa.Schema:
        """The key columns by which rows are routed. Both ends of a session are left out, because sessions grow."""
        ends = (self.time.start, self.time.column) if self.time and self.time.kind == "session" else ()
        return pa.schema([field for field in self.keys if field.name not in ends])

    @property
    def results(self) -> pa.Schema:
        """The columns that follow the keys in the output: merged buffers, or results."""
        return pa.schema(_fields(buffer for function in self.functions for buffer in function.buffers))

    @property
    def output(self) -> pa.Schema:
        """The columns that Spark evaluates: keys and results."""
        return pa.schema([*self.keys, *self.results])


@dataclass(frozen=True, slots=True)
class DistinctSpec:
    """De-duplication: the first row of each key passes.

    ``output`` are the columns of rows that pass, keys first. Rows are late by column ``time``; without it they
    are never late. Keys expire by column ``due``: a key column, or a state column with the time of
    the first row plus the delay. Without it keys never expire.
    """

    store: str
    keys: pa.Schema
    output: pa.Schema
    time: TimeSpec | None
    due: str | None

    @property
    def stores_due(self) -> bool:
        """Whether ``due`` is a state column."""
        return self.due is not None and self.due not in self.keys.names


@dataclass(frozen=True, slots=True)
class GroupsSpec:
    """A stage that calls a user function with the rows of each key.

    ``visible_columns`` are pairs (name in the function, name in ``rows``). ``event_time`` is the column of ``rows``
    that is compared with the watermark, if the query has one.
    """

    store: str
    keys: pa.Schema
    rows: pa.Schema
    visible_columns: tuple[tuple[str, str], ...]
    output: pa.Schema
    event_time: str | None = None


@dataclass(frozen=True, slots=True)
class JoinSide:
    """An input of a stream-stream join.

    ``output`` are its columns in joined rows. ``key_backed`` maps output columns with the value of a key column to this
    key column. ``buffered`` are the columns of its stored rows: the other output columns, and compared columns.
    Rows for which the boolean column ``filter_column`` is not true match nothing. Rows leave the buffer when the
    watermark reaches column ``due`` plus ``eviction_delay_ms``. Without ``due`` they stay forever.
    """

    output: pa.Schema
    buffered: pa.Schema
    filter_column: str | None = None
    due: str | None = None
    eviction_delay_ms: int = 0
    key_backed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison between a column of the left row and a column of the right row, by an Arrow function
    (``less_equal``).
    """

    left: str
    function: str
    right: str


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """A join of two streams.

    Rows of both sides arrive in the same table. Column ``is_left`` is true for the left side, and columns of the other
    side are null. ``outer`` names the sides with unmatched rows in the output. With ``semi`` each left row is emitted
    once, when it first matches. Rows of both sides are late by column ``event_time``. Null keys are equal, so the
    caller leaves out rows that must not match.
    """

    store: str
    keys: pa.Schema
    is_left: str
    left: JoinSide
    right: JoinSide
    comparisons: tuple[Comparison, ...] = ()
    outer: tuple[str, ...] = ()
    semi: bool = False
    event_time: str | None = None

    @property
    def output(self) -> pa.Schema:
        """The columns of joined rows; with ``semi`` only the left side's columns."""
        sides = (self.left,) if self.semi else (self.left, self.right)
        return pa.schema([field.with_nullable(True) for side in sides for field in side.output])

    @property
    def due_columns(self) -> tuple[str, ...]:
        """The columns of input rows that decide when rows leave the buffers."""
        return tuple(dict.fromkeys(side.due for side in (self.left, self.right) if side.due is not None))


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A join of a stream with a table that keeps the last row per key.

    Rows of the stream and changes of the table arrive in the same table. Column ``is_change`` is true for changes, and
    columns that a row does not have are null. ``stream_columns`` and ``table_columns`` are without the key.
    ``order_by`` names the columns that order the changes of a key. Output column ``match_column`` is true if the table
    had a row for the key. Rows of the stream without a match are emitted only with ``keeps_unmatched``.
    """

    store: str
    keys: pa.Schema
    is_change: str
    stream_columns: pa.Schema
    table_columns: pa.Schema
    order_by: tuple[str, ...]
    match_column: str
    keeps_unmatched: bool

    @property
    def output(self) -> pa.Schema:
        """The columns of joined rows."""
        columns = [*self.keys, *self.stream_columns, *self.table_columns]
        return pa.schema([*(field.with_nullable(True) for field in columns), pa.field(self.match_column, pa.bool_())])


def _fields(buffers: Iterable[Buffer]) -> list[pa.Field]:
    return [pa.field(buffer.name, buffer.type) for buffer in buffers]


def make_store_name(kind: str, keys: Iterable[str], used_names: Mapping[str, object] | Collection[str]) -> str:
    """Return a store's name, made of the kind of stage and the keys, so that it does not depend on other stages.

    A second store of the same kind and keys gets the suffix ``-2``. ``used_names`` are the names of the query's other
    stores.
    """
    plain = (_REFUSED.sub("_", key.lower()).strip("_.-") or "key" for key in keys)
    name = f"{kind}.{'-'.join(plain) or 'all'}"
    return make_unique_name(name[: _NAME_LENGTH - len("-99")].rstrip("_.-"), used_names, "-")


def stage_kind(store: str) -> str:
    """Return the kind of stage that a store's name starts with.

    Kinds that may replace each other count as the same kind.
    """
    kind = store.partition(".")[0]
    return _KINDS.get(kind, kind)


def strip_store_number(store: str) -> str:
    """Return a store's name without the number at its end."""
    return _NUMBER.sub("", store) if "." in store else store


def make_unique_name(name: str, used_names: Mapping[str, object] | Collection[str], separator: str = "_") -> str:
    """Return ``name``, or ``name`` with the smallest number from 2 on that makes it unique among ``used_names``.

    Case is ignored.
    """
    used = {used_name.lower() for used_name in used_names}
    number = 1
    candidate = name
    while candidate.lower() in used:
        number += 1
        candidate = f"{name}{separator}{number}"
    return candidate
