"""A slot's input: its keys by key-group, its late rows, and the source partitions of its rows."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark import keygroups
from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import HASH, INITIAL, KEY_GROUP, Order
from riffle_spark.process.blocks.folding import group_keys
from riffle_spark.state.copies.run import Hashes, RequestedKeys, find_newest_by_group, look_up_keys, merge_runs
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.formats.key_codec import encode_keys, find_differing_rows
from riffle_spark.state.formats.part_codec import HASH as STORED_HASH
from riffle_spark.state.restore.stack_keeper import OpenStack
from riffle_spark.state.schemas.plain_columns import PlainColumns

_CHECKED_KEYS = 256
_GROUP_BITS = 15
"""Bits of a key-group's number: there are at most 32,768 key-groups."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""An odd factor of the key-group. It gives equal keys in different shards very different marks."""
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TouchedKeys:
    """The distinct keys of a slot's rows, sorted by key-group and hash.

    ``spans`` has (key-group, first key, end) of each key-group, ``codes`` the index of each row's key.
    """

    keys: pa.Table
    hashes: Hashes
    key_groups: npt.NDArray[np.int32]
    codes: npt.NDArray[np.int64]
    spans: tuple[tuple[int, int, int], ...]

    def only(self, is_included: npt.NDArray[np.bool_]) -> tuple["TouchedKeys", npt.NDArray[np.int64]]:
        """Return the keys of the rows of a mask, and their indices among these keys."""
        kept_keys, codes = np.unique(self.codes[is_included], return_inverse=True)
        key_groups = self.key_groups[kept_keys]
        keys = self.keys.take(pa.array(kept_keys))
        return TouchedKeys(keys, self.hashes[kept_keys], key_groups, codes, spans_of(key_groups)), kept_keys


class KeysOfStores:
    """The distinct keys of a slot's rows for one store after the other. Stores with the same keys share them."""

    def __init__(self) -> None:
        self._previous: tuple[tuple[object, ...], pa.Table, TouchedKeys] | None = None

    def find(self, order: Order, slot: int, rows: pa.Table) -> TouchedKeys:
        """Return the touched keys of a store. Reuse those of the previous store if both have the same keys."""
        routing = (order.key, order.routing, order.total, order.slots[slot], order.by_key, order.keyless)
        routed = rows.select([KEY_GROUP, HASH, *order.key])
        if self._previous is None or self._previous[0] != routing or not self._previous[1].equals(routed):
            self._previous = (routing, routed, find_touched_keys(order, slot, rows))
        return self._previous[2]


def find_touched_keys(order: Order, slot: int, rows: pa.Table) -> TouchedKeys:
    """Return the distinct keys of a slot's rows.

    Raises ``ConfigError`` for a key-group that the slot does not serve.
    """
    of_row = rows.column(KEY_GROUP).to_numpy()
    _check_own(order, slot, of_row)
    if order.keyless and not rows.num_rows:
        return _without_rows(order, slot)
    keys = rows.select(order.key).combine_chunks()
    hashes = rows.column(HASH).to_numpy().view(np.uint64)
    codes, first = _grouped(keys, hashes, of_row)
    by_hash = _sort_by_group_and_hash(of_row[first], hashes[first])
    place = np.empty_like(by_hash)
    place[by_hash] = np.arange(len(by_hash))
    first = first[by_hash]
    if order.by_key:
        _check_hash(order, keys.take(pa.array(first[:_CHECKED_KEYS])), hashes[first[:_CHECKED_KEYS]], of_row[first])
    return TouchedKeys(keys.take(pa.array(first)), hashes[first], of_row[first], place[codes], spans_of(of_row[first]))


def _sort_by_group_and_hash(key_groups: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the indices that sort keys by key-group, then by hash.

    The key-group and the upper bits of the hash are sorted as one word, which takes a fifth of the time of ``lexsort``.
    Only hashes that are equal in these bits need ``lexsort``.
    """
    words = (key_groups.astype(np.uint64) << np.uint64(64 - _GROUP_BITS)) | (hashes >> np.uint64(_GROUP_BITS))
    order = np.argsort(words)
    if np.any(np.diff(words[order]) == 0):
        return np.lexsort((hashes, key_groups))
    return order


def count_rows_by_key_group(touched: TouchedKeys) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the touched key-groups, and the number of rows of each as a second tuple. Both are empty without rows."""
    if not touched.spans or not len(touched.codes):
        return (), ()
    of_key = np.bincount(touched.codes, minlength=len(touched.hashes))
    key_groups, starts, _ = zip(*touched.spans, strict=True)
    return key_groups, tuple(np.add.reduceat(of_key, list(starts)).tolist())


def _without_rows(order: Order, slot: int) -> TouchedKeys:
    """Return the only key of an aggregate without grouping if it belongs to this slot, else no key."""
    values = {name: pa.array([0 if name in order.routing else None], order.rows.field(name).type) for name in order.key}
    keys = pa.table(values)
    hashes = keygroups.key_hashes(keys.columns)  # a null does not change the hash
    key_groups = (hashes.view(np.int64) % order.total).astype(np.int32)
    own = np.isin(key_groups, list(order.slots[slot]))
    codes = np.empty(0, dtype=np.int64)
    return TouchedKeys(keys.filter(pa.array(own)), hashes[own], key_groups[own], codes, spans_of(key_groups[own]))


def _grouped(
    keys: pa.Table, hashes: Hashes, key_groups: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the index of each row's key, and the first row of each key. Equal keys of two key-groups are two keys.

    Rows with equal hashes nearly always have equal keys. If not, the bytes of the keys are compared.
    """
    marks = hashes + key_groups.astype(np.uint64) * _SPREAD
    codes, first = group_keys(pa.array(marks))
    same_group = bool(np.all(key_groups == key_groups[first][codes]))
    if same_group and not len(find_differing_rows(keys, keys.take(pa.array(first[codes])))):
        return codes, first
    whole = pc.binary_join_element_wise(
        pa.array(key_groups).cast(pa.string()).cast(pa.large_binary()),
        encode_keys(keys.columns),
        pa.scalar(b"/", pa.large_binary()),
    )
    return group_keys(whole)


def spans_of(ascending: npt.NDArray[np.int32]) -> tuple[tuple[int, int, int], ...]:
    """Return (key-group, start, end) of each run of equal numbers in an array of ascending key-groups."""
    if not len(ascending):
        return ()
    begins = (np.flatnonzero(ascending[1:] != ascending[:-1]) + 1).tolist()
    starts = [0, *begins]
    return tuple(zip(ascending[starts].tolist(), starts, [*begins, len(ascending)], strict=True))


def _check_own(order: Order, slot: int, of_row: npt.NDArray[np.int32]) -> None:
    """Raise ``ConfigError`` if rows belong to key-groups of another slot."""
    own = np.zeros(order.total, dtype=bool)
    own[list(order.slots[slot])] = True
    foreign = of_row[~own[of_row]]
    if len(foreign):
        raise ConfigError(
            f"Slot {slot} received {len(foreign)} rows of key-groups that it does not serve, such as {foreign[0]}.",
            remedy=f"Make {'the key' if order.by_key else 'topic and partition'} deterministic, without rand() or a "
            "clock, so that a row always has the same value.",
            where=order.store,
            id="RIFFLE-0481",
        )


def _check_hash(order: Order, keys: pa.Table, hashes: Hashes, key_groups: npt.NDArray[np.int32]) -> None:
    """Raise ``ConfigError`` if Spark and Python hash some keys differently.

    Routing and every reader of state must agree.
    """
    own = keygroups.key_hashes(keys.columns)
    routed = keygroups.key_groups([keys.column(name) for name in order.routing], order.total)
    if not (np.array_equal(own, hashes) and np.array_equal(routed, key_groups[: len(own)])):
        # Cause: Python cannot hash this type or collation as Spark does.
        raise ConfigError(
            "Spark and riffle hash these keys differently.",
            remedy="Cast the key columns to string without a collation, binary, a number, date or timestamp.",
            where=order.store,
            id="RIFFLE-0482",
        )


def with_stored_keys(schema: PlainColumns, touched: TouchedKeys, stacks: Mapping[int, OpenStack]) -> TouchedKeys:
    """Return the touched keys and all other keys in the stacks. The others have no rows."""
    names = schema.key.names
    groups = sorted(stacks)
    stored = [merge_runs(stacks[key_group].runs, names, schema.row_schema, bottom=True) for key_group in groups]
    keys = pa.concat_tables([touched.keys, *(cast_table(table.select(names), touched.keys.schema) for table in stored)])
    hashes = np.concatenate([touched.hashes, *(table.column(STORED_HASH).to_numpy() for table in stored)])
    of_stored = np.repeat(np.array(groups, np.int32), [table.num_rows for table in stored])
    key_groups = np.concatenate([touched.key_groups, of_stored])
    keys = keys.combine_chunks()
    once = find_newest_by_group(hashes, keys, key_groups)
    place = np.empty(len(hashes), np.int64)
    place[once] = np.arange(len(once))
    key_groups = key_groups[once]
    codes = place[touched.codes]
    return TouchedKeys(keys.take(pa.array(once)), hashes[once], key_groups, codes, spans_of(key_groups))


def read_state(
    schema: PlainColumns, touched: TouchedKeys, stacks: Mapping[int, OpenStack]
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """Return the state of each touched key, nulls if it has none, and a mask of the keys with state."""
    wanted_keys = [RequestedKeys(start, end, stacks[kg].runs) for kg, start, end in touched.spans if kg in stacks]
    rows, has_state = look_up_keys(wanted_keys, touched.hashes, touched.keys, schema.row_schema)
    return rows.select(schema.state.names), has_state


def without_late_rows(order: Order, rows: pa.Table) -> tuple[pa.Table, dict[str, object]]:
    """Return the rows that are not late, and the receipt's fields for late rows and event time.

    All rows are returned if the order has no rule for late rows.
    """
    rule = order.late_rule
    if rule is None:
        return rows, {}
    times = _event_times(order, rows, rows.column(rule.column))
    late = _are_late(times, order.late_watermark_ms or 0)
    count = pc.sum(late).as_py() or 0
    receipt_fields: dict[str, object] = {} if order.watermark is None else {"event_time_max_ms": newest_ms(times)}
    if not count:
        return rows, {**receipt_fields, "late_rows": 0}
    left_out = _count_keys(order, rows.filter(late)) if rule.by == "keys" else count
    return rows.filter(pc.invert(late)), {**receipt_fields, "late_rows": left_out}


def _count_keys(order: Order, rows: pa.Table) -> int:
    """Return the number of distinct keys of the rows."""
    hashes = rows.column(HASH).to_numpy().view(np.uint64)
    return len(_grouped(rows.select(order.key).combine_chunks(), hashes, rows.column(KEY_GROUP).to_numpy())[1])


def _event_times(order: Order, rows: pa.Table, times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the event times, null for rows of initial state, unless the time is part of the key."""
    if order.initial is None:
        return times
    return pc.if_else(rows.column(INITIAL).is_valid(), pa.scalar(None, times.type), times)


def newest_ms(times: pa.ChunkedArray) -> int | None:
    """Return the newest of some timestamps in milliseconds, rounded down; ``None`` if there is none."""
    newest = pc.max(times.cast(pa.int64())).as_py()
    return None if newest is None else newest * 1000 // _PER_SECOND[times.type.unit]


def _are_late(times: pa.ChunkedArray, watermark_ms: int) -> pa.ChunkedArray:
    """Return a mask of the times at or before the watermark. A null is not late."""
    limit = min(watermark_ms * _PER_SECOND[times.type.unit] // 1000, _LARGEST)
    return pc.fill_null(pc.less_equal(times.cast(pa.int64()), pa.scalar(limit, pa.int64())), False)


def count_by_partition(rows: pa.Table, partition_column: str) -> tuple[tuple[int, int, int], ...]:
    """Return (key-group, partition, row count) of the rows. ``partition_column`` has the partition numbers."""
    if rows.column(partition_column).null_count:  # rows of initial state
        rows = rows.filter(rows.column(partition_column).is_valid())
    if rows.num_rows == 0:
        return ()
    key_groups = rows.column(KEY_GROUP).to_numpy().astype(np.int64)
    partitions = rows.column(partition_column).to_numpy().astype(np.int64)
    pairs, counts = np.unique((key_groups << 32) | partitions, return_counts=True)
    return tuple(
        (int(pair >> 32), int(pair & 0xFFFFFFFF), int(count)) for pair, count in zip(pairs, counts, strict=True)
    )
