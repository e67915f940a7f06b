"""What the stages of a query are to do, as Spark's plans said it: names, Arrow types and plain words alone, so that a
slot needs no Spark to do it. Knows no plan, and no way to compute any of it.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

__all__ = [
    "AggregateSpec",
    "Buffer",
    "Comparison",
    "DistinctSpec",
    "FunctionSpec",
    "GroupsSpec",
    "JoinSide",
    "JoinSpec",
    "Literal",
    "TableSpec",
    "TimeSpec",
    "bare_name",
    "free_name",
    "kind_of",
    "store_name",
]

Literal = bool | int | float
_NAME_LENGTH = 64
_NO_COLUMNS = pa.schema([])
_KINDS = {"exact": "aggregate", "within": "distinct", "processor": "groups"}
_NUMBER = re.compile(r"-\d+\Z")
_REFUSED = re.compile(r"[^a-z0-9._-]+|\.\.+")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A column in which a function keeps what it has seen: one row, as it comes, or all rows of a key.

    ``literal`` is what it is for every row that comes, if that is always the same: such rows do not bring the column.
    ``meaning`` is the function in SQL and Spark's name of the buffer: what has another meaning is another column.
    """

    name: str
    type: pa.DataType
    meaning: str
    literal: Literal | None = None


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """One aggregate function: Spark's name of its class, its buffers in Spark's order, and what else it was told.

    ``given`` is the column of the function's argument, or of its hash, where that is sent instead of one-row buffers:
    then ``buffers`` is one column, of the function's result or of all that Spark evaluates. ``facts`` are what its
    class says beside, by Spark's names: ``evalMode``, ``ignoreNulls``, ``delimiter``, ``relativeSD``. ``distinct`` says
    what is in the first column of elements (``AggregateSpec``) of its rows, if it is over values that are each to count
    once. ``own`` is a user's (``UserAggregate``), whose argument is a struct of what it is called with.
    """

    function: str
    buffers: tuple[Buffer, ...]
    given: Buffer | None = None
    facts: tuple[tuple[str, str], ...] = ()
    distinct: str | None = None
    own: object | None = None

    @property
    def taken(self) -> tuple[Buffer, ...]:
        """What it takes of each row, and so what is kept of a key."""
        return self.buffers if self.given is None else (self.given,)

    @property
    def sent(self) -> tuple[Buffer, ...]:
        """What a row brings, each a column."""
        return tuple(buffer for buffer in self.taken if buffer.literal is None)


@dataclass(frozen=True, slots=True)
class TimeSpec:
    """How a stage's keys go by event time: ``column`` of the key is compared with the watermark, ``delay_ms`` behind
    the newest row. ``start`` is the other end of a window, whose ``kind`` is ``time`` or ``session``; else it is none.
    Without a delay there is no watermark, and no session ever leaves.
    """

    column: str
    delay_ms: int | None
    kind: str = ""
    start: str | None = None


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """An aggregate of one store, by its key columns and its functions. ``time`` is ``None`` where keys never leave.
    ``keyless``: it groups by nothing, and has one key column, of whole numbers, that is 0 in all rows.

    ``elements`` are columns that stored keys have beside, where functions are over distinct values: for which function
    a value counts, and the value. A row comes once for its group, with nulls there, and once for each such function.
    """

    store: str
    keys: pa.Schema
    functions: tuple[FunctionSpec, ...]
    time: TimeSpec | None
    keyless: bool = False
    elements: pa.Schema = _NO_COLUMNS

    @property
    def rows(self) -> pa.Schema:
        """The columns of the rows that come."""
        sent = _fields(buffer for function in self.functions for buffer in function.sent)
        return pa.schema([*self.keys, *self.elements, *sent])

    @property
    def stored(self) -> pa.Schema:
        """The columns of the key that state is kept by."""
        return pa.schema([*self.routed, *self.elements])

    @property
    def routed(self) -> pa.Schema:
        """The columns of the key that rows are routed by: sessions grow, so these are not."""
        ends = (self.time.start, self.time.column) if self.time and self.time.kind == "session" else ()
        return pa.schema([field for field in self.keys if field.name not in ends])

    @property
    def results(self) -> pa.Schema:
        """The columns of merged buffers, or of the values that stand for them."""
        return pa.schema(_fields(buffer for function in self.functions for buffer in function.buffers))

    @property
    def answer(self) -> pa.Schema:
        """The columns of what Spark evaluates: keys and results."""
        return pa.schema([*self.keys, *self.results])


@dataclass(frozen=True, slots=True)
class DistinctSpec:
    """Rows of which the first of each key passes. ``told`` are the columns of rows that pass, those of keys first.

    ``time`` says by which column rows are late, be it among those or one beside them; ``None``: they never are. ``due``
    names the column by which keys leave: one of theirs, or else one that the state has of them, the first row's time
    and the delay; ``None``: they never leave.
    """

    store: str
    keys: pa.Schema
    told: pa.Schema
    time: TimeSpec | None
    due: str | None

    @property
    def is_kept_for_a_while(self) -> bool:
        """Whether keys are kept until the first row's time is over, and not by what they are."""
        return self.due is not None and self.due not in self.keys.names


@dataclass(frozen=True, slots=True)
class GroupsSpec:
    """A stage in which a user's own function gets the rows of each key. ``shown`` are the columns that it sees, by
    their names and by those that they have in ``rows``; ``event_time`` is the column there that is compared with the
    watermark, where the query has one.
    """

    store: str
    keys: pa.Schema
    rows: pa.Schema
    shown: tuple[tuple[str, str], ...]
    output: pa.Schema
    event_time: str | None = None


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One of the two inputs of a join. ``told`` are its columns in pairs; those of them that are the key's have its
    columns in ``of_key``. ``kept`` is what its rows are kept with: the others, and what is compared. ``passes`` is the
    column that says which rows may have a partner; without one all may.

    A row leaves once the watermark has reached the time in column ``due``, moved by ``later_ms``; ``None``: never.
    """

    told: pa.Schema
    kept: pa.Schema
    passes: str | None = None
    due: str | None = None
    later_ms: int = 0
    of_key: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """What has to hold between a column of a left row and one of a right row, in Arrow's words: ``less_equal``."""

    left: str
    function: str
    right: str


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """A join of two streams whose rows come together, those of the left side told by column ``is_left``. What a side
    does not have is null in the other's rows. Rows without a partner are answered for the sides of ``outer``, and
    with ``semi`` left rows alone, once they have one. ``late`` is the column by which rows of both sides are late.

    Two keys are the same where both are null: who wants no such pairs leaves such rows out.
    """

    store: str
    keys: pa.Schema
    is_left: str
    left: JoinSide
    right: JoinSide
    compared: tuple[Comparison, ...] = ()
    outer: tuple[str, ...] = ()
    semi: bool = False
    late: str | None = None

    @property
    def answer(self) -> pa.Schema:
        """The columns of what is answered: those of the left side, and where pairs are asked for of the right one."""
        sides = (self.left,) if self.semi else (self.left, self.right)
        return pa.schema([field.with_nullable(True) for side in sides for field in side.told])

    @property
    def times(self) -> tuple[str, ...]:
        """The columns of rows that say when they leave."""
        return tuple(dict.fromkeys(side.due for side in (self.left, self.right) if side.due is not None))


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table, and a stream that is joined with it; their rows come together, those that change the table are told by
    column ``is_change``. ``told`` are the columns of the stream's rows and ``kept`` those of the table's, beside their
    key; what a row does not have is null. ``by`` names the columns of these, or of the key, that say which row of a key
    is the last one. ``found`` is the column that says of an answer whether the table had a row for it; only with
    ``alone`` are those answered for which it had none.
    """

    store: str
    keys: pa.Schema
    is_change: str
    told: pa.Schema
    kept: pa.Schema
    by: tuple[str, ...]
    found: str
    alone: bool

    @property
    def answer(self) -> pa.Schema:
        """The columns of what is answered."""
        columns = [*self.keys, *self.told, *self.kept]
        return pa.schema([*(one.with_nullable(True) for one in columns), pa.field(self.found, pa.bool_())])


def _fields(buffers: Iterable[Buffer]) -> list[pa.Field]:
    return [pa.field(buffer.name, buffer.type) for buffer in buffers]


def store_name(kind: str, keys: Iterable[str], taken: Mapping[str, object] | Collection[str]) -> str:
    """Return a store's name: what it is and by which keys, so that stages before and behind it do not change it. A
    second one of a name has ``-2`` at its end.
    """
    plain = (_REFUSED.sub("_", key.lower()).strip("_.-") or "key" for key in keys)
    name = f"{kind}.{'-'.join(plain) or 'all'}"
    return free_name(name[: _NAME_LENGTH - len("-99")].rstrip("_.-"), taken, "-")


def kind_of(store: str) -> str:
    """Return what kind of a stage a store's name says; kinds of which one may become another in a query are one."""
    told = store.partition(".")[0]
    return _KINDS.get(told, told)


def bare_name(store: str) -> str:
    """Return a store's name without the number that tells it from others of one kind and the same keys."""
    return _NUMBER.sub("", store) if "." in store else store


def free_name(name: str, taken: Mapping[str, object] | Collection[str], between: str = "_") -> str:
    """Return a name that is not taken, in small letters or large: itself, or with the least number from 2 on."""
    used = {one.lower() for one in taken}
    number, found = 1, name
    while found.lower() in used:
        number += 1
        found = f"{name}{between}{number}"
    return found
