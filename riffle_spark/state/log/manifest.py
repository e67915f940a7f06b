"""What a record says about every key-group. Knows heads, chains and snapshots. Does not know bytes, stores or records.

Theory of operation. A key-group's state is a snapshot followed by a chain of deltas. Its *head* is the last link of
that chain: (version, attempt). Two attempts of one version are different heads, so a copy can tell exactly whether a
delta is the next one. A batch appends at most one link a key-group; a snapshot replaces the links up to its own head.
Nothing else ever changes an entry, except a rollback, which takes an older manifest whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from riffle_spark.state.log import paths

__all__ = ["EMPTY", "EMPTY_HEAD", "Address", "Entry", "Head", "Link", "Manifest", "Snapshot"]

Address = tuple[str, int]
"""(store, key-group)."""


class Head(NamedTuple):
    """A point in a key-group's history: the version and the attempt (``<epoch>-<attempt id>``) that made it."""

    version: int
    attempt: str

    @property
    def epoch(self) -> int:
        """The epoch of the driver that ordered it, -1 where nothing was made yet."""
        return int(self.attempt.split("-", 1)[0]) if self.attempt else -1


EMPTY_HEAD = Head(-1, "")
"""The head of a key-group that nothing has touched yet."""


class Link(NamedTuple):
    """One key-group's part of one delta object: a byte range, its checksum (XXH3-64) and its changed rows."""

    head: Head
    start: int
    length: int
    checksum: int
    rows: int

    @property
    def object(self) -> str:
        """The name of the delta object that holds the part."""
        return paths.delta(self.head.version, self.head.attempt)


class Snapshot(NamedTuple):
    """One key-group's whole state at ``head``: its id, bytes, checksum (XXH3-64) and rows."""

    id: str
    head: Head
    length: int
    checksum: int
    rows: int

    @property
    def epoch(self) -> int:
        """The epoch of the driver that ordered it."""
        return int(self.id.split("-")[1])


@dataclass(frozen=True, slots=True)
class Entry:
    """One key-group of one store: a snapshot, the chain after it, and when its earliest timer is due (ms).

    In a cut entry snapshot and earlier links are left out, and ``cut`` is the head that they lead to.
    """

    snapshot: Snapshot | None = None
    chain: tuple[Link, ...] = ()
    timer_ms: int | None = None
    cut: Head | None = None

    @property
    def head(self) -> Head:
        """The point that snapshot and chain lead to."""
        if self.chain:
            return self.chain[-1].head
        return self.base

    @property
    def base(self) -> Head:
        """The point that the chain starts from."""
        if self.cut is not None:
            return self.cut
        return self.snapshot.head if self.snapshot else EMPTY_HEAD

    @property
    def chain_bytes(self) -> int:
        """Bytes of all deltas of the chain."""
        return sum(link.length for link in self.chain)

    def after(self, head: Head) -> tuple[Link, ...] | None:
        """Return the links that lead from ``head`` to this entry's head, or ``None`` if it is not on the chain.

        Looked for from the end: most copies are nearly there.
        """
        for place in range(len(self.chain) - 1, -1, -1):
            if self.chain[place].head == head:
                return self.chain[place + 1 :]
        return self.chain if head == self.base else None

    def recent(self, links: int) -> "Entry":
        """Return the entry cut to its last ``links`` links."""
        if len(self.chain) <= links:
            return self
        return Entry(None, self.chain[-links:], self.timer_ms, cut=self.chain[-links - 1].head)

    def since(self, base: "Entry") -> "Entry":
        """Return the entry cut to what was appended to ``base``, or whole where more than that has changed."""
        known = len(base.chain)
        if self.snapshot != base.snapshot or self.chain[:known] != base.chain:
            return self
        return Entry(None, self.chain[known:], self.timer_ms, cut=base.head)

    def joined(self, base: "Entry") -> "Entry":
        """Return the whole entry that was cut to what follows ``base``."""
        if self.cut is None:
            return self
        assert self.cut == base.head, f"cut at {self.cut}, but the entry before leads to {base.head}"
        return Entry(base.snapshot, base.chain + self.chain, self.timer_ms)

    def extended(self, link: Link, timer_ms: int | None = None) -> "Entry":
        """Return the entry with one more link."""
        return replace(self, chain=(*self.chain, link), timer_ms=timer_ms)

    def replaced(self, snapshot: Snapshot) -> "Entry | None":
        """Return the entry with the links up to the snapshot's head replaced by it; ``None`` if that is no link of
        it.
        """
        rest = self.after(snapshot.head) if self.chain else None
        if rest is None or len(rest) == len(self.chain):
            return None
        return replace(self, snapshot=snapshot, chain=rest)


EMPTY = Entry()


@dataclass(frozen=True, slots=True)
class Manifest:
    """Every key-group that was ever touched, by (store, key-group). Key-groups that are not listed are empty."""

    entries: Mapping[Address, Entry] = field(default_factory=dict)

    def entry(self, store: str, key_group: int) -> Entry:
        """Return what is known about a key-group."""
        return self.entries.get((store, key_group), EMPTY)

    def changed(self, changes: Mapping[Address, Entry]) -> "Manifest":
        """Return the manifest with some entries replaced."""
        return Manifest({**self.entries, **changes}) if changes else self

    def rows(self) -> dict[str, int]:
        """Return how many rows the parts of each store have: those of a key that is in several count each."""
        rows: dict[str, int] = {}
        for (store, _), entry in self.entries.items():
            of_links = sum(link.rows for link in entry.chain)
            rows[store] = rows.get(store, 0) + of_links + (entry.snapshot.rows if entry.snapshot else 0)
        return rows

    def objects(self) -> set[str]:
        """Return the names of all objects listed."""
        names = {link.object for entry in self.entries.values() for link in entry.chain}
        for (store, key_group), entry in self.entries.items():
            if entry.snapshot:
                names.add(paths.snapshot(store, key_group, entry.snapshot.id))
        return names
