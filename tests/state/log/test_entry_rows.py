"""Entries that are decoded as columns equal entries that are decoded link by link, and both refuse the same input."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import UNREADABLE, ConfigError
from riffle_spark.state.log import entry_rows
from riffle_spark.state.log.entry_rows import NUMBERS_END, checked_entries_from_json, entries_from_json, entries_to_text
from riffle_spark.state.log.manifest import Address, Block, Entry, Head, Link, MergedDelta, Snapshot, link_in_block
from riffle_spark.state.log.record import Record
from tests.kit.state.drawn_records import RECORDS, link

ODD = st.sampled_from([-1, NUMBERS_END - 1, NUMBERS_END, True, 1.0, None, "1", "-1", "x", 0, 1, 7, [], [1]])
REFUSED = (ConfigError, *UNREADABLE)


def columns_of(entries: dict[Address, Entry]) -> dict[str, Any]:
    """Return entries as the JSON columns of a record."""
    columns: dict[str, Any] = json.loads(entries_to_text(entries))
    return columns


class LinkByLinkDecoder:
    """Decodes the entries of a record one row and one link at a time."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.heads = [Head(row[0], row[1]) for row in columns["heads"]]
        self.places = [
            (head, None, *self.block(row[2:])) for head, row in zip(self.heads, columns["heads"], strict=True)
        ]
        for row in columns.get("merged", []):
            block = self.block(row[3:] if len(row) > 4 else [])
            self.places.append((self.heads[row[0]], MergedDelta(*row[1:4]), *block))  # type: ignore[arg-type]

    def block(self, row: list[Any]) -> tuple[Block | None, int]:
        """Return a block and its checksum."""
        if not row:
            return None, 0
        size, rows, checksum = row
        assert all(type(number) is int and 0 <= number < NUMBERS_END for number in (size, rows))
        assert int(checksum, 16) >= 0
        return Block(size, rows), int(checksum, 16)

    def link(self, store: str, key_group: int, numbers: list[Any]) -> Link:
        """Return a link from its numbers."""
        place, start, length, checksum, rows = numbers
        assert type(place) is type(rows) is int
        assert place >= 0
        head, merged, block, block_checksum = self.places[place]
        read = Link(head, start, length, 0 if block else int(checksum, 16), rows, merged, block)
        if block is not None:
            read = link_in_block(head, start, block_checksum, rows, block, merged)
            assert start == key_group
        if merged is not None:
            entry_rows._check_merged(merged)
        entry_rows.check_link(store, read)
        return read

    def entry(self, store: str, row: list[Any]) -> tuple[Address, Entry]:
        """Return an entry and its address from its row."""
        key_group, timer_ms, snapshot_row, numbers, cut = row
        assert type(key_group) is int
        assert 0 <= key_group < 32_768
        assert timer_ms is None or (type(timer_ms) is int and abs(timer_ms) < NUMBERS_END)
        snapshot = None
        if snapshot_row is not None:
            name, index, length, checksum, rows = snapshot_row
            snapshot = Snapshot(name, self.heads[index], length, int(checksum, 16), rows)
            entry_rows.check_link(store, Link(snapshot.head, 0, *snapshot[2:]))
            assert entry_rows._SNAPSHOT.match(name)
            assert int(name.split("-")[0]) == max(snapshot.head.version, 0)
        assert len(numbers) % 5 == 0
        chain = [self.link(store, key_group, numbers[first : first + 5]) for first in range(0, len(numbers), 5)]
        if cut is not None:
            assert entry_rows.is_possible(self.heads[cut])
        return (store, key_group), Entry(snapshot, tuple(chain), timer_ms, None if cut is None else self.heads[cut])

    def entries(self, stores: dict[str, Any]) -> dict[Address, Entry]:
        """Return all entries."""
        entries: dict[Address, Entry] = {}
        for store, rows in stores.items():
            for row in rows:
                address, entry = self.entry(store, row)
                assert address not in entries
                entries[address] = entry
        return entries


def read_each_by_itself(columns: dict[str, Any]) -> dict[Address, Entry]:
    """Return the entries of a record, decoded one at a time."""
    return LinkByLinkDecoder(columns).entries(columns["stores"])


def result_of(read: Any, columns: dict[str, Any]) -> object:
    """Return the result of ``read`` with the types of all values, or ``None`` if ``read`` refuses the columns."""
    try:
        return repr(read(columns))
    except REFUSED:
        return None


def places_in(value: Any) -> list[tuple[Any, int]]:
    """Return each position in nested lists as a list and an index."""
    lists = list(value.values()) if isinstance(value, dict) else [value]
    places: list[tuple[Any, int]] = []
    while lists:
        inner = lists.pop()
        if isinstance(inner, dict):
            lists += inner.values()
        elif isinstance(inner, list):
            places += [(inner, index) for index in range(len(inner))]
            lists += inner
    return places


@given(RECORDS)
def test_decoding_entries_together_equals_decoding_link_by_link(record: Record) -> None:
    """Decoded entries equal the original ones, with and without checks, and equal those decoded link by link."""
    columns = columns_of(dict(record.entries))
    assert checked_entries_from_json(columns) == entries_from_json(columns) == record.entries
    assert repr(checked_entries_from_json(columns)) == repr(read_each_by_itself(columns))


@given(RECORDS, st.lists(st.tuples(st.integers(0, 1 << 20), ODD), min_size=1, max_size=8))
def test_odd_values_are_refused_as_when_decoding_link_by_link(
    record: Record, damages: list[tuple[int, object]]
) -> None:
    """An odd value in any position is refused exactly if decoding link by link refuses it."""
    columns = columns_of(dict(record.entries))
    for place, odd in damages:
        damaged = deepcopy(columns)
        places = places_in(damaged)
        if places:
            inner, index = places[place % len(places)]
            inner[index] = odd
            assert result_of(checked_entries_from_json, damaged) == result_of(read_each_by_itself, damaged), damaged


@given(RECORDS, st.integers(0, 1 << 20))
def test_missing_values_are_refused_as_when_decoding_link_by_link(record: Record, place: int) -> None:
    """A missing value in any position is refused exactly if decoding link by link refuses it."""
    columns = columns_of(dict(record.entries))
    places = places_in(columns)
    if places:
        inner, index = places[place % len(places)]
        del inner[index]
        assert result_of(checked_entries_from_json, columns) == result_of(read_each_by_itself, columns), columns


@given(RECORDS)
def test_entries_are_encoded_as_compact_json(record: Record) -> None:
    """The text of entries is compact JSON exactly as ``json`` writes it, and decodes to the same entries."""
    written = entries_to_text(record.entries)
    columns = json.loads(written)
    assert json.dumps(columns, separators=(",", ":")) == written
    assert checked_entries_from_json(columns) == record.entries


def test_a_head_whose_version_is_a_float_is_refused() -> None:
    """A head whose version is a float is refused, although it equals the head with an integer."""
    columns = columns_of({("totals", 0): Entry(chain=(link(3), link(4)))})
    version, attempt = columns["heads"][0]
    columns["heads"][1] = [float(version), attempt]
    with pytest.raises(ValueError, match="invalid head"):
        checked_entries_from_json(columns)


def test_a_key_group_that_is_listed_twice_is_refused() -> None:
    """A key-group that is listed twice is refused, because one of its entries would be lost."""
    columns = columns_of({("totals", 0): Entry(chain=(link(3),)), ("totals", 1): Entry(chain=(link(3),))})
    columns["stores"]["totals"][1][0] = 0
    with pytest.raises(ValueError, match="twice"):
        checked_entries_from_json(columns)


@pytest.mark.parametrize("key_group", [-1, 32_768, True, "0"])
def test_an_impossible_key_group_is_refused(key_group: object) -> None:
    """A key-group that no query can have is refused."""
    columns = columns_of({("totals", 0): Entry(chain=(link(3),))})
    columns["stores"]["totals"][0][0] = key_group
    assert result_of(read_each_by_itself, columns) is None
    with pytest.raises(ValueError, match="there is a key-group"):
        checked_entries_from_json(columns)


@pytest.mark.parametrize(("place", "number"), [(2, -1), (2, 1.0), (3, NUMBERS_END), (3, True), (4, "-1")])
def test_an_impossible_block_is_refused(place: int, number: object) -> None:
    """A block with an impossible size, number of rows or checksum is refused."""
    block = link_in_block(link(3).head, 0, 7, 1, Block(100, 5), None)
    columns = columns_of({("totals", 0): Entry(chain=(block,))})
    assert checked_entries_from_json(columns)
    columns["heads"][0][place] = number
    assert result_of(read_each_by_itself, columns) is None
    with pytest.raises(ValueError, match=r"invalid (block|checksum)"):
        checked_entries_from_json(columns)
