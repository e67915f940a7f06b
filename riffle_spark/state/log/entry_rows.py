"""Entries and links as JSON: columns of plain numbers, a table of heads, and a table of links of merged deltas.

A link has the index of its head. An index from the number of heads on is that of a row in the table of merged deltas,
which has the head, id, level and size. If the object is a block, its row also has the block's size, rows and checksum
(of a merged delta: rows and checksum), and its links have only their key-group and rows.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from operator import add
from typing import NamedTuple, cast

from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import (
    EMPTY_HEAD,
    Address,
    Block,
    Entry,
    Head,
    Link,
    MergedDelta,
    Snapshot,
    link_in_block,
    make_link,
)

__all__ = [
    "NUMBERS_END",
    "changed_entries_from_json",
    "check_entries",
    "check_link",
    "entries_from_json",
    "entries_to_text",
    "is_possible",
    "link_from_json",
    "link_to_json",
    "newest_links_to_text",
]

_ATTEMPT = re.compile(r"[0-9]{1,19}-[0-9a-f]{1,64}\Z")
_SNAPSHOT = re.compile(r"[0-9]{1,20}-[0-9]{1,19}-[0-9a-f]{1,64}\Z")
_KEY_GROUPS_MAX = 1 << 15
_LEVELS_MAX = 64
NUMBERS_END = 1 << 63
"""All numbers of a record are smaller."""

_Row = tuple[int, "int | None", "list[object] | None", "list[int | str]", "int | None"]
"""Key-group, timer, snapshot, chain as five numbers per link, and the head that the entry is cut at."""
_EntryRow = tuple[Address, "int | None", tuple[Link, ...], "Snapshot | None", "Head | None"]
"""An entry to write: its key-group, timer, chain, snapshot, and the head that it is cut at."""
_json_text = json.JSONEncoder(separators=(",", ":")).encode


def link_to_json(link: Link) -> list[object]:
    """Return a link as a JSON array."""
    return [link.head.version, link.head.attempt, link.start, link.length, f"{link.checksum:016x}", link.rows]


def link_from_json(row: list[object]) -> Link:
    """Return the link in a JSON array that ``link_to_json`` wrote."""
    version, attempt, start, length, checksum, rows = cast("tuple[int, str, int, int, str, int]", tuple(row))
    return Link(Head(version, attempt), start, length, int(checksum, 16), rows)


def entries_to_text(entries: Mapping[Address, Entry]) -> str:
    """Return the entries by store as one line of JSON, with their heads as indexes into a table.

    ``merged`` is present only if there are links of merged deltas.
    """
    ordered = sorted(entries)
    return _rows_to_text([_row(address, entries[address]) for address in ordered])


def newest_links_to_text(entries: Iterable[tuple[Address, Entry, int | None]]) -> str:
    """Return the text of sorted entries, each cut to so many of its newest links (``None``: whole)."""
    return _rows_to_text(
        [
            _row(address, entry)
            if links is None or len(entry.chain) <= links
            else (address, entry.timer_ms, entry.chain[-links:], None, entry.chain[-links - 1].head)
            for address, entry, links in entries
        ]
    )


def _row(address: Address, entry: Entry) -> _EntryRow:
    """Return the row of a whole entry."""
    return address, entry.timer_ms, entry.chain, entry.snapshot, entry.cut


def _rows_to_text(rows: list[_EntryRow]) -> str:
    """Return the text of entries.

    Numbers are formatted here, and links are read by their fields, because lists and iterators of them would be many
    objects for the garbage collector.
    """
    links = list(chain.from_iterable([row[2] for row in rows]))
    ends = [end for row in rows for end in (row[3] and row[3].head, row[4]) if end]
    indexes, places, merged_rows = _number_places(links, ends)
    blocks = {
        place: (f",{link.block.size}", f',{link.block.rows},"{link.checksum:016x}"')
        for place, link in dict(zip(places, links, strict=True)).items()
        if link.block is not None
    }
    texts = [
        f'{place},{link.start},0,"0",{link.rows}'
        if link.block is not None
        else f'{place},{link.start},{link.length},"{link.checksum:016x}",{link.rows}'
        for place, link in zip(places, links, strict=True)
    ]
    by_store: dict[str, list[str]] = {}
    first = 0
    for (store, key_group), timer_ms, chain_links, snapshot, cut in rows:
        end = first + len(chain_links)
        of_store = by_store.get(store)
        if of_store is None:
            of_store = by_store[store] = []
        of_store.append(
            f"[{key_group},{'null' if timer_ms is None else timer_ms},"
            f"{'null' if snapshot is None else _snapshot_text(snapshot, indexes)},"
            f"[{','.join(texts[first:end])}],{'null' if cut is None else indexes[cut]}]"
        )
        first = end
    heads_text = ",".join(
        [
            f"[{head.version},{_json_text(head.attempt)}{''.join(blocks.get(index, ()))}]"
            for head, index in indexes.items()
        ]
    )
    stores_text = ",".join([f"{_json_text(store)}:[{','.join(of_store)}]" for store, of_store in by_store.items()])
    text = f'{{"heads":[{heads_text}],"stores":{{{stores_text}}}'
    if not merged_rows:
        return text + "}"
    merged_text = ",".join(
        [
            f"[{index},{_json_text(merged.id)},{merged.level},{merged.size}{''.join(blocks.get(place, ())[1:])}]"
            for place, (index, merged) in merged_rows.items()
        ]
    )
    return f'{text},"merged":[{merged_text}]}}'


def _snapshot_text(snapshot: Snapshot, indexes: Mapping[Head, int]) -> str:
    """Return the row of a snapshot, given the index of each head."""
    id, head, length, checksum, count = snapshot
    return _json_text([id, indexes[head], length, f"{checksum:016x}", count])


def _number_places(
    links: Sequence[Link], ends: Iterable[Head]
) -> tuple[dict[Head, int], list[int], dict[int, tuple[int, MergedDelta]]]:
    """Return the index of each head of a link or end, the place of each link, and by place each merged delta with the
    index of its head.

    The place of a link is the index of its head. Those of merged deltas follow all heads.
    """
    heads = [link.head for link in links]
    indexes = {head: index for index, head in enumerate(dict.fromkeys(chain(heads, ends)))}
    places = [indexes[head] for head in heads]
    merged_places: dict[tuple[Head, MergedDelta], int] = {}
    rows: dict[int, tuple[int, MergedDelta]] = {}
    for number, merged in enumerate([link.merged for link in links]):
        if merged is not None:
            place = merged_places.setdefault((heads[number], merged), len(indexes) + len(rows))
            if place not in rows:
                rows[place] = (places[number], merged)
            places[number] = place
    return indexes, places, rows


def entries_from_json(columns: dict[str, object]) -> dict[Address, Entry]:
    """Return the entries that ``entries_to_text`` wrote.

    Other JSON raises ``KeyError``, ``IndexError``, ``TypeError`` or ``ValueError``; call ``check_entries`` for the
    values.
    """
    head_rows = cast("list[tuple[int, str]]", columns["heads"])
    heads = [Head(row[0], row[1]) for row in head_rows]
    merged_rows = cast("list[tuple[int, str, int, int]]", columns.get("merged", []))
    places = [_Place(head, None, *_parse_block(row[2:])) for head, row in zip(heads, head_rows, strict=True)]
    places += [
        _Place(heads[row[0]], MergedDelta(*row[1:4]), *_parse_block(row[3:] if len(row) > 4 else ()))
        for row in merged_rows
    ]

    def snapshot(row: list[object] | None) -> Snapshot | None:
        if row is None:
            return None
        id, head, length, checksum, count = cast("tuple[str, int, int, str, int]", tuple(row))
        return Snapshot(id, heads[head], length, int(checksum, 16), count)

    stores = cast("dict[str, list[_Row]]", columns["stores"])
    rows = [(store, *row) for store, of_store in stores.items() for row in of_store]
    links = _links_of(places, [row[4] for row in rows])
    entries: dict[Address, Entry] = {}
    first = 0
    for store, key_group, timer, snapshot_row, numbers, cut in rows:
        end = first + len(numbers) // 5
        of_entry = tuple(links[first:end])
        entries[store, key_group] = Entry(snapshot(snapshot_row), of_entry, timer, None if cut is None else heads[cut])
        first = end
    return entries


def _links_of(places: Sequence["_Place"], chains: Sequence[list[int | str]]) -> list[Link]:
    """Return the links of all chains, one after the other. Each link is five numbers of its chain."""
    if any(len(numbers) % 5 for numbers in chains):
        raise ValueError("a chain does not have five numbers per link")
    flat = list(chain.from_iterable(chains))
    if not flat:
        return []
    indexes, starts, lengths, checksums, counts = (cast("list[int]", flat[column::5]) for column in range(5))
    if set(map(type, indexes)) != {int} or min(indexes) < 0:
        raise TypeError("a chain has a head that is not an index")
    if set(map(type, counts)) != {int}:
        raise TypeError("a link has rows that are not a number")
    heads, merged, blocks, block_checksums = zip(*[places[index] for index in indexes], strict=True)
    sizes = [
        length if block is None else block.share_of(count)
        for length, count, block in zip(lengths, counts, blocks, strict=True)
    ]
    sums = [
        int(cast(str, checksum), 16) if block is None else block_checksum
        for checksum, block, block_checksum in zip(checksums, blocks, block_checksums, strict=True)
    ]
    return list(map(make_link, zip(heads, starts, sizes, sums, counts, merged, blocks, strict=True)))


def changed_entries_from_json(columns: dict[str, object], version: int, epoch: int) -> dict[Address, Entry]:
    """Return the entries whose newest link has this version and epoch. They have this link alone.

    Raises the errors of ``entries_from_json`` for other JSON; call ``check_entries`` for the values.
    """
    places = {
        index: _Place(Head(version, row[1]), None, *_parse_block(row[2:]))
        for index, row in enumerate(cast("list[tuple[int, str]]", columns["heads"]))
        if row[0] == version and row[1].startswith(f"{epoch}-")
    }
    changed: dict[Address, Entry] = {}
    for store, rows in cast("dict[str, list[_Row]]", columns["stores"]).items():
        for key_group, timer, _, links, _ in rows:
            if links and (place := places.get(cast(int, links[-5]))) is not None:
                numbers = cast("tuple[int, int, str, int]", tuple(links[-4:]))
                changed[store, key_group] = Entry(None, (place.make_link(*numbers),), timer)
    return changed


class _Place(NamedTuple):
    """A head, and the object that leads to it: a delta or a merged delta, and its block with the checksum."""

    head: Head
    merged: MergedDelta | None
    block: Block | None
    checksum: int

    def make_link(self, start: int, length: int, checksum: str, rows: int) -> Link:
        """Return the link of these numbers."""
        if self.block is None:
            return Link(self.head, start, length, int(checksum, 16), rows, self.merged)
        if type(rows) is not int:
            raise TypeError(f"a link has {rows!r} rows")
        return link_in_block(self.head, start, self.checksum, rows, self.block, self.merged)


def _parse_block(numbers: Sequence[object]) -> tuple[Block | None, int]:
    """Return the block and its checksum in a row of a table, ``None`` and 0 for a row without a block.

    Raises ``TypeError`` or ``ValueError`` for other values.
    """
    if not numbers:
        return None, 0
    size, rows, checksum = numbers
    for number in (size, rows):
        if type(number) is not int or not 0 <= number < NUMBERS_END:
            raise ValueError(f"invalid block of {size!r} bytes with {rows!r} rows")
    return Block(cast(int, size), cast(int, rows)), int(cast(str, checksum), 16)


def check_entries(entries: Mapping[Address, Entry]) -> None:
    """Raise ``ValueError`` or ``ConfigError`` for entries with impossible values, because names of objects and files
    are made of them.
    """
    for store in {store for store, _ in entries}:
        paths.check_store_name(store)
    for (store, key_group), entry in entries.items():
        snapshot = entry.snapshot
        if type(key_group) is not int or not 0 <= key_group < _KEY_GROUPS_MAX:
            raise ValueError(f"store {store} has a key-group {key_group!r}")
        if entry.timer_ms is not None and not (type(entry.timer_ms) is int and abs(entry.timer_ms) < NUMBERS_END):
            raise ValueError(f"invalid timer {entry.timer_ms!r}")
        if entry.cut is not None:
            _check_head(entry.cut)
        if snapshot is not None:
            _check_link(Link(snapshot.head, 0, *snapshot[2:]))
            if type(snapshot.id) is not str or not _SNAPSHOT.match(snapshot.id):
                raise ValueError(f"invalid snapshot id {snapshot.id!r}")
            if int(snapshot.id.partition("-")[0]) != max(snapshot.head.version, 0):
                raise ValueError(f"snapshot {snapshot.id} is listed for version {snapshot.head.version}")
    links = list(chain.from_iterable([entry.chain for entry in entries.values()]))
    if links:
        lengths = [len(entry.chain) for entry in entries.values()]
        _check_links(links, list(chain.from_iterable(map(repeat, [number for _, number in entries], lengths))))


def check_link(store: str, link: Link) -> None:
    """Raise ``ValueError`` or ``ConfigError`` for a link, or a name of a store, with impossible values."""
    paths.check_store_name(store)
    _check_link(link)


def _check_links(links: list[Link], key_groups: list[int]) -> None:
    """Raise ``ValueError`` if a link, of the key-group at its place, has an impossible head or range.

    Each head and merged delta is checked once.
    """
    heads, starts, lengths, checksums, rows, merged, blocks = zip(*links, strict=True)
    for head in dict(zip(map(id, heads), heads, strict=True)).values():
        _check_head(head)
    if [*starts] != key_groups or None in blocks:
        for link, key_group in zip(links, key_groups, strict=True):
            if link.block is not None and link.start != key_group:
                raise ValueError(f"key-group {key_group} has a link in a block to another key-group, {link.start!r}")
    columns = (starts, lengths, checksums, rows)
    are_numbers = all(set(map(type, column)) == {int} and min(column) >= 0 for column in columns)
    if not are_numbers or max(chain(map(add, starts, lengths), rows)) >= NUMBERS_END:
        for link in links:
            _check_link(link)
    for link in dict(zip(map(id, merged), links, strict=True)).values():
        if link.merged is not None:
            _check_merged(link)


def _check_link(link: Link) -> None:
    """Raise ``ValueError`` for a link with an impossible head or range."""
    _check_head(link.head)
    are_numbers = all(type(number) is int and number >= 0 for number in link[1:5])
    if not are_numbers or max(link.start + link.length, link.rows) >= NUMBERS_END:
        raise ValueError(f"invalid part at {link.start!r} with {link.length!r} bytes and {link.rows!r} rows")


def _check_merged(link: Link) -> None:
    """Raise ``ValueError`` for a link of a merged delta with an impossible id, level or size."""
    merged = link.merged
    assert merged is not None, "only links of merged deltas are checked"
    if type(merged.id) is not str or not _SNAPSHOT.match(merged.id):
        raise ValueError(f"invalid id of a merged delta {merged.id!r}")
    is_level = type(merged.level) is int and 0 < merged.level < _LEVELS_MAX
    if not is_level or type(merged.size) is not int or not 0 <= merged.size < NUMBERS_END:
        raise ValueError(f"invalid level {merged.level!r} or size {merged.size!r} of merged delta {merged.id}")


def _check_head(head: Head) -> None:
    """Raise ``ValueError`` for a head that no attempt can have made."""
    if not is_possible(head):
        raise ValueError(f"invalid head {tuple(head)!r}")


def is_possible(head: Head) -> bool:
    """Return whether an attempt can have made this head. Raises ``TypeError`` if its attempt is not text."""
    is_number = type(head.version) is int and abs(head.version) < NUMBERS_END
    return head == EMPTY_HEAD or (is_number and _ATTEMPT.match(head.attempt) is not None)
