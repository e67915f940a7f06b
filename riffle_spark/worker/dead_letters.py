"""Dead letters: rows of keys on which the user's function fails are returned after the output rows.

The slot runs again on the same state without the rows of these keys. Nothing has to be undone, because a slot keeps its
changes in memory until it seals them.
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

Run = Callable[[pa.Table, TouchedKeys], SlotResult]
Numbers = npt.NDArray[np.int64]


def collects_for(order: Order) -> Collects | None:
    """Return the function that decides which errors make dead letters, or ``None`` if the order has no dead letters."""
    return _may_be_caused_by_rows if LETTER in order.output.names else None


def _may_be_caused_by_rows(error: Exception) -> bool:
    """Return whether rows may have caused an error. They do not cause a lack of memory or a full local disk."""
    return not isinstance(error, MemoryError) and not (isinstance(error, OSError) and disk.is_disk_refusal(error))


def run_with_letters(order: Order, rows: pa.Table, touched: TouchedKeys, run: Run) -> SlotResult:
    """Return the result of ``run`` on a slot's rows, with the dead letters after the output if the order has them.

    Raises the function's error if no row caused it, as in the call for a timer. Then the batch fails.
    """
    if LETTER not in order.output.names:
        return run(rows, touched)
    is_initial = np.zeros(rows.num_rows, np.bool_)
    if order.initial is not None:
        is_initial = rows.column(INITIAL).is_valid().to_numpy()
    failed, result = _Trials(rows, touched, is_initial, run).run(np.arange(len(touched.hashes)))
    columns = [*result.output.columns, pa.nulls(result.output.num_rows, order.output.field(LETTER).type)]
    output = pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in order.output]))
    if not failed:
        return result._replace(output=output)
    is_dead = np.isin(touched.codes, list(failed)) & ~is_initial
    letters = _letters(order, rows.filter(pa.array(is_dead)), touched.codes[is_dead], touched, failed)
    nothing = [pa.nulls(len(letters), field.type) for field in without_letters(output.schema)]
    output = pa.concat_tables([output, pa.table([*nothing, letters], schema=output.schema)])
    # Only the error's class, because the driver logs this text, and the error's own text may contain values of rows.
    return result._replace(output=output, dead=DeadRows(len(letters), failed[min(failed)].error))


class _Trials:
    """Runs a slot with fewer and fewer keys until none of them fails. Rows of initial state are always included."""

    def __init__(self, rows: pa.Table, touched: TouchedKeys, is_initial: npt.NDArray[np.bool_], run: Run) -> None:
        """Create trials on a slot's rows.

        ``is_initial`` marks rows of initial state, ``run`` runs the slot on some rows.
        """
        self._rows = rows
        self._touched = touched
        self._is_initial = is_initial
        self._run = run

    def run(self, keys: Numbers) -> tuple[dict[int, Failure], SlotResult]:
        """Return the failures by key, and the result of the slot without the keys that fail.

        Each further run has fewer keys. Raises ``FailedKeys`` if no key is to blame: they fail without rows, or only
        together.
        """
        failures = dict[int, Failure]()
        while True:
            touched, numbers, is_included = self._only(keys)
            try:
                return failures, self._run(self._rows.filter(pa.array(is_included)), touched)
            except FailedKeys as failed:
                new_failures = {int(numbers[index]): failure for index, failure in failed.by_key.items()}
                new_failures = new_failures or self._failures_by_halves(keys, failed)
                if not new_failures:
                    raise
            failures |= new_failures
            keys = np.setdiff1d(keys, list(new_failures))

    def _failures_by_halves(self, keys: Numbers, failed: FailedKeys) -> dict[int, Failure]:
        """Return the failures by key if the error did not name the keys that fail.

        One half of the keys runs at a time, down to single keys.
        """
        if len(keys) <= 1:
            return {int(key): Failure.of(failed.__cause__ or failed) for key in keys}
        self.run(keys[:0])  # an error that no row causes is raised here, before single keys are tried
        half = len(keys) // 2
        return {**self.run(keys[:half])[0], **self.run(keys[half:])[0]}

    def _only(self, keys: Numbers) -> tuple[TouchedKeys, Numbers, npt.NDArray[np.bool_]]:
        """Return the touched state of the rows of these keys, the indices of the keys, and the mask of their rows."""
        is_included = np.isin(self._touched.codes, keys) | self._is_initial
        if is_included.all():
            return self._touched, np.arange(len(self._touched.hashes)), is_included
        return *self._touched.only(is_included), is_included


def _letters(
    order: Order, rows: pa.Table, codes: Numbers, touched: TouchedKeys, failed: dict[int, Failure]
) -> pa.StructArray:
    """Return the dead letters for rows.

    ``codes`` has the number of each row's key, ``failed`` the failures by key number.
    """
    letter_type = order.output.field(LETTER).type
    dead = np.array(sorted(failed))
    places = pa.array(np.searchsorted(dead, codes))
    columns = [pa.array(texts, pa.string()).take(places) for texts in zip(*(failed[key] for key in dead), strict=True)]
    shown = [one_array(rows.column(name)) for name in (order.shown or order.rows.names)]
    row = pa.StructArray.from_arrays(shown, fields=list(letter_type.field("row").type))
    store = pa.repeat(order.store, len(codes))
    key_group = pa.array(touched.key_groups[codes])
    return pa.StructArray.from_arrays([*columns, store, key_group, row], fields=list(letter_type))


def split_letters(answers: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Split an output with dead letters into its result rows and its dead letters; return both."""
    letters = answers.column(LETTER)
    results = answers.filter(letters.is_null()).drop_columns([LETTER])
    letter_rows = one_array(letters.filter(letters.is_valid()))
    return results, pa.Table.from_batches([pa.RecordBatch.from_struct_array(letter_rows)])
