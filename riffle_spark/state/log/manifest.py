"""The state of every key-group, as a record describes it.

Theory of operation:

1. A key-group's state is a snapshot followed by a chain of links. A link is the key-group's part of a delta, or of a
   *merged delta*, which has the newest rows of the keys that several successive links changed.
2. Its *head* is the head of the last link of this chain: (version, attempt). Two attempts of one version are different
   heads, so a copy can detect whether a delta is the next.
3. A batch appends at most one link per key-group. A snapshot replaces the links up to its own head. A merged delta
   replaces successive links, and has the head of the last of them. A link of a delta with the whole state replaces the
   snapshot and all earlier links. Only a rollback changes an entry in another way: it restores an older manifest.
4. Without a snapshot, the first link has the whole state at its head. It does not delete keys that only older copies
   have. So a copy from before this link cannot apply it, and starts again.
5. Rows are whole values or deletions of keys. So a copy at a head between the replaced links may apply the merged delta
   too, which only repeats rows that the copy has. Such a head is found by its claim and version, because one claim
   commits each version once. The epoch does not suffice: after a root was restored from a backup, the next claim gets
   the epoch of a lost claim, whose copies may still exist.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple

from riffle_spark.state.log import paths
from riffle_spark.state.objects.place import Place

Address = tuple[str, int]
"""(store, key-group)."""
CLAIM_DIGITS = 8
"""All attempts of one claim have ids with the same first hexadecimal digits. This is their number."""


class Head(NamedTuple):
    """A point in a key-group's history: a version and the attempt (``<epoch>-<attempt id>``) that made it."""

    version: int
    attempt: str

    @property
    def epoch(self) -> int:
        """The epoch of the driver, -1 for the empty head."""
        return int(self.attempt.split("-", 1)[0]) if self.attempt else -1

    @property
    def claim(self) -> str:
        """The epoch and the first digits of the attempt id. They differ between claims.

        Earlier versions of the software wrote random digits, so no two of their heads have the same claim.
        """
        return self.attempt[: self.attempt.find("-") + 1 + CLAIM_DIGITS]


EMPTY_HEAD = Head(-1, "")
"""The head of a key-group without state."""


class MergedDelta(NamedTuple):
    """An object with parts of several key-groups, each merged from successive links.

    ``id`` is ``<version>-<epoch>-<attempt id>`` (``paths.snapshot_id``). ``level`` is one more than the highest level
    of the merged links, and deltas have level 0. ``size`` is the number of bytes of the object.
    """

    id: str
    level: int
    size: int

    @property
    def head(self) -> Head:
        """The version and attempt in the id. It is not the head of a key-group."""
        version, _, attempt = self.id.partition("-")
        return Head(int(version), attempt)


class Block(NamedTuple):
    """The number of bytes and of rows of a block (``state.formats.blocks``). Its object starts with it."""

    size: int
    rows: int

    def share_of(self, rows: int) -> int:
        """Return the bytes of this number of rows of the block, if all rows take the same."""
        return shares_of((self,), (rows,))[0]


class Link(NamedTuple):
    """A key-group's part of a delta or merged delta, and the head that it leads to.

    ``start`` and ``length`` are the byte range of the part, ``checksum`` its XXH3-64, and ``rows`` the number of
    changed rows. ``merged`` is the merged delta, ``None`` for a delta.

    If the object is a block, ``checksum`` is the checksum of the whole block, ``start`` is the key-group, and
    ``length`` is its share of the block's bytes (``link_in_block``).
    """

    head: Head
    start: int
    length: int
    checksum: int
    rows: int
    merged: MergedDelta | None = None
    block: Block | None = None

    @property
    def object(self) -> str:
        """The name of the object."""
        if self.merged is not None:
            return paths.merged_delta_name(self.merged.id)
        return paths.delta_name(self.head.version, self.head.attempt)

    def place(self, store: str, key_group: int) -> Place:
        """Return the place of this part, or of its block, that its encryption is bound to."""
        if self.block is not None:
            return paths.block_place(store, paths.sealed_block_name(*self.source))
        if self.merged is not None:
            return paths.merged_delta_place(store, key_group, self.merged.id)
        return paths.delta_place(store, key_group, *self.head)

    @property
    def byte_range(self) -> tuple[int, int]:
        """The start and the end of the part, or of its block, in the object."""
        return (self.start, self.start + self.length) if self.block is None else (0, self.block.size)

    @property
    def source(self) -> Head:
        """The version and attempt in the name of the object."""
        return self.head if self.merged is None else self.merged.head

    @property
    def level(self) -> int:
        """How often the rows were merged: 0 for a delta."""
        return 0 if self.merged is None else self.merged.level


make_link = partial(tuple.__new__, Link)
"""Creates a link from a sequence of its fields, in half the time of ``Link(...)``."""


def link_in_block(
    head: Head, key_group: int, checksum: int, rows: int, block: Block, merged: MergedDelta | None = None
) -> Link:
    """Return the link of a key-group's rows in a block."""
    return Link(head, key_group, block.share_of(rows), checksum, rows, merged, block)


def links_in_block(
    head: Head, key_groups: Iterable[int], checksums: Iterable[int], rows: Sequence[int], block: Block
) -> list[Link]:
    """Return the links of several key-groups' rows in a block. They share one head."""
    lengths = shares_of(repeat(block), rows)
    return list(map(make_link, zip(repeat(head), key_groups, lengths, checksums, rows, repeat(None), repeat(block))))


def shares_of(blocks: Iterable[Block], rows: Sequence[int]) -> list[int]:
    """Return ``block.share_of(count)`` for each pair of ``blocks`` and ``rows``. ``blocks`` may be endless."""
    return [size * count // (total or 1) for (size, total), count in zip(blocks, rows, strict=False)]


class Replacement(NamedTuple):
    """A link of a merged delta that replaces the links after the head ``since``, up to its own head."""

    since: Head
    link: Link


class Snapshot(NamedTuple):
    """The whole state of a key-group at ``head``: id, bytes, checksum (XXH3-64), and number of rows."""

    id: str
    head: Head
    length: int
    checksum: int
    rows: int

    @property
    def epoch(self) -> int:
        """The epoch in the id: that of the driver that wrote the state."""
        return int(self.id.split("-")[1])


class Size(NamedTuple):
    """The size of state in the object store: rows and bytes of its snapshots and deltas, and the number of deltas.

    A key counts once for each part that has it.
    """

    rows: int
    bytes: int
    deltas: int


NO_SIZE = Size(0, 0, 0)
_SHORT = 4
"""Up to this number of links, comparing a link with all others is faster than hashing it."""


@dataclass(slots=True, unsafe_hash=True)
class Entry:
    """A key-group of a store in the log: a snapshot, the links after it, and the due time of its earliest timer (ms).

    A cut entry omits the snapshot and earlier links. ``cut`` is the head that they lead to.

    Entries are immutable, which type checkers ensure. A frozen dataclass would take five times as long to create, and
    each batch creates several entries per key-group.
    """

    snapshot: Final[Snapshot | None] = None
    chain: Final[tuple[Link, ...]] = ()
    timer_ms: Final[int | None] = None
    cut: Final[Head | None] = None
    _chain_size: "tuple[int, int] | None" = field(default=None, init=False, compare=False, repr=False)
    """The rows and bytes of all links, ``None`` if they were not counted."""

    @property
    def head(self) -> Head:
        """The head of the state that the entry leads to."""
        if self.chain:
            return self.chain[-1].head
        return self.base

    @property
    def base(self) -> Head:
        """The head before the first link: the cut, or the head of the snapshot."""
        if self.cut is not None:
            return self.cut
        return self.snapshot.head if self.snapshot else EMPTY_HEAD

    @property
    def chain_size(self) -> tuple[int, int]:
        """The number of rows and of bytes of all links of the chain, counted once per entry."""
        size = self._chain_size
        if size is None:
            size = (sum([link.rows for link in self.chain]), sum([link.length for link in self.chain]))
            self._chain_size = size
        return size

    @property
    def chain_bytes(self) -> int:
        """The number of bytes of all links of the chain."""
        return self.chain_size[1]

    def links_after(self, head: Head) -> tuple[Link, ...] | None:
        """Return the links that lead from ``head`` to the entry's head, or ``None`` if ``head`` is not on the chain.

        If a merged delta replaced the link to ``head``, the result starts with the link of the merged delta.
        """
        place = self.find_head(head)
        if place is None:
            place = self._find_merged(head)
        return None if place is None else self.chain[place:]

    def find_head(self, head: Head) -> int | None:
        """Return how many links of the chain lead to this head, or ``None`` if it is not the base or a link's head."""
        for index in range(len(self.chain) - 1, -1, -1):  # most copies are near the end
            if self.chain[index].head == head:
                return index + 1
        return 0 if head == self.base else None

    def _find_merged(self, head: Head) -> int | None:
        """Return the index of the merged delta that replaced a link with this head, or ``None`` if it is unknown."""
        for index in range(len(self.chain) - 1, -1, -1):
            link = self.chain[index]
            if link.merged is not None and link.head.claim == head.claim and link.head.version > head.version:
                since = self.chain[index - 1].head if index else self.base
                if since.version < head.version and since != EMPTY_HEAD:
                    return index
        return None

    def cut_to_changes(self, base: "Entry") -> "Entry":
        """Return the entry with only the links that ``base`` does not have, cut before them.

        Return it whole if its snapshot or other links differ. If the result is cut before the last link of ``base``,
        its first link is a merged delta that replaced the later links of ``base``.
        """
        if self.snapshot != base.snapshot or self.cut != base.cut:
            return self
        shared = len(base.chain) if self.extends(base) else _count_shared(self.chain, base.chain)
        if shared < len(base.chain) and (shared == len(self.chain) or self.chain[shared].merged is None):
            return self
        cut = base.chain[shared - 1].head if shared else base.base
        return Entry(None, self.chain[shared:], self.timer_ms, cut=cut)

    def restore_whole(self, base: "Entry") -> "Entry":
        """Return the entry that ``cut_to_changes`` cut, given the same ``base``."""
        if self.cut is None:
            return self
        shared = base.find_head(self.cut)
        assert shared is not None, f"cut at {self.cut}, which is not on the chain of the base with head {base.head}"
        return Entry(base.snapshot, base.chain[:shared] + self.chain, self.timer_ms)

    def measure(self) -> Size:
        """Return the size of the snapshot and all links."""
        rows, length = self.chain_size
        if self.snapshot:
            rows += self.snapshot.rows
            length += self.snapshot.length
        return Size(rows, length, len(self.chain))

    def add_link(self, link: Link, timer_ms: int | None = None) -> "Entry":
        """Return the entry with ``link`` appended to its chain, and with this timer."""
        entry = Entry(self.snapshot, (*self.chain, link), timer_ms, self.cut)
        if self._chain_size is not None:
            rows, length = self._chain_size
            entry._chain_size = (rows + link.rows, length + link.length)
        return entry

    def extends(self, previous: "Entry") -> bool:
        """Return whether the chain starts with the whole chain of ``previous``."""
        return self.chain[: len(previous.chain)] == previous.chain

    def changed_links(self, previous: "Entry") -> "tuple[tuple[Link, ...], tuple[Link, ...]]":
        """Return the links that ``previous`` has and this entry lacks, and the links that only this entry has."""
        if self.extends(previous):
            return (), self.chain[len(previous.chain) :]
        shared = _count_shared(self.chain, previous.chain)
        before = previous.chain[shared:]
        after = self.chain[shared:]
        if len(after) > _SHORT:
            stored_after = set(after)
            stored_before = set(before)
            removed = tuple([link for link in before if link not in stored_after])
            return removed, tuple([link for link in after if link not in stored_before])
        removed = tuple([link for link in before if link not in after])
        return removed, tuple([link for link in after if link not in before])

    def replace_by_snapshot(self, snapshot: Snapshot) -> "Entry | None":
        """Return the entry with the snapshot instead of the links up to its head.

        Return ``None`` if no link has this head.
        """
        place = self.find_head(snapshot.head)
        if not place:
            return None
        return Entry(snapshot, self.chain[place:], self.timer_ms, self.cut)

    def replace_by_merged(self, replacement: Replacement) -> "Entry | None":
        """Return the entry with the link of a merged delta instead of the links that it replaces.

        Return ``None`` if the chain does not have the first and last head of the replacement.
        """
        since = self.find_head(replacement.since)
        end = self.find_head(replacement.link.head)
        if since is None or end is None or since >= end:
            return None
        chain = (*self.chain[:since], replacement.link, *self.chain[end:])
        return Entry(self.snapshot, chain, self.timer_ms, self.cut)


def _count_shared(chain: tuple[Link, ...], other: tuple[Link, ...]) -> int:
    """Return the number of first links that both chains share."""
    shared = 0
    for link, other_link in zip(chain, other, strict=False):
        if link is not other_link and link != other_link:
            break
        shared += 1
    return shared


EMPTY = Entry()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The entries by (store, key-group). Key-groups without an entry are empty.

    ``sizes`` has the size of each store, ``None`` before ``measure_stores`` is called.
    """

    entries: Mapping[Address, Entry] = field(default_factory=dict)
    sizes: Mapping[str, Size] | None = field(default=None, compare=False, repr=False)

    def entry(self, store: str, key_group: int) -> Entry:
        """Return a key-group's entry, which is empty if the key-group has no state."""
        return self.entries.get((store, key_group), EMPTY)

    def with_entries(self, changes: Mapping[Address, Entry]) -> "Manifest":
        """Return the manifest with the entries in ``changes`` added or replaced."""
        if not changes:
            return self
        return Manifest({**self.entries, **changes}, self._updated_sizes(changes))

    def measure_stores(self) -> Mapping[str, Size]:
        """Return the size of each store.

        The first call reads all entries. ``with_entries`` then updates the sizes from the changed entries.
        """
        if self.sizes is None:
            sizes = Manifest(sizes={})._updated_sizes(self.entries)
            object.__setattr__(self, "sizes", sizes)
        assert self.sizes is not None
        return self.sizes

    def _updated_sizes(self, changes: Mapping[Address, Entry]) -> Mapping[str, Size] | None:
        """Return the sizes of the stores after ``changes``, or ``None`` if this manifest was not measured."""
        if self.sizes is None:
            return None
        sizes = dict(self.sizes)
        for (store, key_group), entry in changes.items():
            total = sizes.get(store, NO_SIZE)
            old = self.entry(store, key_group).measure()
            new = entry.measure()
            sizes[store] = Size(*(t + n - o for t, n, o in zip(total, new, old, strict=True)))
        return sizes

    def object_names(self) -> set[str]:
        """Return the names of all deltas, merged deltas and snapshots that the entries need."""
        names = {link.object for entry in self.entries.values() for link in entry.chain}
        for (store, key_group), entry in self.entries.items():
            if entry.snapshot:
                names.add(paths.snapshot_name(store, key_group, entry.snapshot.id))
        return names
