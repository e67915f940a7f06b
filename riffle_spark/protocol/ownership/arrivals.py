"""Looking who is there before a batch, by a census of executors that are not members yet. Knows executors, censuses and
racks. Does not know assignments.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from riffle_spark.errors import UnavailableError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import Census, CensusOrder
from riffle_spark.protocol.delays import Delays
from riffle_spark.protocol.ownership.known_copies import KnownCopies
from riffle_spark.protocol.ownership.members import MemberChanges, Members
from riffle_spark.protocol.ports import Background, Cluster, Executor, RacksOf
from riffle_spark.settings import Settings

__all__ = ["Arrivals", "CensusCalls"]

_ASIDE_SECONDS = 10.0
_LONGEST_ASIDE_SECONDS = 600.0
_UNANSWERED_SECONDS = 1.0


class Arrivals:
    """Takes in who left, joined and returned."""

    def __init__(self, settings: Settings, cluster: Cluster, background: Background, racks_of: RacksOf) -> None:
        self._settings = settings
        self._cluster = cluster
        self._background = background
        self._census_calls = CensusCalls(cluster, background)
        self._racks_of = racks_of
        self._warnings: dict[str, str] = {}
        self._answerable = True
        self._aside: Delays[str] = Delays(_ASIDE_SECONDS, _LONGEST_ASIDE_SECONDS, _LONGEST_ASIDE_SECONDS)
        self._refused: set[str] = set()
        """Whose disks refused since the last commit."""
        self._unanswered: Delays[str] = Delays(_UNANSWERED_SECONDS, _LONGEST_ASIDE_SECONDS)

    def obey(self, settings: Settings) -> None:
        """Take changed settings: they count from the next census on."""
        self._settings = settings

    def refused(self, executor: str, why: str, now: float) -> None:
        """Set an executor aside whose local disk refused."""
        self._refused.add(executor)
        seconds = self._aside.failed(executor, now)
        self._warnings[executor] = (
            f"executor {executor} is set aside for {seconds:g} s, its tasks run elsewhere: {why}\n"
            "  What to do: free space on its disk or mend it; it comes back by itself"
        )

    def are_left(self, executors: Sequence[Executor], now: float) -> bool:
        """Tell whether an executor is left whose disk has not refused in this batch: where all are set aside, those
        that were before are tried once more. Where none is left, all is forgotten: the next try is a fresh one.
        """
        if any(not self._aside.holds(executor.id, now) for executor in executors):
            return True
        earlier = {executor.id for executor in executors} - self._refused
        if not earlier:
            self.forget()
        for executor in earlier:
            self._aside.forget(executor)
        return bool(earlier)

    def committed(self) -> None:
        """Begin another batch."""
        self._refused.clear()

    def forget(self) -> None:
        """Take no answer to what was asked before: one that comes late would stand for all there are. Forget who
        failed: the next try is a fresh one.
        """
        self._census_calls = CensusCalls(self._cluster, self._background)
        self._answerable = True
        self._refused.clear()
        self._aside.clear()
        self._unanswered.clear()

    def look(
        self, executors: Sequence[Executor], members: Members, copies: KnownCopies, home: Home, now: float
    ) -> list[MemberChanges]:
        """Bring members and copies up to date; return what changed, in order."""
        handed_on = members.hand_on(executors)
        gone = members.departed(executors)
        planned = self._cluster.planned([living.executor.id for living in gone]) if gone else frozenset()
        here = {executor.id for executor in executors}
        for delays in (self._aside, self._unanswered):
            delays.forget_but(lambda executor: executor in here)
        shut = [living for living in members.live.values() if self._aside.holds(living.executor.id, now)]
        left = members.leave([*gone, *(living for living in shut if living not in gone)], now, planned)
        for name in left.left:
            copies.wiped(name)
        order = self._order(home, members)
        found = [handed_on, left, self._take(self._answers(now), executors, members, copies, now)]
        if not members.live:
            able = [executor for executor in executors if not self._aside.holds(executor.id, now)] or executors
            found.append(self._take(self._ask_now(able, order), executors, members, copies, now))
            if not members.live:
                found.append(members.stand_in(able))
        if self._answerable:
            strangers = [executor for executor in members.strangers(executors) if not self._waits(executor.id, now)]
            self._census_calls.ask(strangers, order)
            found.append(self._take(self._answers(now), executors, members, copies, now))
        return found

    def _answers(self, now: float) -> list[Census]:
        """Return what has come, but for who was set aside since it was asked: it is asked again when that is over."""
        return [census for census in self._census_calls.answers() if not self._aside.holds(census.executor, now)]

    def _order(self, home: Home, members: Members) -> CensusOrder:
        settings = self._settings
        return CensusOrder(
            home, folder_cleanup_seconds=settings.folder_cleanup_delay, timeout_seconds=settings.upkeep_timeout,
            twins=tuple(sorted({*members.twins.values()})),
        )  # fmt: skip

    def _waits(self, executor: str, now: float) -> bool:
        return self._aside.holds(executor, now) or self._unanswered.holds(executor, now)

    def _ask_now(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Ask and wait. Who cannot be asked now stands for itself, and is asked again beside the batches; where nobody
        answers, nobody ever will.
        """
        try:
            answers = self._cluster.census(executors, order)
        except UnavailableError as error:
            self._warnings.update({e.id: f"executor {e.id} cannot take part yet: {error}" for e in executors})
            return []
        self._answerable = bool(answers)
        return answers

    def _take(
        self,
        censuses: Sequence[Census],
        executors: Sequence[Executor],
        members: Members,
        copies: KnownCopies,
        now: float,
    ) -> MemberChanges:
        """Take in the members that were counted."""
        hosts = {executor.id: executor.host for executor in executors}
        named = [census for census in censuses if census.member and census.executor in hosts]
        for census in censuses:
            self._heard(census, now)
        racks = self._racks_of([(c.member, hosts[c.executor], c.rack) for c in named]) if named else {}
        changes = members.enter(named, executors, racks)
        taken = {*changes.joined, *changes.returned}
        for census in named:
            if census.executor in members.twins:
                self._warnings[census.executor] = (
                    f"executor {census.executor} is member {census.member} by its folder, and another one is, too: the "
                    "disk of one is a copy of the other's\n"
                    "  What to do: nothing, one of the folders gets another name; copy machines without `local_dir`"
                )
            elif census.member in taken:
                copies.counted(census)
        return changes

    def _heard(self, census: Census, now: float) -> None:
        """Note whether an executor may take part; one that was set aside and may not is left alone for longer."""
        if census.error is None:
            self._unanswered.forget(census.executor)
            return
        self._warnings[census.executor] = f"executor {census.executor} cannot take part yet: {census.error}"
        (self._aside if self._aside.tries(census.executor) else self._unanswered).failed(census.executor, now)

    def take_warnings(self) -> Iterable[str]:
        """Return what executors failed with since the last call."""
        told = [warning for _, warning in sorted(self._warnings.items())]
        self._warnings.clear()
        return told


class CensusCalls:
    """Asks executors beside the batches, each once at a time."""

    def __init__(self, cluster: Cluster, background: Background) -> None:
        self._cluster = cluster
        self._background = background
        self._asked: set[str] = set()
        self._answers: deque[tuple[frozenset[str], list[Census]]] = deque()

    def ask(self, executors: Sequence[Executor], order: CensusOrder) -> None:
        """Ask those that have not been asked yet, beside the batches."""
        fresh = [executor for executor in executors if executor.id not in self._asked]
        if fresh:
            self._asked |= {executor.id for executor in fresh}
            self._background.submit(lambda: self._ask(fresh, order))

    def answers(self) -> list[Census]:
        """Return the answers that have come since the last call. Who did not answer is asked again."""
        found: list[Census] = []
        while self._answers:
            asked, answers = self._answers.popleft()
            self._asked -= asked
            found += answers
        return found

    def _ask(self, executors: Sequence[Executor], order: CensusOrder) -> None:
        answers: list[Census] = []
        try:
            answers = self._cluster.census(executors, order)
        finally:
            self._answers.append((frozenset(executor.id for executor in executors), answers))
