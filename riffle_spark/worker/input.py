"""A slot's input: the keys that its rows touch by key-group, which rows are late, where they came from. Knows Arrow and
NumPy. Does not know copies or users.
"""

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
from riffle_spark.state.copies.run import Hashes, WantedKeys, look_up, merge_runs, newest_by_group
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.formats.key_codec import differing, encode_keys
from riffle_spark.state.formats.part_codec import HASH as STORED_HASH
from riffle_spark.state.restore.stack_keeper import OpenStack
from riffle_spark.state.schemas.plain_columns import PlainColumns

__all__ = [
    "TouchedKeys",
    "counted",
    "newest_ms",
    "on_time",
    "read_state",
    "received",
    "spans_of",
    "touch",
    "with_stored",
]

_CHECKED_KEYS = 256
_GROUP_BITS = 15
"""There are at most 32 768 key-groups."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""An odd number: one key in several shards gets marks far apart."""
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TouchedKeys:
    """Distinct keys by key-group and hash. ``spans`` holds (key-group, first key, end) and ``codes`` each row's key."""

    keys: pa.Table
    hashes: Hashes
    key_groups: npt.NDArray[np.int32]
    codes: npt.NDArray[np.int64]
    spans: tuple[tuple[int, int, int], ...]

    def only(self, is_there: npt.NDArray[np.bool_]) -> tuple["TouchedKeys", npt.NDArray[np.int64]]:
        """Return the keys of these rows alone, and which of all keys they are."""
        left, codes = np.unique(self.codes[is_there], return_inverse=True)
        keys, key_groups = self.keys.take(pa.array(left)), self.key_groups[left]
        return TouchedKeys(keys, self.hashes[left], key_groups, codes, spans_of(key_groups)), left


def touch(order: Order, slot: int, rows: pa.Table) -> TouchedKeys:
    """Return what ``rows`` touch. Raises ``ConfigError`` if a row is of a key-group that is not this slot's."""
    of_row = rows.column(KEY_GROUP).to_numpy()
    _check_own(order, slot, of_row)
    if order.keyless and not rows.num_rows:
        return _without_rows(order, slot)
    keys = rows.select(order.key).combine_chunks()
    hashes = rows.column(HASH).to_numpy().view(np.uint64)
    codes, first = _grouped(keys, hashes, of_row)
    by_hash = _order(hashes[first], of_row[first])
    place = np.empty_like(by_hash)
    place[by_hash] = np.arange(len(by_hash))
    first = first[by_hash]
    if order.by_key:
        _check_hash(order, keys.take(pa.array(first[:_CHECKED_KEYS])), hashes[first[:_CHECKED_KEYS]], of_row[first])
    return TouchedKeys(keys.take(pa.array(first)), hashes[first], of_row[first], place[codes], spans_of(of_row[first]))


def received(touched: TouchedKeys) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the key-groups that rows touch, and how many rows each got."""
    if not touched.spans or not len(touched.codes):
        return (), ()
    of_key = np.bincount(touched.codes, minlength=len(touched.hashes))
    key_groups, starts, _ = zip(*touched.spans, strict=True)
    return key_groups, tuple(np.add.reduceat(of_key, list(starts)).tolist())


def _without_rows(order: Order, slot: int) -> TouchedKeys:
    """Return the one key of an aggregate that groups by nothing, in the slot that it belongs to."""
    values = {name: pa.array([0 if name in order.routing else None], order.rows.field(name).type) for name in order.key}
    keys = pa.table(values)
    hashes = keygroups.key_hashes(keys.columns)  # a null leaves a hash as it is
    key_groups = (hashes.view(np.int64) % order.total).astype(np.int32)
    own = np.isin(key_groups, list(order.slots[slot]))
    codes = np.empty(0, dtype=np.int64)
    return TouchedKeys(keys.filter(pa.array(own)), hashes[own], key_groups[own], codes, spans_of(key_groups[own]))


def _order(hashes: Hashes, key_groups: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the order by key-group and hash: by both in one word where that tells all apart."""
    words = (key_groups.astype(np.uint64) << np.uint64(64 - _GROUP_BITS)) | (hashes >> np.uint64(_GROUP_BITS))
    order = np.argsort(words)
    if np.any(np.diff(words[order]) == 0):
        return np.lexsort((hashes, key_groups))
    return order


def _grouped(
    keys: pa.Table, hashes: Hashes, key_groups: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the number of each row's key in its key-group, and each key's first row.

    Rows of one hash are of one key nearly always. Where they are not, bytes of keys tell them apart.
    """
    marks = hashes + key_groups.astype(np.uint64) * _SPREAD
    codes, first = group_keys(pa.array(marks))
    same_group = bool(np.all(key_groups == key_groups[first][codes]))
    if same_group and not len(differing(keys, keys.take(pa.array(first[codes])))):
        return codes, first
    whole = pc.binary_join_element_wise(
        pa.array(key_groups).cast(pa.string()).cast(pa.large_binary()), encode_keys(keys.columns),
        pa.scalar(b"/", pa.large_binary()),
    )  # fmt: skip
    return group_keys(whole)


def spans_of(ascending: npt.NDArray[np.int32]) -> tuple[tuple[int, int, int], ...]:
    """Return (key-group, start, end) of each run of equal key-groups; nothing for nothing."""
    if not len(ascending):
        return ()
    begins = (np.flatnonzero(ascending[1:] != ascending[:-1]) + 1).tolist()
    starts = [0, *begins]
    return tuple(zip(ascending[starts].tolist(), starts, [*begins, len(ascending)], strict=True))


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
            id="RIFFLE-0481",
        )


def _check_hash(order: Order, keys: pa.Table, hashes: Hashes, key_groups: npt.NDArray[np.int32]) -> None:
    """Compare a sample with Python's own hash: routing and every tool that reads state must agree on it."""
    own = keygroups.key_hashes(keys.columns)
    routed = keygroups.key_groups([keys.column(name) for name in order.routing], order.total)
    if not (np.array_equal(own, hashes) and np.array_equal(routed, key_groups[: len(own)])):
        raise ConfigError(
            "Spark and riffle hash these keys differently",
            remedy="cast the key columns to a plain string, binary, number, date or timestamp (no collation)",
            where=order.store,
            id="RIFFLE-0482",
        )


def with_stored(schema: PlainColumns, touched: TouchedKeys, stacks: Mapping[int, OpenStack]) -> TouchedKeys:
    """Return the touched keys and all others that the stacks hold: these have no rows."""
    names, groups = schema.key.names, sorted(stacks)
    stored = [merge_runs(stacks[key_group].runs, names, schema.row_schema, bottom=True) for key_group in groups]
    keys = pa.concat_tables([touched.keys, *(cast_table(table.select(names), touched.keys.schema) for table in stored)])
    hashes = np.concatenate([touched.hashes, *(table.column(STORED_HASH).to_numpy() for table in stored)])
    of_stored = np.repeat(np.array(groups, np.int32), [table.num_rows for table in stored])
    key_groups, keys = np.concatenate([touched.key_groups, of_stored]), keys.combine_chunks()
    once = newest_by_group(hashes, keys, key_groups)
    place = np.empty(len(hashes), np.int64)
    place[once] = np.arange(len(once))
    codes, spans = place[touched.codes], spans_of(key_groups[once])
    return TouchedKeys(keys.take(pa.array(once)), hashes[once], key_groups[once], codes, spans)


def read_state(
    schema: PlainColumns, touched: TouchedKeys, stacks: Mapping[int, OpenStack]
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """Return the touched keys' state, row for row (nulls where there is none), and which keys have any."""
    wanted = [WantedKeys(start, end, stacks[kg].runs) for kg, start, end in touched.spans if kg in stacks]
    rows, found = look_up(wanted, touched.hashes, touched.keys, schema.row_schema)
    return rows.select(schema.state.names), found


def on_time(order: Order, rows: pa.Table) -> tuple[pa.Table, dict[str, object]]:
    """Return the rows that are not late, and what the receipt tells of all of them; where nothing can be late, all
    rows and nothing.
    """
    rule = order.late_rule
    if rule is None:
        return rows, {}
    times = _of_events(order, rows, rows.column(rule.column))
    late = _are_late(times, order.late_watermark_ms or 0)
    count = pc.sum(late).as_py() or 0
    told: dict[str, object] = {} if order.watermark is None else {"event_time_max_ms": newest_ms(times)}
    if not count:
        return rows, {**told, "late_rows": 0}
    left_out = _count_keys(order, rows.filter(late)) if rule.by == "keys" else count
    return rows.filter(pc.invert(late)), {**told, "late_rows": left_out}


def _count_keys(order: Order, rows: pa.Table) -> int:
    """Return how many distinct keys rows have."""
    hashes = rows.column(HASH).to_numpy().view(np.uint64)
    return len(_grouped(rows.select(order.key).combine_chunks(), hashes, rows.column(KEY_GROUP).to_numpy())[1])


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
