"""Where every copy is, as far as it was reported, and what it lacks. Knows heads, chains and members by name. Does not
know who should have a copy.

Theory of operation. A copy's head is a point in its key-group's history. What it lacks are the links from there to the
head that the log lists; their rows are its lag in records, their lengths its lag in bytes. A snapshot takes links off
the chain, but a copy that is behind can still fold them as long as their objects are retained: they are kept here as a
*trail*, for this driver's life. A copy that is on neither lacks the whole state, as one does that nobody reported. A
link that a member sealed itself lies in its folder as a file, so it counts as had.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.messages.upkeep_orders import Census
from riffle_spark.state.log.manifest import EMPTY, EMPTY_HEAD, Address, Entry, Head, Link, Manifest

__all__ = ["CopyLag", "ReportedCopies", "lag_without_copy"]

_SEALED_REMEMBERED = 256


class CopyLag(NamedTuple):
    """What a copy lacks: changed records and bytes of the store."""

    records: int
    bytes: int


LEVEL = CopyLag(0, 0)


def lag_without_copy(entry: Entry) -> CopyLag:
    """Return what a member without a copy lacks."""
    taken = entry.snapshot
    records = (taken.rows if taken else 0) + sum(link.rows for link in entry.chain)
    return CopyLag(records, (taken.length if taken else 0) + entry.chain_bytes)


@dataclass(slots=True)
class _Trail:
    """Links that snapshots took off a chain, with the record by which each went, after the head ``base``."""

    base: Head
    links: list[tuple[int, Link]]


class ReportedCopies:
    """The heads of all reported copies, by member."""

    def __init__(self) -> None:
        self._heads: dict[str, dict[Address, Head]] = {}
        self._sealed: dict[str, deque[str]] = {}
        self._trails: dict[Address, _Trail] = {}

    def counted(self, census: Census) -> None:
        """Take a census: it tells of all copies of its member."""
        self._heads[census.member] = {(store, kg): Head(version, a) for store, kg, version, a in census.copies}
        self._sealed[census.member] = deque(census.sealed, maxlen=_SEALED_REMEMBERED)

    def at(self, member: str, address: Address, head: Head) -> None:
        """Note where one copy is."""
        self._heads.setdefault(member, {})[address] = head

    def gone(self, member: str, address: Address) -> None:
        """Note that a copy is not there, or is being removed."""
        self._heads.get(member, {}).pop(address, None)

    def wiped(self, member: str) -> None:
        """Note that a member has no copies any more."""
        self._heads.pop(member, None)
        self._sealed.pop(member, None)

    def forget(self) -> None:
        """Forget all: another driver may have been at work."""
        self._heads.clear()
        self._sealed.clear()
        self._trails.clear()

    def only_of(self, members: Collection[str]) -> None:
        """Forget what slots reported of folders that are no member's any more, or never became one's."""
        for told in (self._heads, self._sealed):
            for member in told.keys() - members:
                del told[member]

    def of(self, member: str) -> Mapping[Address, Head]:
        """Return a member's copies."""
        return self._heads.get(member, {})

    def ran(self, receipts: Iterable[Receipt], before: Manifest) -> None:
        """Note what slots that reported must have had: copies at the base, and the delta as a file."""
        for receipt in receipts:
            if not receipt.member:
                continue
            self._sealed.setdefault(receipt.member, deque(maxlen=_SEALED_REMEMBERED)).append(receipt.attempt)
            for part in receipt.parts:
                address = (receipt.store, part.key_group)
                self.at(receipt.member, address, before.entry(*address).head)

    def replaced(self, sequence: int, before: Manifest, changes: Mapping[Address, Entry]) -> None:
        """Keep the links that snapshots took off chains with record ``sequence``."""
        for address, entry in changes.items():
            old = before.entries.get(address, EMPTY)
            if entry.snapshot is None or entry.snapshot == old.snapshot:
                continue
            rest = old.after(entry.snapshot.head)
            if rest is None:
                self._trails.pop(address, None)
                continue
            taken = old.chain[: len(old.chain) - len(rest)]
            trail = self._trails.setdefault(address, _Trail(old.base, []))
            trail.links += [(sequence, link) for link in taken]

    def forget_trails(self, oldest: int) -> None:
        """Forget links that no retained record lists: ``oldest`` is the first retained one."""
        for address, trail in list(self._trails.items()):
            kept = [(sequence, link) for sequence, link in trail.links if sequence > oldest]
            if len(kept) < len(trail.links):
                trail.base = trail.links[len(trail.links) - len(kept) - 1][1].head
                trail.links = kept
            if not kept:
                del self._trails[address]

    def missing(self, member: str, address: Address, entry: Entry) -> tuple[Link, ...] | None:
        """Return the links that a member's copy lacks, or ``None`` if it has no copy that could fold them."""
        head = self._heads.get(member, {}).get(address)
        if head is None:
            return None if entry.head != EMPTY_HEAD else ()
        return self._way(address, entry, head)

    def _way(self, address: Address, entry: Entry, head: Head) -> tuple[Link, ...] | None:
        links = entry.after(head)
        if links is not None or address not in self._trails:
            return links
        trail = self._trails[address]
        if not trail.links or entry.base != trail.links[-1][1].head:
            return None
        old = Entry(None, tuple(link for _, link in trail.links), cut=trail.base).after(head)
        return None if old is None else (*old, *entry.chain)

    def lag(self, member: str, address: Address, entry: Entry) -> CopyLag:
        """Return what a member's copy lacks; without a copy, or with one off the chain, the whole state."""
        links = self.missing(member, address, entry)
        if links is None:
            return lag_without_copy(entry)
        if not links:
            return LEVEL
        sealed = self._sealed.get(member, ())
        lacking = [link for link in links if link.head.attempt not in sealed]
        return CopyLag(sum(link.rows for link in lacking), sum(link.length for link in lacking))

    def entry_to_follow(self, member: str, address: Address, entry: Entry) -> Entry:
        """Return the entry by which a member's copy gets to its head: cut where the copy is, unless fetching it whole
        takes fewer bytes.
        """
        links, head = self.missing(member, address, entry), self._heads.get(member, {}).get(address, EMPTY_HEAD)
        if not links or head == EMPTY_HEAD or self.lag(member, address, entry).bytes > lag_without_copy(entry).bytes:
            return entry
        return Entry(None, tuple(links), entry.timer_ms, cut=head)
