"""Dead letters: rows of keys that the user's function fails on go beside the output, and the batch goes on as if they
had never come. Knows which keys fail, and how results and letters are told apart. Does not know what is computed.

Nothing is undone: what a slot changes is in memory until it is sealed, so the slot is run again, on the same state, on
the other keys' rows alone.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.columns import one_array
from riffle_spark.messages.slot_orders import INITIAL, LETTER, Order, without_letters
from riffle_spark.process.blocks.failed_keys import Collects, FailedKeys, Failure
from riffle_spark.state.copies import disk
from riffle_spark.worker.input import TouchedKeys
from riffle_spark.worker.seal import DeadRows, SlotResult

__all__ = ["collects_for", "taken_apart", "with_letters"]

Run = Callable[[pa.Table, TouchedKeys], SlotResult]
Numbers = npt.NDArray[np.int64]


def collects_for(order: Order) -> Collects | None:
    """Return which errors make letters, if an order has these."""
    return _is_of_rows if LETTER in order.output.names else None


def _is_of_rows(error: Exception) -> bool:
    """Tell whether an error may be the rows' fault; what memory or a local disk refuses is not."""
    return not isinstance(error, MemoryError) and not (isinstance(error, OSError) and disk.is_refusal(error))


def with_letters(order: Order, rows: pa.Table, touched: TouchedKeys, run: Run) -> SlotResult:
    """Return what ``run`` makes of a slot's rows; where the order has dead letters, those of keys that fail are letters
    behind the output.

    Raises what the function raised if that is no row's fault, as in a timer's call: then the batch fails.
    """
    if LETTER not in order.output.names:
        return run(rows, touched)
    is_initial = np.zeros(rows.num_rows, np.bool_)
    if order.initial is not None:
        is_initial = rows.column(INITIAL).is_valid().to_numpy()
    failed, result = _Trials(rows, touched, is_initial, run).found(np.arange(len(touched.hashes)))
    columns = [*result.output.columns, pa.nulls(result.output.num_rows, order.output.field(LETTER).type)]
    output = pa.table(columns, schema=_nullable(order.output))
    if not failed:
        return result._replace(output=output)
    is_dead = np.isin(touched.codes, list(failed)) & ~is_initial
    letters = _letters(order, rows.filter(pa.array(is_dead)), touched.codes[is_dead], touched, failed)
    nothing = [pa.nulls(len(letters), field.type) for field in without_letters(output.schema)]
    output = pa.concat_tables([output, pa.table([*nothing, letters], schema=output.schema)])
    # What was raised by its class alone: what it says may have a row's values, and the driver logs this.
    return result._replace(output=output, dead=DeadRows(len(letters), failed[min(failed)].error))


class _Trials:
    """Runs a slot on rows of some of its keys, until none of these fails. Rows of initial state are always there."""

    def __init__(self, rows: pa.Table, touched: TouchedKeys, is_initial: npt.NDArray[np.bool_], run: Run) -> None:
        self._rows = rows
        self._touched = touched
        self._is_initial = is_initial
        self._run = run

    def found(self, keys: Numbers) -> tuple[dict[int, Failure], SlotResult]:
        """Return which of these keys fail, and the result without them. Each further run is on fewer keys.

        Raises ``FailedKeys`` where it is none of them: they fail without rows, or only together.
        """
        found = dict[int, Failure]()
        while True:
            touched, numbers, is_there = self._only(keys)
            try:
                return found, self._run(self._rows.filter(pa.array(is_there)), touched)
            except FailedKeys as failed:
                here = {int(numbers[at]): failure for at, failure in failed.by_key.items()}
                here = here or self._blamed(keys, failed)
                if not here:
                    raise
            found |= here
            keys = np.setdiff1d(keys, list(here))

    def _blamed(self, keys: Numbers, failed: FailedKeys) -> dict[int, Failure]:
        """Return which of some keys make fail what all did together, as their output: one half of them at a time."""
        if len(keys) <= 1:
            return {int(key): Failure.of(failed.__cause__ or failed) for key in keys}
        self.found(keys[:0])  # What fails without any rows says so now, and not when each key was tried.
        half = len(keys) // 2
        return {**self.found(keys[:half])[0], **self.found(keys[half:])[0]}

    def _only(self, keys: Numbers) -> tuple[TouchedKeys, Numbers, npt.NDArray[np.bool_]]:
        """Return what the rows of these keys touch, which keys of all that is, and which rows."""
        all_of = self._touched
        is_there = np.isin(all_of.codes, keys) | self._is_initial
        if is_there.all():
            return all_of, np.arange(len(all_of.hashes)), is_there
        return *all_of.only(is_there), is_there


def _letters(
    order: Order, rows: pa.Table, codes: Numbers, touched: TouchedKeys, failed: dict[int, Failure]
) -> pa.StructArray:  # fmt: skip
    """Return what is told of rows, whose keys have these numbers."""
    kind, dead = order.output.field(LETTER).type, np.array(sorted(failed))
    places = pa.array(np.searchsorted(dead, codes))
    told = [pa.array(texts, pa.string()).take(places) for texts in zip(*(failed[key] for key in dead), strict=True)]
    shown = [one_array(rows.column(name)) for name in (order.shown or order.rows.names)]
    row = pa.StructArray.from_arrays(shown, fields=list(kind.field("row").type))
    store, key_group = pa.repeat(order.store, len(codes)), pa.array(touched.key_groups[codes])
    return pa.StructArray.from_arrays([*told, store, key_group, row], fields=list(kind))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def taken_apart(answers: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows of an output with dead letters, and these."""
    letters = answers.column(LETTER)
    results = answers.filter(letters.is_null()).drop_columns([LETTER])
    told = one_array(letters.filter(letters.is_valid()))
    return results, pa.Table.from_batches([pa.RecordBatch.from_struct_array(told)])
