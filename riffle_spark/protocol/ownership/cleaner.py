"""Copies that nobody needs any more. Knows the assignment and since when a copy has no place in it. Does not know how
copies are removed.

Theory of operation. A copy's lag may bring it back into the next assignment, so only copies that were
reported before an assignment and have no place in it are counted as idle, from that assignment on. What is reported
later is not idle before an assignment has answered it. A copy that is ordered to go is forgotten at once, so that no
later assignment counts on it; and it is removed only if it is still where it was seen.
"""

from collections.abc import Collection, Set

from riffle_spark.assign.model import Assignment, MemberId, TaskId
from riffle_spark.messages.upkeep_orders import Drop
from riffle_spark.protocol.ownership.groups import Groups
from riffle_spark.protocol.ownership.known_copies import KnownCopies
from riffle_spark.protocol.ownership.members import Members
from riffle_spark.state.log.manifest import Address

__all__ = ["Cleaner"]


class Cleaner:
    """Knows since when each copy has been idle."""

    def __init__(self) -> None:
        self._idle: dict[tuple[MemberId, Address], float] = {}

    def assigned(
        self, assignment: Assignment, copies: KnownCopies, members: Members, now: float, *, pointers: bool,
        groups: Groups,
    ) -> None:  # fmt: skip
        """Take an assignment: it has answered all copies that are known now. Pointer standbys need no copy."""
        idle: dict[tuple[MemberId, Address], float] = {}
        for member in sorted(members.live):
            for address in copies.of(member):
                if not _is_needed(assignment, member, groups.task(*address), pointers=pointers):
                    idle[member, address] = self._idle.get((member, address), now)
        self._idle = idle

    def due(
        self, copies: KnownCopies, live: Collection[MemberId], now: float, delay: float, *,
        hurried: Set[MemberId] = frozenset(),
    ) -> dict[MemberId, list[Drop]]:  # fmt: skip
        """Return the copies to remove now, by member; they are forgotten. ``hurried`` members need the room at once."""
        drops: dict[MemberId, list[Drop]] = {}
        for (member, address), since in sorted(self._idle.items()):
            if member in live and (now - since >= delay or member in hurried):
                head = copies.of(member).get(address)
                del self._idle[member, address]
                if head is not None:
                    drops.setdefault(member, []).append(Drop(*address, head))
                    copies.gone(member, address)
        return drops

    def is_due(self, now: float, delay: float) -> bool:
        """Tell whether some copy has been idle for long enough."""
        return any(now - since >= delay for since in self._idle.values())

    def forget(self) -> None:
        """Forget all: nothing has been answered yet."""
        self._idle.clear()


def _is_needed(assignment: Assignment, member: MemberId, t: TaskId, *, pointers: bool) -> bool:
    if member in (assignment.owners.get(t), assignment.target.get(t), *assignment.warmups.get(t, ())):
        return True
    return not pointers and member in assignment.standbys.get(t, ())
