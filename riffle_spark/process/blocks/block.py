"""The seam to what users compute. Knows the Arrow shapes of one call. Does not know any computation or stored bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.batch_times import TimeMode
from riffle_spark.process.blocks.failed_keys import Collects
from riffle_spark.state.formats.arrow_values import readable_row
from riffle_spark.state.schemas.variable_kinds import Variable

__all__ = [
    "Batch",
    "BlockComputation",
    "BoolArray",
    "Computation",
    "Declared",
    "ElementBatch",
    "ElementComputation",
    "ElementUpdate",
    "Elements",
    "ExpiringComputation",
    "IndexArray",
    "NamesColumns",
    "Update",
]

IndexArray: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.int32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Declared:
    """What a computation declares once it knows its input.

    ``state`` holds the state columns without the key's, ``output`` all columns of the result. ``columns`` names the
    input columns that are needed besides the key (``None``: all of them), so that the others are dropped before the
    shuffle. ``per_key_group`` asks for one call a key-group; otherwise one call may hold any set of key-groups.
    ``time_mode`` says what its timers go by. ``due`` names a column of state or key that says when a key's time is
    over (ms as 64-bit integers, or timestamps; null: never): then the key goes, and an ``ExpiringComputation`` gets it
    once more. A computation that keeps several variables a key names them instead of ``state``. ``whole`` asks for all
    keys that are stored in each batch, as complete results do; what it costs is what the store holds. ``keyless``: the
    key is one column of whole numbers that is 0 in all rows, and is asked for in each batch, with rows or without.
    ``routed_by`` names the first columns of the key, where rows are to go by these alone: all keys that have them in
    common lie together. The others are null in the key of one that is ``keyless``. ``meanings`` maps results to what
    their state holds: a result that is declared with another meaning cannot continue with the state.
    """

    state: pa.Schema
    output: pa.Schema
    columns: tuple[str, ...] | None
    per_key_group: bool
    time_mode: TimeMode = "None"
    variables: tuple[Variable, ...] | None = None
    due: str | None = None
    whole: bool = False
    keyless: bool = False
    routed_by: tuple[str, ...] = ()
    meanings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """The input of one call.

    ``rows`` are the input rows with their key columns, in the declared order if there is one. ``codes`` holds per row
    the index of its key in ``keys``, which lists each key once; every key has at least one row, but where the ``whole``
    store was asked for: then keys that are stored and have none are among them. Row i of ``state`` and
    of ``found`` belongs to row i of ``keys``; a key that is not ``found`` has no state and a ``state`` row of nulls.
    ``time_ms`` is the batch's time and ``watermark_ms`` the one that earlier batches made; neither is a clock's.
    ``key_group`` is ``None`` where the call holds several. Where ``collects`` takes an error, a function that is called
    key by key goes on with the others, and raises ``FailedKeys`` at the end.
    """

    rows: pa.Table
    codes: IndexArray
    keys: pa.Table
    state: pa.Table
    found: BoolArray
    version: int
    time_ms: int
    watermark_ms: int | None
    key_group: int | None
    store: str = ""
    collects: Collects | None = None

    def key_text(self, key: int) -> str:
        """Return how an error message names a key, by its index."""
        return f"store {self.store!r}, key {readable_row(self.keys, key)}"


@dataclass(frozen=True, slots=True)
class Update:
    """The result of one call.

    ``output`` goes to the sink. ``changed`` holds indices into the batch's keys; row i of ``state`` is the new state of
    key ``changed[i]``. ``deleted`` holds the indices of keys whose state is removed. Keys in neither keep their state.
    """

    output: pa.Table
    changed: IndexArray
    state: pa.Table
    deleted: IndexArray


class Computation(Protocol):
    """What a user computes. A plain picklable object, made on the driver and used on executors."""

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare state and output for these key columns and input columns; ``ConfigError`` if they do not fit."""
        ...


@runtime_checkable
class NamesColumns(Computation, Protocol):
    """A computation that reads columns which its user named, in the spelling that Spark would take."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The names, each once."""
        ...

    @property
    def compared(self) -> tuple[str, ...]:
        """Those of the names whose values are compared with each other."""
        ...

    def on(self, names: Mapping[str, str]) -> Computation:
        """Return the same of columns that the input calls otherwise: names of the input by those of ``sources``."""
        ...


@runtime_checkable
class BlockComputation(Computation, Protocol):
    """A stateful computation on Arrow."""

    def __call__(self, batch: Batch) -> Update:
        """Compute one batch. Must depend on nothing but its argument, so that a batch can run again."""
        ...


@runtime_checkable
class ExpiringComputation(BlockComputation, Protocol):
    """One that has something to say of keys whose time is over."""

    def expired(self, batch: Batch) -> Update:
        """Return output for keys that are due, after what this batch's rows did to them, and the state of those that
        are to stay until the time that it gives them; all others are deleted. The batch has no rows. The order of keys
        means nothing.
        """
        ...


@runtime_checkable
class PlainExpiry(BlockComputation, Protocol):
    """One that writes no key's row again while the key lives, and says nothing of those whose time is over: they are
    counted by their time alone.
    """

    @property
    def forgets(self) -> bool:
        """Whether it is so, of this one."""
        ...


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of one variable: the index of the key of each in a batch's keys, what it holds, a column a field, and
    when it is due (ms), ``NO_DUE`` for never.
    """

    owners: IndexArray
    values: pa.Table
    due_ms: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ElementBatch:
    """The input of one call on elements: ``rows``, ``codes`` and ``keys`` as of any batch, and by variable all elements
    of keys that have rows, and those that are due of other keys, which are the last of ``keys``. What is due at or
    before ``until_ms`` is due in this batch.
    """

    rows: pa.Table
    codes: IndexArray
    keys: pa.Table
    elements: Mapping[str, Elements]
    until_ms: int
    store: str = ""


@dataclass(frozen=True, slots=True)
class ElementUpdate:
    """The result of one call on elements.

    ``added`` are new elements by variable, behind all of their keys' in its list. ``changed`` holds by variable the
    places of elements among those that were given, and what they hold from now on; they stay due as they were.
    ``removed`` are the places of those that go. An element in none of these stays as it is.
    """

    output: pa.Table
    added: Mapping[str, Elements]
    changed: Mapping[str, tuple[IndexArray, pa.Table]]
    removed: Mapping[str, IndexArray]


@runtime_checkable
class ElementComputation(Computation, Protocol):
    """A stateful computation on Arrow whose keys have many elements each, in lists: it declares variables. Each batch
    reads those of touched keys, and writes what has changed.
    """

    def over_elements(self, batch: ElementBatch) -> ElementUpdate:
        """Compute one batch. Must depend on nothing but its argument, so that a batch can run again."""
        ...
