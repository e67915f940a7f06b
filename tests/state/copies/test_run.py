"""Lookups in stacks of runs and merged runs agree with a dictionary, also for keys that share a hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.keygroups import SEED, key_hashes
from riffle_spark.keyhash import hash_longs
from riffle_spark.state.copies.run import RequestedKeys, Run, look_up_keys, merge_runs
from riffle_spark.state.formats.due_times import compute_due_times
from riffle_spark.state.formats.key_codec import find_differing_rows
from riffle_spark.state.log.manifest import Entry, Head, Link
from riffle_spark.state.restore.stack_parts import UNKNOWN_MS, timer_at_head
from riffle_spark.state.schemas.plain_columns import PlainColumns

PAIRS = PlainColumns("s", pa.schema([("a", pa.int64()), ("b", pa.int64())]), pa.schema([("v", pa.string())]))
_WORD = 1 << 64
_ONE, _TWO, _FIVE = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x27D4EB2F165667C5

Key = tuple[int, int]


def seeds(a: int) -> int:
    """Return the hash of the first column, which seeds the hash of the second."""
    return int(hash_longs(np.array([a], np.uint64), np.array([SEED], np.uint64))[0])


def turned(word: int, bits: int) -> int:
    """Rotate a 64-bit word to the left."""
    return ((word << bits) | (word >> (64 - bits))) % _WORD


def sharing(key: Key, a: int) -> Key:
    """Return a key with the first column ``a`` and the same hash as ``key``, found by inverting the hash."""
    mixed = turned(key[1] % _WORD * _TWO % _WORD, 31) * _ONE % _WORD
    mixed_second = mixed ^ ((seeds(key[0]) + _FIVE + 8) % _WORD) ^ ((seeds(a) + _FIVE + 8) % _WORD)
    b = turned(mixed_second * pow(_ONE, -1, _WORD) % _WORD, 64 - 31) * pow(_TWO, -1, _WORD) % _WORD
    return a, b - _WORD if b >= _WORD // 2 else b


TWINS = [(1, 10), sharing((1, 10), 2), sharing((1, 10), 3), (1, 11), sharing((1, 11), 2), (5, 5)]


def test_the_keys_of_these_tests_share_hashes() -> None:
    """The constructed keys share hashes, which the other tests of this file rely on."""
    hashes = hashes_of(TWINS).tolist()
    assert hashes[0] == hashes[1] == hashes[2]
    assert hashes[3] == hashes[4]
    assert len(set(hashes)) == 3


def hashes_of(keys: list[Key]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return the hashes of keys."""
    return key_hashes([pa.array([key[column] for key in keys], pa.int64()) for column in (0, 1)])


def run_of(changes: dict[Key, str | None]) -> list[Run]:
    """Return changes as a run; ``None`` deletes the key."""
    if not changes:
        return []
    columns = [[a for a, _ in changes], [b for _, b in changes], list(changes.values())]
    table = PAIRS.sealed(
        pa.table([*columns, [v is None for v in changes.values()]], schema=PAIRS.part_schema(delta=True))
    )
    (batch,) = table.select(PAIRS.row_schema.names).combine_chunks().to_batches()
    return [Run(table["__hash"].to_numpy(), batch, table["__deleted"].to_numpy())]


CHANGES = st.lists(st.dictionaries(st.sampled_from(TWINS), st.none() | st.text(max_size=3)), max_size=6)


@given(CHANGES, st.lists(st.sampled_from(TWINS), unique=True))
def test_the_newest_row_of_each_key_is_found(history: list[dict[Key, str | None]], requested: list[Key]) -> None:
    """A lookup finds the newest row of each key and no deleted key, also if keys share a hash."""
    runs = [run for changes in reversed(history) for run in run_of(changes)]
    requested = sorted(requested, key=lambda key: int(hashes_of([key])[0]))
    keys = pa.table([[a for a, _ in requested], [b for _, b in requested]], schema=PAIRS.key)
    rows, exists = look_up_keys([RequestedKeys(0, len(requested), runs)], hashes_of(requested), keys, PAIRS.row_schema)
    model: dict[Key, str | None] = {}
    for changes in history:
        model |= changes
    assert rows["v"].to_pylist() == [model.get(key) for key in requested]
    assert exists.tolist() == [model.get(key) is not None for key in requested]


@pytest.mark.parametrize("bottom", [False, True])
@given(CHANGES)
def test_a_merge_keeps_the_newest_row_per_key(bottom: bool, history: list[dict[Key, str | None]]) -> None:
    """A merge keeps the newest row per key, ordered by hash and key, and drops deleted keys at a stack's bottom."""
    runs = [run for changes in reversed(history) for run in run_of(changes)]
    table = merge_runs(runs, ["a", "b"], PAIRS.row_schema, bottom=bottom)
    model: dict[Key, str | None] = {}
    for changes in history:
        model |= changes
    expected = {key: value for key, value in model.items() if value is not None or not bottom}
    rows = {(row["a"], row["b"]): row["v"] for row in table.to_pylist()}
    assert (rows, table.num_rows) == (expected, len(expected))
    assert ("__deleted" in table.column_names) is not bottom
    assert table["__hash"].to_pylist() == hashes_of(list(rows)).tolist()
    assert list(rows) == sorted(rows, key=lambda key: (int(hashes_of([key])[0]), key))


UNTIL = PlainColumns("s", PAIRS.key, pa.schema([("until", pa.int64())]), "until", "EventTime")


def dated(changes: dict[Key, int | None], first_ms: int) -> list[Run]:
    """Return keys with their expiry times as a run; ``None`` deletes the key."""
    if not changes:
        return []
    columns = [[a for a, _ in changes], [b for _, b in changes], list(changes.values())]
    is_deleted = [until is None for until in changes.values()]
    table = UNTIL.sealed(pa.table([*columns, is_deleted], schema=UNTIL.part_schema(delta=True)))
    (batch,) = table.select(UNTIL.row_schema.names).combine_chunks().to_batches()
    deleted = table["__deleted"].to_numpy()
    return [
        Run(table["__hash"].to_numpy(), batch, deleted, compute_due_times(batch["until"], deleted), first_ms=first_ms)
    ]


@given(
    st.lists(st.dictionaries(st.sampled_from(TWINS), st.none() | st.integers(0, 9)), max_size=5), st.integers(-1, 10)
)
def test_expired_rows_are_not_found_and_still_hide_older_rows(
    history: list[dict[Key, int | None]], first_ms: int
) -> None:
    """Rows that expired before the timer are not found, not merged at the bottom, and still hide older rows below."""
    runs = [run for changes in reversed(history) for run in dated(changes, first_ms)]
    newest: dict[Key, int | None] = {}
    for changes in history:
        newest |= changes
    living = {key: until for key, until in newest.items() if until is not None and until >= first_ms}
    requested = sorted(TWINS, key=lambda key: int(hashes_of([key])[0]))
    keys = pa.table([[a for a, _ in requested], [b for _, b in requested]], schema=UNTIL.key)
    rows, exists = look_up_keys([RequestedKeys(0, len(requested), runs)], hashes_of(requested), keys, UNTIL.row_schema)
    assert rows["until"].to_pylist() == [living.get(key) for key in requested]
    assert exists.tolist() == [key in living for key in requested]
    whole = merge_runs(runs, ["a", "b"], UNTIL.row_schema, bottom=True)
    assert {(row["a"], row["b"]): row["until"] for row in whole.to_pylist()} == living
    top = merge_runs(runs, ["a", "b"], UNTIL.row_schema, bottom=False)
    stacked = [
        Run(top["__hash"].to_numpy(), rows, top["__deleted"].to_numpy())
        for rows in top.select(UNTIL.row_schema.names).combine_chunks().to_batches()
        if len(rows)
    ]
    below = [RequestedKeys(0, len(requested), [*stacked, *dated(dict.fromkeys(TWINS, 99), first_ms)])]
    _, exists = look_up_keys(below, hashes_of(requested), keys, UNTIL.row_schema)
    assert exists.tolist() == [key in living or key not in newest for key in requested]


def test_the_timer_of_an_entry_applies_to_copies_at_its_head_only() -> None:
    """The timer of an entry applies to copies at its head only, because an older copy still has rows that expired
    since.
    """
    entry = Entry(None, (Link(Head(3, "1-a"), 0, 1, 0, 1),), timer_ms=50)
    assert timer_at_head(entry, Head(3, "1-a")) == 50
    assert timer_at_head(entry, Head(2, "1-a")) == UNKNOWN_MS
    assert timer_at_head(Entry(None, (Link(Head(3, "1-a"), 0, 1, 0, 1),)), Head(3, "1-a")) is None


def test_nulls_zeros_and_nans_compare_as_in_spark() -> None:
    """Keys compare as in Spark: NULL equals NULL, NaN equals NaN, and -0.0 equals 0.0."""
    left = pa.table({"f": pa.array([0.0, float("nan"), None, 1.0, None]), "t": pa.array(["a", None, "b", "c", "d"])})
    right = pa.table({"f": pa.array([-0.0, float("nan"), None, 2.0, 1.0]), "t": pa.array(["a", None, "B", "c", "d"])})
    assert find_differing_rows(left, left).tolist() == []
    assert find_differing_rows(left, right).tolist() == [2, 3, 4]
