"""The interface of computations on Arrow blocks: their declarations, and the input and result of a call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.batch_times import TimeMode
from riffle_spark.process.blocks.failed_keys import Collects
from riffle_spark.state.formats.arrow_values import readable_row
from riffle_spark.state.schemas.variable_kinds import Variable

IndexArray: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.int32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Declared:
    """The declarations of a computation for its input.

    state: the state columns, without the key's.
    output: all columns of the result.
    columns: the input columns that are needed besides the key, or ``None`` for all. Others are dropped before the
        shuffle.
    per_key_group: whether each call has one key-group. Otherwise a call may have any set of key-groups.
    time_mode: the time that timers and ``due`` are compared with.
    variables: the state variables of a computation with several per key, in place of ``state``.
    due: the state or key column with the time at which a key expires (int64 milliseconds or timestamps, null for
        never). Expired keys are deleted, after an ``ExpiringComputation`` has processed them.
    whole: whether each batch needs all stored keys, as complete output does. The cost grows with the store.
    keyless: whether the key is one integer column that is 0 in all rows. Its key is part of each batch, also without
        rows.
    routed_by: the first columns of the key, if rows are routed by them alone. All keys that share them are in the same
        key-group. The other key columns of a ``keyless`` computation are null in its key.
    meanings: by result, the meaning of its stored values. State with another meaning is not continued.
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
    """The input of a call.

    rows: the input rows with their key columns, in the declared order, if any.
    codes: per row the index of its key in ``keys``.
    keys: each key once. Every key has a row, unless the computation asked for ``whole`` or ``keyless``.
    state: the state of ``keys``, row by row; nulls for keys without state.
    has_state: a mask of the keys with state.
    time_ms, watermark_ms: the time of the batch and the watermark that earlier batches produced. Neither is a clock.
    key_group: the key-group, or ``None`` if the call has several.
    collects: if it accepts the error of a key, a function that is called key by key continues with the other keys and
        raises ``FailedKeys`` at the end.
    """

    rows: pa.Table
    codes: IndexArray
    keys: pa.Table
    state: pa.Table
    has_state: BoolArray
    version: int
    time_ms: int
    watermark_ms: int | None
    key_group: int | None
    store: str = ""
    collects: Collects | None = None

    def key_text(self, key: int) -> str:
        """Return the text of the key with this index, for errors."""
        return f"store {self.store!r}, key {readable_row(self.keys, key)}"


class StateRows(NamedTuple):
    """Numbers of state rows that a batch changed.

    ``added`` are rows that did not exist before, ``updated`` all rows that were written, including added ones, and
    ``removed`` rows that existed and do not exist any more. A store has ``added - removed`` more rows after the batch.
    """

    added: int = 0
    updated: int = 0
    removed: int = 0

    def plus(self, other: "StateRows") -> "StateRows":
        """Return the sums of both."""
        return StateRows(self.added + other.added, self.updated + other.updated, self.removed + other.removed)


NO_STATE_ROWS: Final = StateRows()


@dataclass(frozen=True, slots=True)
class Update:
    """The result of a call.

    ``output`` are the rows for the sink. ``changed`` and ``deleted`` are indices into the batch's keys. Row i of
    ``state`` is the new state of key ``changed[i]``. Keys in neither keep their state. ``rows`` counts the changed
    state rows if a key has several; ``None`` stands for one row per key.
    """

    output: pa.Table
    changed: IndexArray
    state: pa.Table
    deleted: IndexArray
    rows: StateRows | None = None


class Computation(Protocol):
    """A user's computation. Instances are picklable, made on the driver and used on executors."""

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare state and output for these key and input columns. Raises ``ConfigError`` if they do not fit."""
        ...


@runtime_checkable
class NamesColumns(Computation, Protocol):
    """A computation that reads input columns by names that the user wrote."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the input columns as the user wrote them, each once."""
        ...

    @property
    def compared_columns(self) -> tuple[str, ...]:
        """The names of the input columns whose values are compared, such as those of ``min_``."""
        ...

    def with_column_names(self, names: Mapping[str, str]) -> Computation:
        """Return the computation with other input columns.

        ``names`` maps the names in ``sources`` to names in the input.
        """
        ...


@runtime_checkable
class BlockComputation(Computation, Protocol):
    """A stateful computation on Arrow tables."""

    def __call__(self, batch: Batch) -> Update:
        """Compute one batch. The result must depend only on the argument, because a batch may run again."""
        ...


@runtime_checkable
class ExpiringComputation(BlockComputation, Protocol):
    """A computation that processes its expired keys. Other computations' expired keys are deleted without a call."""

    def expire_keys(self, batch: Batch) -> Update:
        """Process expired keys, after the batch's rows. ``batch`` has no rows, and its keys are in any order.

        Keys in ``Update.changed`` keep their new state until its due time. All others are deleted.
        """
        ...


@runtime_checkable
class PlainExpiry(BlockComputation, Protocol):
    """A computation that writes each key at most once and emits nothing when it expires, so that expired keys need not
    be read.
    """

    @property
    def ignores_expiry(self) -> bool:
        """Whether this instance needs no call for expired keys. They are deleted and counted, but not read."""
        ...


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of a variable: per element the index of its key, its values, and its due time (ms, or ``NO_DUE``)."""

    owners: IndexArray
    values: pa.Table
    due_ms: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ElementBatch:
    """The input of a call on elements.

    ``rows``, ``codes`` and ``keys`` are as in ``Batch``. ``elements`` holds by variable all elements of keys with rows,
    and the due elements of other keys. The latter are the last of ``keys``. Elements are due if their time is at or
    before ``until_ms``.
    """

    rows: pa.Table
    codes: IndexArray
    keys: pa.Table
    elements: Mapping[str, Elements]
    until_ms: int
    store: str = ""


@dataclass(frozen=True, slots=True)
class ElementUpdate:
    """The result of a call on elements, by variable.

    ``added`` are new elements, appended to the lists of their keys. ``changed`` holds places in the given elements and
    their new values; their due times stay. ``removed`` holds places of elements to delete. Other elements stay.
    """

    output: pa.Table
    added: Mapping[str, Elements]
    changed: Mapping[str, tuple[IndexArray, pa.Table]]
    removed: Mapping[str, IndexArray]


@runtime_checkable
class ElementComputation(Computation, Protocol):
    """A stateful computation whose keys have lists of many elements, as declared variables.

    A batch reads the elements of touched keys and writes only the changes.
    """

    def over_elements(self, batch: ElementBatch) -> ElementUpdate:
        """Compute one batch. The result must depend only on the argument, because a batch may run again."""
        ...
