"""Track the head and the lag of every reported copy.

Theory of operation.

1. A copy's head is a point in the history of its key-group. The copy lacks the links from this head to the head in the
   log. The rows of these links are its lag in records, and their lengths are its lag in bytes.
2. A snapshot or a merged delta removes links from the chain. A copy that is behind can still apply these links while
   their objects are retained. So the driver remembers the newest removed links as a *trail*, which ends at a head on
   the chain. A copy on the trail lacks fewer bytes than the merged delta has. A copy that is further behind fetches the
   merged delta or the whole state.
3. A copy whose head is neither on the chain nor on the trail lacks the whole state, like a member without a copy. If
   there is no snapshot, the links are the whole state, and the member may have sealed some of them.
4. A member has the deltas that it sealed as local files, so they do not count as missing.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.messages.upkeep_orders import Census, Follow
from riffle_spark.state.log.manifest import EMPTY, EMPTY_HEAD, Address, Entry, Head, Link, Manifest

_SEALED_REMEMBERED = 256
_TRAIL_LINKS = 64
"""The most links of a trail. Standbys are a few batches behind, and all links of an hour would take much memory."""


class CopyLag(NamedTuple):
    """The lag of a copy: changed records, and bytes in the object store."""

    records: int
    bytes: int


NO_LAG = CopyLag(0, 0)


def lag_without_copy(entry: Entry) -> CopyLag:
    """Return the lag of a member without a copy of a key-group: the whole state that ``entry`` lists."""
    size = entry.measure()
    return CopyLag(size.rows, size.bytes)


@dataclass(slots=True)
class _Trail:
    """Successive links that were removed from a chain, and the number of the record that removed each.

    ``base`` is the head before the first of them.
    """

    base: Head
    links: list[Link] = field(default_factory=list)
    removed_by: list[int] = field(default_factory=list)

    @property
    def head(self) -> Head:
        """The head that the last link leads to."""
        return self.links[-1].head if self.links else self.base

    def add(self, sequence: int, removed: Entry) -> None:
        """Add the links of an entry that record ``sequence`` removed, except those that the trail has.

        If the links do not follow the trail, they replace it.
        """
        place = 0 if removed.base == self.head else removed.find_head(self.head)
        if place is None:
            self.base = removed.base
            self.links.clear()
            self.removed_by.clear()
            place = 0
        self.links += removed.chain[place:]
        self.removed_by += repeat(sequence, len(self.links) - len(self.removed_by))
        self.forget_first(len(self.links) - _TRAIL_LINKS)

    def forget_first(self, count: int) -> None:
        """Forget the first ``count`` links. Do nothing if ``count`` is not positive."""
        if count > 0:
            self.base = self.links[count - 1].head
            del self.links[:count]
            del self.removed_by[:count]


class ReportedCopies:
    """The heads of all reported copies, by member."""

    def __init__(self) -> None:
        self._heads: dict[str, dict[Address, Head]] = {}
        self._sealed: dict[str, dict[str, None]] = {}
        """The attempts of the last deltas that each member sealed, oldest first, as the keys of a dict."""
        self._trails: dict[Address, _Trail] = {}

    def record_census(self, census: Census) -> None:
        """Replace the copies of a member by those that its census lists."""
        self._heads.pop(census.member, None)
        self.record_copies(census.member, census.copies)
        self._sealed[census.member] = dict.fromkeys(census.sealed[-_SEALED_REMEMBERED:])

    def record_copies(self, member: str, copies: Iterable[tuple[str, int, int, str]]) -> None:
        """Record the heads of copies, given as (store, key-group, version, attempt). Equal heads become one object."""
        heads = self._heads.setdefault(member, {})
        heads_by_attempt: dict[str, Head] = {}
        for store, key_group, version, attempt in copies:
            head = heads_by_attempt.get(attempt)
            if head is None or head.version != version:
                head = heads_by_attempt[attempt] = Head(version, attempt)
            heads[store, key_group] = head

    def remove(self, member: str, address: Address) -> None:
        """Forget a member's copy, because it is missing or will be removed."""
        self._heads.get(member, {}).pop(address, None)

    def remove_member(self, member: str) -> None:
        """Forget all copies of a member."""
        self._heads.pop(member, None)
        self._sealed.pop(member, None)

    def forget(self) -> None:
        """Forget all copies, because another driver may have run batches."""
        self._heads.clear()
        self._sealed.clear()
        self._trails.clear()

    def keep_members(self, members: Collection[str]) -> None:
        """Forget the copies of all members that are not in ``members``."""
        for by_member in (self._heads, self._sealed):
            for member in by_member.keys() - members:
                del by_member[member]

    def of_member(self, member: str) -> Mapping[Address, Head]:
        """Return the heads of a member's copies by (store, key-group)."""
        return self._heads.get(member, {})

    def record_receipts(self, receipts: Iterable[Receipt], manifest: Manifest) -> None:
        """Record the copies that slots used, and the deltas that they sealed.

        The copies are at the heads of ``manifest``, the manifest before the batch.
        """
        entries = manifest.entries
        for receipt in receipts:
            if not receipt.member:
                continue
            sealed_attempts = self._sealed.setdefault(receipt.member, {})
            sealed_attempts[receipt.attempt] = None
            if len(sealed_attempts) > _SEALED_REMEMBERED:
                del sealed_attempts[next(iter(sealed_attempts))]
            heads = self._heads.setdefault(receipt.member, {})
            for part in receipt.parts:
                address = (receipt.store, part.key_group)
                heads[address] = entries.get(address, EMPTY).head

    def record_removed_links(self, sequence: int, manifest: Manifest, changes: Mapping[Address, Entry]) -> None:
        """Add to the trails the links that snapshots and merged deltas of record ``sequence`` remove from the chains.

        ``manifest`` is the manifest before the ``changes`` of the record.
        """
        for address, entry in changes.items():
            previous = manifest.entries.get(address, EMPTY)
            if entry.extends(previous):
                continue
            removed_links = _removed_links(previous, entry)
            if removed_links is None:
                self._trails.pop(address, None)
            elif removed_links.chain:
                self._trails.setdefault(address, _Trail(removed_links.base)).add(sequence, removed_links)

    def forget_trails(self, oldest: int) -> None:
        """Forget the removed links that no retained record lists.

        ``oldest`` is the number of the first retained record.
        """
        for address, trail in list(self._trails.items()):
            trail.forget_first(bisect_right(trail.removed_by, oldest))
            if not trail.links:
                del self._trails[address]

    def missing_links(self, member: str, address: Address, entry: Entry) -> tuple[Link, ...] | None:
        """Return the links that a member's copy lacks, or ``None`` if the member needs the whole state."""
        head = self._heads.get(member, {}).get(address)
        if head is None:
            return None if entry.head != EMPTY_HEAD else ()
        return self._links_after(head, address, entry)

    def _links_after(self, head: Head, address: Address, entry: Entry) -> tuple[Link, ...] | None:
        """Return the links from ``head`` to the head of ``entry``.

        Return ``None`` if ``head`` is neither on the chain nor on the trail.
        """
        after_head = entry.find_head(head)
        if after_head is not None:
            return entry.chain[after_head:]
        links = entry.links_after(head)
        trail = self._trails.get(address)
        if trail is None:
            return links
        end = entry.find_head(trail.head)
        place = Entry(None, tuple(trail.links), cut=trail.base).find_head(head)
        if end is None or place is None:
            return links
        by_trail = (*trail.links[place:], *entry.chain[end:])
        return by_trail if links is None or _sum_bytes(by_trail) <= _sum_bytes(links) else links

    def lag(self, member: str, address: Address, entry: Entry) -> CopyLag:
        """Return the lag of a member's copy: the links that it lacks, or the whole state if they do not suffice.

        Without a snapshot the links of the chain are the whole state. Links that the member sealed do not count.
        """
        head = self._heads.get(member, {}).get(address)
        if head == entry.head:
            return NO_LAG
        links = self.missing_links(member, address, entry)
        if links is None:
            if entry.snapshot is not None or head is None:
                return lag_without_copy(entry)
            links = entry.chain
        return self._lag_of_links(member, links) if links else NO_LAG

    def _lag_of_links(self, member: str, links: Iterable[Link]) -> CopyLag:
        """Return the records and bytes of the links that the member did not seal."""
        sealed_attempts = self._sealed.get(member, {})
        remote_links = [link for link in links if link.source.attempt not in sealed_attempts]
        return CopyLag(sum(link.rows for link in remote_links), sum(link.length for link in remote_links))

    def follow_of(self, member: str, address: Address, entry: Entry) -> Follow | None:
        """Return the upkeep order that updates a member's copy, or ``None`` if the copy lacks nothing."""
        heads = self._heads.get(member)
        head = heads.get(address, EMPTY_HEAD) if heads else EMPTY_HEAD
        if entry.head in (head, EMPTY_HEAD):
            return None
        place = entry.find_head(head)
        if place:  # links at the end of the chain are always fewer bytes than the whole state
            return Follow(*address, entry, len(entry.chain) - place)
        missing_entry = self.entry_to_follow(member, address, entry)
        return None if missing_entry is None else Follow(*address, missing_entry)

    def entry_to_follow(self, member: str, address: Address, entry: Entry) -> Entry | None:
        """Return the entry with the state that a member's copy lacks, or ``None`` if the copy lacks nothing.

        The entry has the missing links, or the whole state if that has fewer bytes.
        """
        head = self._heads.get(member, {}).get(address, EMPTY_HEAD)
        if head == entry.head:
            return None
        links = self.missing_links(member, address, entry)
        if links is None or head == EMPTY_HEAD:
            return entry
        if self._lag_of_links(member, links).bytes > lag_without_copy(entry).bytes:
            return entry
        return Entry(None, tuple(links), entry.timer_ms, cut=head)


def _removed_links(previous: Entry, entry: Entry) -> Entry | None:
    """Return the links of ``previous`` that a snapshot or merged delta of ``entry`` replaced, as a cut entry.

    Return ``None`` if ``entry`` does not follow ``previous``.
    """
    removed, _ = entry.changed_links(previous)
    if not removed:
        return Entry(cut=previous.head)
    place = previous.chain.index(removed[0])
    if previous.chain[place : place + len(removed)] != removed or entry.find_head(removed[-1].head) is None:
        return None
    return Entry(None, removed, cut=previous.chain[place - 1].head if place else previous.base)


def _sum_bytes(links: Iterable[Link]) -> int:
    return sum(link.length for link in links)
