"""Find copies that no assignment needs any more, and when to remove them.

Theory of operation. A copy's lag may bring it into the next assignment. So a copy counts as idle only if it was
reported before an assignment and has no place in that assignment, and from that assignment on. A copy that is ordered
to be removed is forgotten at once, so that no later assignment counts on it. The executor removes it only if it is
still at the head that was reported.
"""

from collections.abc import Collection, Set

from riffle_spark.assign.model import Assignment, MemberId, TaskId
from riffle_spark.messages.upkeep_orders import Drop
from riffle_spark.protocol.ownership.groups import Groups
from riffle_spark.protocol.ownership.membership import Membership
from riffle_spark.protocol.ownership.reported_copies import ReportedCopies
from riffle_spark.state.log.manifest import Address


class IdleCopies:
    """The copies that no assignment needs, and since when."""

    def __init__(self) -> None:
        self._idle: dict[tuple[MemberId, Address], float] = {}

    def record_assignment(
        self,
        assignment: Assignment,
        copies: ReportedCopies,
        membership: Membership,
        now: float,
        *,
        pointers: bool,
        groups: Groups,
    ) -> None:
        """Record which of all reported copies an assignment made at time ``now`` leaves without a place.

        With ``pointers`` standbys need no copy.
        """
        idle: dict[tuple[MemberId, Address], float] = {}
        for member in sorted(membership.live):
            for address in copies.of_member(member):
                if not _is_needed(assignment, member, groups.task(*address), pointers=pointers):
                    idle[member, address] = self._idle.get((member, address), now)
        self._idle = idle

    def take_due(
        self,
        copies: ReportedCopies,
        live: Collection[MemberId],
        now: float,
        delay: float,
        *,
        at_once: Set[MemberId] = frozenset(),
    ) -> dict[MemberId, list[Drop]]:
        """Take the copies to remove now, by member: those on live members that are idle for ``delay`` seconds.

        They are forgotten here and in ``copies``. Copies of the members in ``at_once`` are taken without a delay,
        because these members need room.
        """
        drops: dict[MemberId, list[Drop]] = {}
        for (member, address), since in sorted(self._idle.items()):
            if member in live and (now - since >= delay or member in at_once):
                head = copies.of_member(member).get(address)
                del self._idle[member, address]
                if head is not None:
                    drops.setdefault(member, []).append(Drop(*address, head))
                    copies.remove(member, address)
        return drops

    def is_due(self, now: float, delay: float) -> bool:
        """Return whether some copy has been idle for ``delay`` seconds at time ``now``."""
        return any(now - since >= delay for since in self._idle.values())

    def forget(self) -> None:
        """Forget all idle copies. They count as idle again after the next assignment."""
        self._idle.clear()


def _is_needed(assignment: Assignment, member: MemberId, t: TaskId, *, pointers: bool) -> bool:
    """Return whether an assignment needs a copy of task ``t`` on a member. With ``pointers`` standbys need none."""
    if member in (assignment.owners.get(t), assignment.target.get(t), *assignment.warmups.get(t, ())):
        return True
    return not pointers and member in assignment.standbys.get(t, ())
