"""The state of every key-group, as a record describes it.

Theory of operation:

1. A key-group's state is a snapshot followed by a chain of deltas.
2. Its *head* is the last link of that chain: (version, attempt). Two attempts of one version are different heads, so a
   copy can detect whether a delta is the next.
3. A batch appends at most one link per key-group. A snapshot replaces the links up to its own head. Only a rollback
   changes an entry in another way: it restores an older manifest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from riffle_spark.state.log import paths

__all__ = ["EMPTY", "EMPTY_HEAD", "Address", "Entry", "Head", "Link", "Manifest", "Size", "Snapshot"]

Address = tuple[str, int]
"""(store, key-group)."""


class Head(NamedTuple):
    """A point in a key-group's history: a version and the attempt (``<epoch>-<attempt id>``) that made it."""

    version: int
    attempt: str

    @property
    def epoch(self) -> int:
        """The epoch of the driver, -1 for the empty head."""
        return int(self.attempt.split("-", 1)[0]) if self.attempt else -1


EMPTY_HEAD = Head(-1, "")
"""The head of a key-group without state."""


class Link(NamedTuple):
    """A key-group's part of one delta: the head that it leads to, byte range, checksum (XXH3-64), and number of changed
    rows.
    """

    head: Head
    start: int
    length: int
    checksum: int
    rows: int

    @property
    def object(self) -> str:
        """The object name of the delta."""
        return paths.delta_name(self.head.version, self.head.attempt)


class Snapshot(NamedTuple):
    """The whole state of a key-group at ``head``: id, bytes, checksum (XXH3-64), and number of rows."""

    id: str
    head: Head
    length: int
    checksum: int
    rows: int

    @property
    def epoch(self) -> int:
        """The epoch of the driver whose attempt made the snapshot's state."""
        return int(self.id.split("-")[1])


class Size(NamedTuple):
    """The size of state: rows and bytes of its snapshots and deltas in the object store, and the number of deltas.

    A key that is in several parts counts once per part.
    """

    rows: int
    bytes: int
    deltas: int


NO_SIZE = Size(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """One key-group of one store in the log: a snapshot, the chain of links (parts of deltas) after it, and the due
    time of its earliest timer (ms).

    A cut entry omits the snapshot and earlier links. ``cut`` is the head that they lead to.
    """

    snapshot: Snapshot | None = None
    chain: tuple[Link, ...] = ()
    timer_ms: int | None = None
    cut: Head | None = None
    _chain_size: "tuple[int, int] | None" = field(default=None, init=False, compare=False, repr=False)
    """The rows and bytes of all links, once they were counted or follow from the entry before."""

    @property
    def head(self) -> Head:
        """The head of the state that the entry leads to."""
        if self.chain:
            return self.chain[-1].head
        return self.base

    @property
    def base(self) -> Head:
        """The head that the chain starts from: the snapshot's, or the cut."""
        if self.cut is not None:
            return self.cut
        return self.snapshot.head if self.snapshot else EMPTY_HEAD

    @property
    def chain_size(self) -> tuple[int, int]:
        """The number of rows and of bytes of all links of the chain. They are counted once per entry."""
        size = self._chain_size
        if size is None:
            size = (sum(link.rows for link in self.chain), sum(link.length for link in self.chain))
            object.__setattr__(self, "_chain_size", size)
        return size

    @property
    def chain_bytes(self) -> int:
        """The number of bytes of all links of the chain."""
        return self.chain_size[1]

    def links_after(self, head: Head) -> tuple[Link, ...] | None:
        """Return the links that lead from ``head`` to the entry's head, or ``None`` if ``head`` is not on the chain."""
        for index in range(len(self.chain) - 1, -1, -1):  # most copies are near the end
            if self.chain[index].head == head:
                return self.chain[index + 1 :]
        return self.chain if head == self.base else None

    def cut_to_last(self, links: int) -> "Entry":
        """Return the entry with only its last ``links`` links, cut before them."""
        if len(self.chain) <= links:
            return self
        return Entry(None, self.chain[-links:], self.timer_ms, cut=self.chain[-links - 1].head)

    def cut_to_changes(self, base: "Entry") -> "Entry":
        """Return the entry with only the links that ``base`` does not have, cut before them.

        Return it whole if it differs in anything else.
        """
        length = len(base.chain)
        if self.snapshot != base.snapshot or self.chain[:length] != base.chain:
            return self
        return Entry(None, self.chain[length:], self.timer_ms, cut=base.head)

    def restore_whole(self, base: "Entry") -> "Entry":
        """Return the whole entry of an entry that ``cut_to_changes`` cut, given the same ``base``."""
        if self.cut is None:
            return self
        assert self.cut == base.head, f"cut at {self.cut}, but the base has head {base.head}"
        return Entry(base.snapshot, base.chain + self.chain, self.timer_ms)

    def measure(self) -> Size:
        """Return the size of the snapshot and all links."""
        rows, length = self.chain_size
        if self.snapshot:
            rows += self.snapshot.rows
            length += self.snapshot.length
        return Size(rows, length, len(self.chain))

    def add_link(self, link: Link, timer_ms: int | None = None) -> "Entry":
        """Return the entry with ``link`` at the end of its chain, and with this timer."""
        entry = Entry(self.snapshot, (*self.chain, link), timer_ms, self.cut)
        if self._chain_size is not None:
            rows, length = self._chain_size
            object.__setattr__(entry, "_chain_size", (rows + link.rows, length + link.length))
        return entry

    def changed_links(self, previous: "Entry") -> "tuple[tuple[Link, ...], tuple[Link, ...]]":
        """Return the links that ``previous`` has and this entry lacks, and the links that only this entry has.

        If the two chains do not overlap as the chains of successive records do, all links of both are returned.
        """
        before = previous.chain
        after = self.chain
        removed = before.index(after[0]) if after and after[0] in before else len(before)
        shared = len(before) - removed
        if before[removed:] != after[:shared]:
            return before, after
        return before[:removed], after[shared:]

    def replace_by_snapshot(self, snapshot: Snapshot) -> "Entry | None":
        """Return the entry with the snapshot in place of the links up to it; ``None`` if no link has the snapshot's
        head.
        """
        later_links = self.links_after(snapshot.head) if self.chain else None
        if later_links is None or len(later_links) == len(self.chain):
            return None
        return replace(self, snapshot=snapshot, chain=later_links)


EMPTY = Entry()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The entries by (store, key-group). Key-groups without an entry are empty.

    ``sizes`` holds the result of ``measure_stores``, or ``None`` if it was not measured. ``with_entries`` updates the
    sizes for the new manifest.
    """

    entries: Mapping[Address, Entry] = field(default_factory=dict)
    sizes: Mapping[str, Size] | None = field(default=None, compare=False, repr=False)

    def entry(self, store: str, key_group: int) -> Entry:
        """Return a key-group's entry, an empty one if it has no state."""
        return self.entries.get((store, key_group), EMPTY)

    def with_entries(self, changes: Mapping[Address, Entry]) -> "Manifest":
        """Return the manifest with the entries in ``changes`` added or replaced."""
        if not changes:
            return self
        return Manifest({**self.entries, **changes}, self._updated_sizes(changes))

    def measure_stores(self) -> Mapping[str, Size]:
        """Return the size of each store.

        All entries are read once. Later manifests only measure what changed.
        """
        if self.sizes is None:
            sizes = Manifest(sizes={})._updated_sizes(self.entries)
            object.__setattr__(self, "sizes", sizes)
        assert self.sizes is not None
        return self.sizes

    def _updated_sizes(self, changes: Mapping[Address, Entry]) -> Mapping[str, Size] | None:
        """Return the sizes of the stores with ``changes``, ``None`` if those of this manifest are unknown."""
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
        """Return the names of all deltas and snapshots that the entries need."""
        names = {link.object for entry in self.entries.values() for link in entry.chain}
        for (store, key_group), entry in self.entries.items():
            if entry.snapshot:
                names.add(paths.snapshot_name(store, key_group, entry.snapshot.id))
        return names
