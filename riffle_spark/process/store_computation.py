"""What users compute, as computations on a store. Knows which kind of store each kind of them keeps, and what that asks
of a slot. Does not know how a slot answers.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import pyarrow as pa

from riffle_spark.batch_times import Times
from riffle_spark.errors import ConfigError
from riffle_spark.process.blocks.block import BlockComputation, Computation, Declared, ElementComputation
from riffle_spark.process.processors.processing import Processing, ProcessorComputation
from riffle_spark.state.formats.due_times import DUE_ORDER, can_be_due
from riffle_spark.state.formats.part_codec import DELETED, HASH
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import StoreSchema
from riffle_spark.state.schemas.variables import OURS, VariableColumns

__all__ = ["SlotState", "StoreComputation", "check_names", "on_store"]

_IN_PARTS = frozenset({HASH, DELETED, DUE_ORDER})
_WITH_ROWS = "__riffle_"
"""So begin the names of all columns that go with rows, to slots, to sinks and into another dispatch."""

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class SlotState(Protocol[Result_co]):
    """The input of one slot and the state below it. Each way of computing on them gives what became of both."""

    def over_tables(self, schema: PlainColumns, compute: BlockComputation) -> Result_co:
        """Read the state of all touched keys, then call once with it or, if that was declared, once a key-group. Then
        do the same with keys that are due.
        """
        ...

    def over_readings(self, schema: VariableColumns, processing: Callable[[Times, str], Processing]) -> Result_co:
        """Process key-group by key-group, those with something due too, each with its copy open to be read."""
        ...

    def over_elements(self, schema: VariableColumns, compute: ElementComputation) -> Result_co:
        """Read the elements of all touched keys and those that are due, and call once with them."""
        ...


class StoreComputation(Protocol):
    """A computation of either kind: what store it keeps, and how it runs in a slot."""

    @property
    def takes_initial(self) -> bool:
        """Whether it has a use for initial state."""
        ...

    def schema(self, store: str, key: pa.Schema, declared: Declared) -> StoreSchema:
        """Return the columns of its store."""
        ...

    def run(self, store: str, schema: Mapping[str, str], slot: SlotState[Result]) -> Result:
        """Compute on one slot's input and state; ``schema`` is the text of the store's."""
        ...


@dataclass(frozen=True, slots=True)
class _Block:
    given: BlockComputation
    takes_initial: bool = False

    def schema(self, store: str, key: pa.Schema, declared: Declared) -> PlainColumns:
        check_names(store, [*key.names, *declared.state.names], _IN_PARTS)
        if declared.due is None:
            return PlainColumns(store, key, declared.state, routed_by=declared.routed_by)
        _check_due(store, key, declared, declared.due)
        return PlainColumns(store, key, declared.state, declared.due, declared.time_mode, routed_by=declared.routed_by)

    def run(self, store: str, schema: Mapping[str, str], slot: SlotState[Result]) -> Result:
        return slot.over_tables(PlainColumns.of_text(store, schema), self.given)


def check_names(store: str, names: Iterable[str], taken: Collection[str] = ()) -> None:
    """Raise ``ConfigError`` for names that columns of ours have: those that go with rows, and in parts those ``taken``,
    since what was sealed could not be read again.
    """
    for name in names:
        if name in taken or name.lower().startswith(_WITH_ROWS):
            raise ConfigError(
                f"a column is named {name!r}, as one is that goes with rows or with stored state",
                remedy="rename it",
                where=store,
                id="RIFFLE-0194",
            )


def _check_due(store: str, key: pa.Schema, declared: Declared, due: str) -> None:
    """Raise ``ConfigError`` for what cannot say when keys are due."""
    columns = pa.schema([*key, *declared.state])
    kind = columns.field(due).type if due in columns.names else None
    if kind is None or not can_be_due(kind):
        raise ConfigError(
            f"due = {due!r}, and " + (f"that is {kind}" if kind else "neither state nor key has such a column"),
            remedy="name a column of timestamps of ms, us or ns, or of milliseconds as pa.int64()",
            where=store,
            id="RIFFLE-0195",
        )
    if declared.time_mode == "None":
        raise ConfigError(
            f"due = {due!r}, and nothing says what time it is",
            remedy="declare time_mode 'EventTime' (the watermark) or 'ProcessingTime' (the batch's time)",
            where=store,
            id="RIFFLE-0196",
        )


@dataclass(frozen=True, slots=True)
class _Processor:
    given: ProcessorComputation
    takes_initial: bool = True

    def schema(self, store: str, key: pa.Schema, declared: Declared) -> VariableColumns:
        return _variables(store, key, declared)

    def run(self, store: str, schema: Mapping[str, str], slot: SlotState[Result]) -> Result:
        columns = VariableColumns.of_text(store, schema)
        return slot.over_readings(columns, partial(self.given.processing, columns))


@dataclass(frozen=True, slots=True)
class _Elements:
    given: ElementComputation
    takes_initial: bool = False

    def schema(self, store: str, key: pa.Schema, declared: Declared) -> VariableColumns:
        return _variables(store, key, declared)

    def run(self, store: str, schema: Mapping[str, str], slot: SlotState[Result]) -> Result:
        return slot.over_elements(VariableColumns.of_text(store, schema), self.given)


def _variables(store: str, key: pa.Schema, declared: Declared) -> VariableColumns:
    variables = declared.variables or ()
    check_names(store, key.names, {*OURS, *(variable.column for variable in variables)})
    return VariableColumns(store, key, variables, indexed=declared.time_mode != "None")


def on_store(given: Computation, store: str) -> StoreComputation:
    """Return what a user gave as a computation on its store. Its kind is told here alone, by the methods it has.

    Raises ``ConfigError`` for what has none of them.
    """
    if isinstance(given, ProcessorComputation):
        return _Processor(given)
    if isinstance(given, ElementComputation):
        return _Elements(given)
    if isinstance(given, BlockComputation):
        return _Block(given)
    raise ConfigError(
        f"compute = {given!r} can neither be called nor has it `processing`",
        remedy="give aggregate(...), arrow_function(...), or an object with `declare` and one of these methods",
        where=store,
        id="RIFFLE-0197",
    )
