"""Looking who is there before a batch. Knows executors, censuses and racks. Does not know assignments.

An executor that is not a member yet is asked beside the batches. Only where no member is left the batch waits for the
answer; where nobody can be asked, executors stand for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from riffle_spark.errors import UnavailableError
from riffle_spark.protocol.copies import Copies
from riffle_spark.protocol.members import Changes, Members
from riffle_spark.protocol.ports import Background, Cluster, Executor
from riffle_spark.protocol.roll import Roll
from riffle_spark.settings import Settings
from riffle_spark.worker.census import Census, CensusOrder
from riffle_spark.worker.order import Home

__all__ = ["Muster", "RacksOf"]

RacksOf = Callable[[Sequence[tuple[str, str, "str | None"]]], Mapping[str, "str | None"]]
"""From (member, host, rack by its own account) of each to the rack of each member."""


class Muster:
    """Takes in who left, joined and returned."""

    def __init__(self, settings: Settings, cluster: Cluster, background: Background, racks_of: RacksOf) -> None:
        self._settings = settings
        self._cluster = cluster
        self._background = background
        self._roll = Roll(cluster, background)
        self._racks_of = racks_of
        self._warnings: dict[str, str] = {}
        self._answerable = True

    def forget(self) -> None:
        """Take no answer to what was asked before: one that comes late would stand for all there are."""
        self._roll = Roll(self._cluster, self._background)
        self._answerable = True

    def look(
        self, executors: Sequence[Executor], members: Members, copies: Copies, home: Home, now: float
    ) -> list[Changes]:
        """Bring members and copies up to date; return what changed, in order."""
        handed_on = members.hand_on(executors)
        gone = members.departed(executors)
        planned = self._cluster.planned([seat.executor.id for seat in gone]) if gone else frozenset()
        left = members.leave(gone, now, planned)
        for seat in gone:
            copies.wiped(seat.id)
        order = CensusOrder(
            home, self._settings.ec2_metadata, self._settings.folder_cleanup_delay, self._settings.upkeep_timeout
        )
        found = [handed_on, left, self._take(self._roll.answers(), executors, members, copies)]
        if not members.live:
            found.append(self._take(self._ask_now(executors, order), executors, members, copies))
        if not members.live:
            found.append(members.stand_in(executors))
        if self._answerable:
            self._roll.ask(members.strangers(executors), order)
            found.append(self._take(self._roll.answers(), executors, members, copies))
        return found

    def _ask_now(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Ask and wait. Who cannot be asked now stands for itself, and is asked again beside the batches; where nobody
        answers, nobody ever will.
        """
        try:
            answers = self._cluster.census(executors, order)
        except UnavailableError as error:
            self._warnings.update({executor.id: str(error) for executor in executors})
            return []
        self._answerable = bool(answers)
        return answers

    def _take(
        self, censuses: Sequence[Census], executors: Sequence[Executor], members: Members, copies: Copies
    ) -> Changes:
        """Take in the members that were counted."""
        hosts = {executor.id: executor.host for executor in executors}
        named = [census for census in censuses if census.member and census.executor in hosts]
        self._warnings.update({c.executor: c.error for c in censuses if c.error})
        racks = self._racks_of([(c.member, hosts[c.executor], c.rack) for c in named]) if named else {}
        changes = members.enter(named, executors, racks)
        taken = {*changes.joined, *changes.returned}
        for census in named:
            if census.member in taken:
                copies.counted(census)
        return changes

    def take_warnings(self) -> Iterable[str]:
        """Return what censuses failed with since the last call."""
        told = [f"executor {executor} cannot take part yet: {why}" for executor, why in sorted(self._warnings.items())]
        self._warnings.clear()
        return told
