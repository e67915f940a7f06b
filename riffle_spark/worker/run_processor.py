"""A processor over the key-groups of one slot: rows and copies in, output and a delta's rows out. Knows which
key-groups are visited, and in which order. Does not know processors, objects or folders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import numpy as np
import pyarrow as pa

from riffle_spark.messages.slot_orders import INITIAL, Order
from riffle_spark.process.processors.processing import Outcome, Processing
from riffle_spark.process.processors.processor import InputByKey
from riffle_spark.process.times import Times
from riffle_spark.state.copies.copy import Copy
from riffle_spark.state.copies.reading import EMPTY_READING
from riffle_spark.state.log.manifest import EMPTY, Entry
from riffle_spark.state.schemas.store_schema import StoreSchema
from riffle_spark.worker.input import TouchedKeys
from riffle_spark.worker.run_block import SlotResult, StateChanges

__all__ = ["due_key_groups", "now_ms", "run_keyed"]


def run_keyed(
    order: Order, schema: StoreSchema, begun: Callable[[Times, str], Processing], rows: pa.Table, touched: TouchedKeys,
    copies: Mapping[int, Copy], entries: Mapping[int, Entry],
) -> SlotResult:  # fmt: skip
    """Run what ``begun`` gives over the touched key-groups and those of ``entries`` that have something due.

    Raises ``UserFunctionError`` with what the processor raised, and what copies raise.
    """
    times = Times(order.time_mode, order.time_ms, order.watermark_ms, order.last_pass_ms)
    processing = begun(times, f"store {order.store!r}")
    processing.begin(_grouped(order, rows, touched))
    counts = {key_group: end - start for key_group, start, end in touched.spans}
    outcomes: dict[int, Outcome] = {}
    for key_group, entry in sorted(entries.items()):
        copy = copies.get(key_group)
        with copy.reading(entry.head) if copy is not None else nullcontext(EMPTY_READING) as reading:
            outcomes[key_group] = processing.key_group(counts.get(key_group, 0), reading)
    output = processing.output()
    processing.end()
    fired = sum(outcome.timers_fired for outcome in outcomes.values())
    expired = sum(outcome.expired for outcome in outcomes.values())
    return SlotResult(output, _changes(schema, outcomes), fired, expired)


def _grouped(order: Order, rows: pa.Table, touched: TouchedKeys) -> InputByKey:
    """Return rows, and rows of initial state, by key."""
    shown = order.shown or {name: name for name in order.rows.names}
    data, codes = rows.select(list(shown)).rename_columns(list(shown.values())), touched.codes
    if order.initial is None:
        return InputByKey.of(touched.keys, data, codes)
    given = rows.column(INITIAL).combine_chunks()
    is_initial = given.is_valid().to_numpy(zero_copy_only=False)
    states = pa.Table.from_batches([pa.RecordBatch.from_struct_array(given.filter(pa.array(is_initial)))])
    grouped = InputByKey.of(touched.keys, data.filter(pa.array(~is_initial)), codes[~is_initial])
    return grouped.with_states(states, codes[is_initial])


def _changes(schema: StoreSchema, outcomes: Mapping[int, Outcome]) -> StateChanges:
    tables: Sequence[pa.Table] = [outcome.changes for outcome in outcomes.values()]
    table = pa.concat_tables([schema.part_schema(delta=True).empty_table(), *tables])
    key_groups = np.repeat(np.array(list(outcomes), np.int32), [changes.num_rows for changes in tables])
    return StateChanges(table, key_groups, {key_group: outcome.timer_ms for key_group, outcome in outcomes.items()})


def now_ms(order: Order) -> int | None:
    """Return the time that timers go by, ``None`` where there are none: the batch's time or the watermark."""
    if order.time_mode == "EventTime":
        return order.watermark_ms or 0
    return order.time_ms if order.time_mode == "ProcessingTime" else None


def due_key_groups(order: Order, slot: int) -> tuple[int, ...]:
    """Return the slot's key-groups whose earliest timer is due, ascending; those of a last pass too."""
    now = now_ms(order)
    if now is None:
        return ()
    until = now if order.last_pass_ms is None else max(now, order.last_pass_ms)
    timers = ((key_group, order.entries.get(key_group, EMPTY).timer_ms) for key_group in sorted(order.slots[slot]))
    return tuple(key_group for key_group, timer in timers if timer is not None and timer <= until)
