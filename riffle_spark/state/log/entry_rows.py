"""Entries and links as JSON: rows of plain numbers, a table of heads, and a table of merged deltas.

A link has an index into both tables, one after the other. A row of the second table has the head's index and the id,
level and size of the merged delta. If the object is a block, the row also has the block's size, rows and checksum (rows
and checksum for a merged delta), and its links have only their key-group and rows.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise, repeat
from json.encoder import encode_basestring_ascii
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
    make_link,
    shares_of,
)

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
_quoted = encode_basestring_ascii
"""Returns a string as JSON."""


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
    """Return the text of sorted entries, each cut to the given number of newest links (``None``: not cut)."""
    return _rows_to_text(
        [
            _row(address, entry)
            if links is None or len(entry.chain) <= links
            else (address, entry.timer_ms, entry.chain[-links:], None, entry.chain[-links - 1].head)
            for address, entry, links in entries
        ]
    )


def _row(address: Address, entry: Entry) -> _EntryRow:
    return address, entry.timer_ms, entry.chain, entry.snapshot, entry.cut


def _rows_to_text(rows: list[_EntryRow]) -> str:
    """Return the text of entries.

    It is formatted without a list per link, because so many objects would start garbage collections.
    """
    links = list(chain.from_iterable([row[2] for row in rows]))
    ends = [end for row in rows for end in (row[3] and row[3].head, row[4]) if end]
    indexes, places, merged_rows = _number_places(links, ends)
    blocks = {
        place: (f",{block.size}", f',{block.rows},"{link.checksum:016x}"')
        for place, link in dict(zip(places, links, strict=True)).items()
        if (block := link.block) is not None
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
            f"[{head.version},{_quoted(head.attempt)}{''.join(blocks[index]) if index in blocks else ''}]"
            for head, index in indexes.items()
        ]
    )
    stores_text = ",".join([f"{_quoted(store)}:[{','.join(of_store)}]" for store, of_store in by_store.items()])
    text = f'{{"heads":[{heads_text}],"stores":{{{stores_text}}}'
    if not merged_rows:
        return text + "}"
    merged_text = ",".join(
        [
            f"[{index},{_quoted(merged.id)},{merged.level},{merged.size}{blocks[place][1] if place in blocks else ''}]"
            for place, (index, merged) in merged_rows.items()
        ]
    )
    return f'{text},"merged":[{merged_text}]}}'


def _snapshot_text(snapshot: Snapshot, indexes: Mapping[Head, int]) -> str:
    name, head, length, checksum, count = snapshot
    return f'[{_quoted(name)},{indexes[head]},{length},"{checksum:016x}",{count}]'


def _number_places(
    links: Sequence[Link], ends: Iterable[Head]
) -> tuple[dict[Head, int], list[int], dict[int, tuple[int, MergedDelta]]]:
    """Number the rows of both tables. A link's place is its index in the two tables, one after the other.

    Return the index of each head, the place of each link, and by place each merged delta with the index of its head.
    ``ends`` are further heads for the table: of snapshots and cuts.
    """
    heads = [link.head for link in links]
    indexes = {head: index for index, head in enumerate(dict.fromkeys(chain(heads, ends)))}
    places = [indexes[head] for head in heads]
    rows: dict[int, tuple[int, MergedDelta]] = {}
    all_merged = [link.merged for link in links]
    if any(all_merged):
        merged_places: dict[tuple[Head, MergedDelta], int] = {}
        for number, merged in enumerate(all_merged):
            if merged is not None:
                place = merged_places.setdefault((heads[number], merged), len(indexes) + len(rows))
                if place not in rows:
                    rows[place] = (places[number], merged)
                places[number] = place
    return indexes, places, rows


def entries_from_json(columns: Mapping[str, object]) -> dict[Address, Entry]:
    """Return the entries that ``entries_to_text`` wrote, without checking their values.

    Other JSON raises ``KeyError``, ``IndexError``, ``TypeError`` or ``ValueError``.
    """
    rows, tables = _parse(columns)
    return _entries_of(rows, tables, _links_of(tables, rows.chains))


def checked_entries_from_json(columns: Mapping[str, object]) -> dict[Address, Entry]:
    """Return the entries that ``entries_to_text`` wrote.

    Raises the errors of ``entries_from_json`` for other JSON, and ``TypeError``, ``ValueError`` or ``ConfigError`` for
    impossible values. The values are checked because names of objects and files contain them.
    """
    rows, tables = _parse(columns)
    links = _links_of(tables, rows.chains)
    entries = _entries_of(rows, tables, links)
    if len(entries) < len(rows.stores):
        raise ValueError("a key-group is listed twice")
    _check_rows(rows, tables)
    _check_snapshots([entry.snapshot for entry in entries.values() if entry.snapshot is not None])
    if links.places:
        lengths = [len(numbers) // 5 for numbers in rows.chains]
        _check_links(links, tables, list(chain.from_iterable(map(repeat, rows.key_groups, lengths))))
    return entries


def changed_entries_from_json(columns: Mapping[str, object], version: int, epoch: int) -> dict[Address, Entry]:
    """Return the entries whose newest link has this version and epoch, with only this link.

    Raises the errors of ``checked_entries_from_json``.
    """
    heads = cast("list[tuple[int, str]]", columns["heads"])
    changed = {n for n, row in enumerate(heads) if row[0] == version and row[1].startswith(f"{epoch}-")}
    newest = {
        store: [
            (key_group, timer, None, numbers[-5:], None)
            for key_group, timer, _, numbers, _ in rows
            if numbers and numbers[-5] in changed
        ]
        for store, rows in cast("dict[str, list[_Row]]", columns["stores"]).items()
    }
    return checked_entries_from_json({"heads": heads, "stores": newest})


class _Rows(NamedTuple):
    """The rows of all stores as columns: store, key-group, timer, snapshot, numbers of the chain, and cut."""

    stores: Sequence[str]
    key_groups: Sequence[int]
    timers: Sequence[int | None]
    snapshots: Sequence[list[object] | None]
    chains: Sequence[list[int | str]]
    cuts: Sequence[int | None]


class _Tables(NamedTuple):
    """The table of heads as ``ends``, and both tables as columns: head, merged delta, block and checksum of the block.

    The first places are the rows of the table of heads, for deltas. The others are the rows of the merged deltas.
    """

    ends: Sequence[Head]
    heads: Sequence[Head]
    merged: Sequence[MergedDelta | None]
    blocks: Sequence[Block | None]
    checksums: Sequence[int]


class _Links(NamedTuple):
    """Links as columns: the place in the tables, then the fields of ``Link`` in their order."""

    places: Sequence[int]
    heads: Sequence[Head]
    starts: Sequence[int]
    lengths: Sequence[int]
    checksums: Sequence[int]
    rows: Sequence[int]
    merged: Sequence[MergedDelta | None]
    blocks: Sequence[Block | None]


def _parse(columns: Mapping[str, object]) -> tuple[_Rows, _Tables]:
    """Return the rows of all stores, and the tables. Raises ``TypeError`` or ``ValueError`` for incomplete rows."""
    stores = cast("dict[str, list[_Row]]", columns["stores"])
    names = list(chain.from_iterable(map(repeat, stores, map(len, stores.values()))))
    fields = list(zip(*chain.from_iterable(stores.values()), strict=True)) or [()] * 5
    head_rows = cast("list[tuple[int, str]]", columns["heads"])
    merged_rows = cast("list[tuple[int, str, int, int]]", columns.get("merged", []))
    ends = [Head(row[0], row[1]) for row in head_rows]
    heads = [*ends, *[ends[row[0]] for row in merged_rows]]
    merged = [*repeat(None, len(ends)), *[MergedDelta(*row[1:4]) for row in merged_rows]]
    blocks = [_parse_block(row[2:]) for row in head_rows]
    blocks += [_parse_block(row[3:] if len(row) > 4 else ()) for row in merged_rows]
    tables = _Tables(ends, heads, merged, [block for block, _ in blocks], [checksum for _, checksum in blocks])
    return _Rows(names, *fields), tables


def _parse_block(numbers: Sequence[object]) -> tuple[Block | None, int]:
    """Return the block and its checksum in a row of a table, or ``None`` and 0 for a row without a block.

    Raises ``TypeError`` or ``ValueError`` for impossible values.
    """
    if not numbers:
        return None, 0
    size, rows, checksum = numbers
    for number in (size, rows):
        if type(number) is not int or not 0 <= number < NUMBERS_END:
            raise ValueError(f"invalid block of {size!r} bytes with {rows!r} rows")
    block_checksum = int(cast(str, checksum), 16)
    if block_checksum < 0:
        raise ValueError(f"invalid checksum {checksum!r} of a block")
    return Block(cast(int, size), cast(int, rows)), block_checksum


def _links_of(tables: _Tables, chains: Sequence[list[int | str]]) -> _Links:
    """Return the links of all chains, one chain after the other. Each link has five numbers."""
    if any(len(numbers) % 5 for numbers in chains):
        raise ValueError("a chain does not have five numbers per link")
    flat = list(chain.from_iterable(chains))
    places, starts, lengths, texts, rows = (cast("list[int]", flat[column::5]) for column in range(5))
    if flat and (set(map(type, places)) != {int} or min(places) < 0):
        raise TypeError("a chain has a head that is not an index")
    if flat and set(map(type, rows)) != {int}:
        raise TypeError("a link has rows that are not a number")
    heads = [tables.heads[place] for place in places]
    merged = [tables.merged[place] for place in places]
    blocks = [tables.blocks[place] for place in places]
    checksums = [tables.checksums[place] for place in places]
    if None not in blocks:
        lengths = shares_of(cast("list[Block]", blocks), rows)
        return _Links(places, heads, starts, lengths, checksums, rows, merged, blocks)
    lengths = [
        length if block is None else block.share_of(count)
        for length, count, block in zip(lengths, rows, blocks, strict=True)
    ]
    checksums = [
        int(cast(str, text), 16) if block is None else checksum
        for text, checksum, block in zip(texts, checksums, blocks, strict=True)
    ]
    return _Links(places, heads, starts, lengths, checksums, rows, merged, blocks)


def _entries_of(rows: _Rows, tables: _Tables, links: _Links) -> dict[Address, Entry]:
    """Return the entries of the rows, given the links of all chains."""
    of_all = tuple(map(make_link, zip(*links[1:], strict=True)))
    ends = list(accumulate([len(numbers) // 5 for numbers in rows.chains], initial=0))
    chains = [of_all[first:end] for first, end in pairwise(ends)]
    snapshots = [None if row is None else _parse_snapshot(row, tables.ends) for row in rows.snapshots]
    cuts = [None if cut is None else tables.ends[cut] for cut in rows.cuts]
    addresses = zip(rows.stores, rows.key_groups, strict=True)
    return dict(zip(addresses, map(Entry, snapshots, chains, rows.timers, cuts), strict=True))


def _parse_snapshot(row: Sequence[object], heads: Sequence[Head]) -> Snapshot:
    id, head, length, checksum, count = cast("tuple[str, int, int, str, int]", row)
    return Snapshot(id, heads[head], length, int(checksum, 16), count)


def _check_rows(rows: _Rows, tables: _Tables) -> None:
    """Raise ``ValueError`` or ``ConfigError`` for an impossible store, key-group, timer or cut."""
    for store in set(rows.stores):
        paths.check_store_name(store)
    for key_group in rows.key_groups:
        if type(key_group) is not int or not 0 <= key_group < _KEY_GROUPS_MAX:
            raise ValueError(f"there is a key-group {key_group!r}")
    for timer_ms in rows.timers:
        if timer_ms is not None and not (type(timer_ms) is int and abs(timer_ms) < NUMBERS_END):
            raise ValueError(f"invalid timer {timer_ms!r}")
    for cut in set(rows.cuts) - {None}:
        _check_head(tables.ends[cast(int, cut)])


def _check_snapshots(snapshots: Sequence[Snapshot]) -> None:
    """Raise ``ValueError`` for a snapshot with an impossible id, head or size."""
    for head in {id(snapshot.head): snapshot.head for snapshot in snapshots}.values():
        _check_head(head)
    for name, head, length, checksum, rows in snapshots:
        if type(name) is not str or not _SNAPSHOT.match(name):
            raise ValueError(f"invalid snapshot id {name!r}")
        if int(name.partition("-")[0]) != max(head.version, 0):
            raise ValueError(f"snapshot {name} is listed for version {head.version}")
        _check_numbers(0, length, checksum, rows)


def check_link(store: str, link: Link) -> None:
    """Raise ``ValueError`` for a link with impossible values, ``ConfigError`` for an invalid store name."""
    paths.check_store_name(store)
    _check_link(link)


def _check_links(links: _Links, tables: _Tables, key_groups: list[int]) -> None:
    """Raise ``ValueError`` if a link has an impossible head or range. ``key_groups`` has the key-group of each link.

    Each head and merged delta is checked once. Links in blocks have their lengths and checksums from the tables, whose
    numbers were checked before.
    """
    for place in set(links.places):
        _check_head(tables.heads[place])
        _check_merged(tables.merged[place])
    are_in_blocks = None not in links.blocks
    if links.starts != key_groups or not are_in_blocks:
        for start, block, key_group in zip(links.starts, links.blocks, key_groups, strict=True):
            if block is not None and start != key_group:
                raise ValueError(f"key-group {key_group} has a link in a block to another key-group, {start!r}")
    own_columns = [links.starts, links.rows] if are_in_blocks else [*links[2:6]]
    are_numbers = all(set(map(type, column)) == {int} and min(column) >= 0 for column in own_columns)
    if not are_numbers or max(links.starts) + max(links.lengths) >= NUMBERS_END or max(links.rows) >= NUMBERS_END:
        for start, length, checksum, rows in zip(*links[2:6], strict=True):
            _check_numbers(start, length, checksum, rows)


def _check_link(link: Link) -> None:
    """Raise ``ValueError`` for a link with an impossible head or range."""
    _check_head(link.head)
    _check_numbers(*link[1:5])


def _check_numbers(start: int, length: int, checksum: int, rows: int) -> None:
    """Raise ``ValueError`` for an impossible start, length, checksum or number of rows."""
    are_numbers = all(type(number) is int and number >= 0 for number in (start, length, checksum, rows))
    if not are_numbers or max(start + length, rows) >= NUMBERS_END:
        raise ValueError(f"invalid part at {start!r} with {length!r} bytes and {rows!r} rows")


def _check_merged(merged: MergedDelta | None) -> None:
    """Raise ``ValueError`` for a merged delta with an impossible id, level or size."""
    if merged is None:
        return
    if type(merged.id) is not str or not _SNAPSHOT.match(merged.id):
        raise ValueError(f"invalid id of a merged delta {merged.id!r}")
    is_level = type(merged.level) is int and 0 < merged.level < _LEVELS_MAX
    if not is_level or type(merged.size) is not int or not 0 <= merged.size < NUMBERS_END:
        raise ValueError(f"invalid level {merged.level!r} or size {merged.size!r} of merged delta {merged.id}")


def _check_head(head: Head) -> None:
    """Raise ``ValueError`` for a head that no attempt can have."""
    if not is_possible(head):
        raise ValueError(f"invalid head {tuple(head)!r}")


def is_possible(head: Head) -> bool:
    """Return whether an attempt can have this head. Raises ``TypeError`` if the name of the attempt is not a string."""
    is_number = type(head.version) is int and abs(head.version) < NUMBERS_END
    return head == EMPTY_HEAD or (is_number and _ATTEMPT.match(head.attempt) is not None)
