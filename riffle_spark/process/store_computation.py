"""Users' computations as computations on a store: the store's columns, and a slot's calls for each kind."""

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

_PART_COLUMNS = frozenset({HASH, DELETED, DUE_ORDER})
_RESERVED_PREFIX = "__riffle_"
"""The prefix of all columns that accompany rows: to slots, to sinks and into another dispatch."""

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class SlotState(Protocol[Result_co]):
    """The input of a slot and the state of its keys. A computation calls the one method for its kind."""

    def over_tables(self, schema: PlainColumns, compute: BlockComputation) -> Result_co:
        """Read the state of all touched keys as tables, and call ``compute`` once, or once per key-group if so
        declared.

        Then do the same for expired keys.
        """
        ...

    def over_readings(self, schema: VariableColumns, processing: Callable[[Times, str], Processing]) -> Result_co:
        """Process each key-group that has rows or something due, with its copy open for reading.

        ``processing`` returns the object that runs the processor, from the batch's times and the place in errors.
        """
        ...

    def over_elements(self, schema: VariableColumns, compute: ElementComputation) -> Result_co:
        """Read the elements of all touched keys and all due elements, and call ``compute`` once."""
        ...


@dataclass(frozen=True, slots=True)
class StoreComputation:
    """A computation of any kind, together with how its state is stored."""

    compute: Computation

    @property
    def takes_initial(self) -> bool:
        """Whether the computation can start from initial state. Only processors can."""
        return isinstance(self.compute, ProcessorComputation)

    def schema(self, store: str, key: pa.Schema, declared: Declared) -> StoreSchema:
        """Return the columns of the computation's store: state variables, or one row per key for a block computation.

        Raises ``ConfigError`` for reserved names, and for a due column that does not hold times.
        """
        if isinstance(self.compute, ProcessorComputation | ElementComputation):
            variables = declared.variables or ()
            check_names(store, key.names, {*OURS, *(variable.column for variable in variables)})
            return VariableColumns(store, key, variables, indexed=declared.time_mode != "None")
        check_names(store, [*key.names, *declared.state.names], _PART_COLUMNS)
        if declared.due is None:
            return PlainColumns(store, key, declared.state, routed_by=declared.routed_by)
        _check_due(store, key, declared, declared.due)
        return PlainColumns(store, key, declared.state, declared.due, declared.time_mode, routed_by=declared.routed_by)

    def run(self, store: str, schema: Mapping[str, str], slot: SlotState[Result]) -> Result:
        """Return the result of the computation on one slot. ``schema`` is the store's schema as stored text."""
        compute = self.compute
        if isinstance(compute, ProcessorComputation):
            columns = VariableColumns.of_text(store, schema)
            return slot.over_readings(columns, partial(compute.make_processing, columns))
        if isinstance(compute, ElementComputation):
            return slot.over_elements(VariableColumns.of_text(store, schema), compute)
        assert isinstance(compute, BlockComputation), f"{compute!r} is not a computation"
        return slot.over_tables(PlainColumns.of_text(store, schema), compute)


def check_names(store: str, names: Iterable[str], reserved: Collection[str] = ()) -> None:
    """Raise ``ConfigError`` if a column name is reserved: riffle_spark's own internal names, and those in
    ``reserved``.
    """
    for name in names:
        if name in reserved or name.lower().startswith(_RESERVED_PREFIX):
            # Cause: riffle stores columns of its own under such names.
            raise ConfigError(
                f"Column name {name!r} is reserved.",
                remedy="Rename the column.",
                where=store,
                id="RIFFLE-0194",
            )


def _check_due(store: str, key: pa.Schema, declared: Declared, due: str) -> None:
    """Raise ``ConfigError`` if the due column ``due`` does not exist or does not hold times."""
    columns = pa.schema([*key, *declared.state])
    type = columns.field(due).type if due in columns.names else None
    if type is None or not can_be_due(type):
        raise ConfigError(
            f"due = {due!r} is a column of type {type}." if type else f"due = {due!r} is not a state or key column.",
            remedy="Use a column of timestamps (ms, us or ns), or of milliseconds as pa.int64().",
            where=store,
            id="RIFFLE-0195",
        )
    if declared.time_mode == "None":
        raise ConfigError(
            f"due = {due!r} is set, but time_mode is not.",
            remedy="Set time_mode to 'EventTime' (the watermark) or 'ProcessingTime' (the batch's time).",
            where=store,
            id="RIFFLE-0196",
        )
