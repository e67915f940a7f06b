"""A slot's input: the keys that its rows touch by key-group, which rows are late, where they came from. Knows Arrow and
NumPy. Does not know copies or users.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark import keygroups
from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.messages.slot_orders import INITIAL, KEY_GROUP, Order
from riffle_spark.process.blocks.folding import group_keys
from riffle_spark.state.copies.copy import Copy, DamagedCopy
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.schemas.plain_columns import PlainColumns, shortened
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["TouchedKeys", "counted", "newest_ms", "on_time", "read_state", "spans_of", "touch"]

_CHECKED_KEYS = 256
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TouchedKeys:
    """Distinct keys in key-group order. ``spans`` holds (key-group, first key, end) and ``codes`` each row's key."""

    keys: pa.Table
    local_keys: list[bytes]
    key_groups: npt.NDArray[np.int32]
    codes: npt.NDArray[np.int64]
    spans: tuple[tuple[int, int, int], ...]


def touch(order: Order, schema: StoreSchema, slot: int, rows: pa.Table) -> TouchedKeys:
    """Return what ``rows`` touch. Raises ``ConfigError`` if a row is of a key-group that is not this slot's."""
    of_row = rows.column(KEY_GROUP).to_numpy()
    _check_own(order, slot, of_row)
    encoded = schema.encoded(rows)
    codes, first = group_keys(encoded)
    of_key = of_row[first]
    by_group = np.argsort(of_key, kind="stable")
    place = np.empty_like(by_group)
    place[by_group] = np.arange(len(by_group))
    first, of_key = first[by_group], of_key[by_group]
    keys = rows.select(order.key).take(first)
    if order.by_key:
        _check_hash(order, keys, of_key)
    return TouchedKeys(keys, shortened(encoded.take(first))[0], of_key, place[codes], spans_of(of_key))


def spans_of(ascending: npt.NDArray[np.int32]) -> tuple[tuple[int, int, int], ...]:
    """Return (key-group, start, end) of each run of equal key-groups; nothing for nothing."""
    groups, starts = np.unique(ascending, return_index=True)
    ends = np.append(starts[1:], len(ascending))[: len(groups)]
    return tuple(zip(groups.tolist(), starts.tolist(), ends.tolist(), strict=True))


def _check_own(order: Order, slot: int, of_row: npt.NDArray[np.int32]) -> None:
    own = np.zeros(order.total, dtype=bool)
    own[list(order.slots[slot])] = True
    foreign = of_row[~own[of_row]]
    if len(foreign):
        raise ConfigError(
            f"{len(foreign)} rows of foreign key-groups reached slot {slot}, the first of key-group {foreign[0]}",
            remedy=f"make {'the key' if order.by_key else 'topic and partition'} deterministic: the same row must "
            "always have the same (no rand(), no clock)",
            where=order.store,
        )


def _check_hash(order: Order, keys: pa.Table, of_key: npt.NDArray[np.int32]) -> None:
    """Compare a sample with Python's own hash: routing and every tool that reads state must agree on it."""
    sample = keys.slice(0, _CHECKED_KEYS)
    expected = keygroups.key_groups(sample.columns, order.total)
    if not np.array_equal(expected, of_key[: len(expected)]):
        raise ConfigError(
            "Spark and riffle hash these keys differently",
            remedy="cast the key columns to a plain string, binary, number, date or timestamp (no collation)",
            where=order.store,
        )


def read_state(
    schema: PlainColumns, touched: TouchedKeys, copies: Mapping[int, Copy], entries: Mapping[int, Entry]
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """Return the touched keys' state, row for row (nulls where there is none), and which keys have any."""
    found = np.zeros(len(touched.local_keys), dtype=bool)
    values: list[bytes] = []
    for key_group, start, end in touched.spans:
        if key_group in copies:
            pairs = copies[key_group].get(touched.local_keys[start:end], entries[key_group].head)
            found[start:end] = list(_are_found(touched.local_keys[start:end], pairs))
            values += [value for _, value in pairs]
    try:
        state = schema.codec.decode(values)
    except CorruptStateError as error:
        raise DamagedCopy(error.problem, remedy=error.remedy, where=schema.store) from error
    if found.all():
        return state, found
    index = np.cumsum(found) - 1
    return state.take(pa.array(index, mask=~found)), found


def _are_found(keys: list[bytes], pairs: list[tuple[bytes, bytes]]) -> Iterator[bool]:
    if len(pairs) == len(keys):
        return (True for _ in keys)
    present = {key for key, _ in pairs}
    return (key in present for key in keys)


def on_time(order: Order, rows: pa.Table) -> tuple[pa.Table, dict[str, object]]:
    """Return the rows that are not late, and what the receipt tells of all of them; where there is no watermark, all
    rows and nothing.
    """
    if order.watermark is None:
        return rows, {}
    times = _of_events(order, rows, rows.column(order.watermark.column))
    late = _are_late(times, order.late_watermark_ms or 0)
    count = pc.sum(late).as_py() or 0
    told: dict[str, object] = {"late_rows": count, "event_time_max_ms": newest_ms(times)}
    return (rows.filter(pc.invert(late)) if count else rows), told


def _of_events(order: Order, rows: pa.Table, times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the times without those of initial state: where the time is of the key, its rows have one too."""
    if order.initial is None:
        return times
    return pc.if_else(rows.column(INITIAL).is_valid(), pa.scalar(None, times.type), times)


def newest_ms(times: pa.ChunkedArray) -> int | None:
    """Return the newest of some timestamps in milliseconds, rounded down; ``None`` if there is none."""
    newest = pc.max(times.cast(pa.int64())).as_py()
    return None if newest is None else newest * 1000 // _PER_SECOND[times.type.unit]


def _are_late(times: pa.ChunkedArray, watermark_ms: int) -> pa.ChunkedArray:
    limit = min(watermark_ms * _PER_SECOND[times.type.unit] // 1000, _LARGEST)
    return pc.fill_null(pc.less_equal(times.cast(pa.int64()), pa.scalar(limit, pa.int64())), False)


def counted(rows: pa.Table, column: str) -> tuple[tuple[int, int, int], ...]:
    """Return (key-group, partition, rows) of all rows that came from one; ``column`` holds the partitions' numbers."""
    if rows.column(column).null_count:  # rows of initial state
        rows = rows.filter(rows.column(column).is_valid())
    if rows.num_rows == 0:
        return ()
    key_groups = rows.column(KEY_GROUP).to_numpy().astype(np.int64)
    partitions = rows.column(column).to_numpy().astype(np.int64)
    pairs, counts = np.unique((key_groups << 32) | partitions, return_counts=True)
    return tuple(
        (int(pair >> 32), int(pair & 0xFFFFFFFF), int(count)) for pair, count in zip(pairs, counts, strict=True)
    )
