"""Find out which executors are alive before a batch, and take a census of those that are not members yet.

An executor whose local disk refused is set aside for a while, and so is one whose census failed.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from riffle_spark.errors import UnavailableError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import Census, CensusOrder
from riffle_spark.protocol.delays import Delays
from riffle_spark.protocol.ownership.membership import MemberChanges, Membership
from riffle_spark.protocol.ownership.reported_copies import ReportedCopies
from riffle_spark.protocol.ports import Background, Cluster, Executor, RacksOf
from riffle_spark.settings import Settings

__all__ = ["CensusCalls", "Discovery"]

_ASIDE_SECONDS = 10.0
_LONGEST_ASIDE_SECONDS = 600.0
_UNANSWERED_SECONDS = 1.0


class Discovery:
    """Updates members and copies by the executors that are alive."""

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
        """Executors whose disks refused since the last commit."""
        self._unanswered: Delays[str] = Delays(_UNANSWERED_SECONDS, _LONGEST_ASIDE_SECONDS)

    def change_settings(self, settings: Settings) -> None:
        """Use changed settings from the next census on."""
        self._settings = settings

    def set_aside(self, executor: str, why: str, now: float) -> None:
        """Set an executor aside whose local disk refused."""
        self._refused.add(executor)
        seconds = self._aside.failed(executor, now)
        self._warnings[executor] = (
            f"executor {executor} is set aside for {seconds:g} s, its tasks run elsewhere: {why}\n"
            "  What to do: free space on its disk or mend it; it comes back by itself"
        )

    def any_usable(self, executors: Sequence[Executor], now: float) -> bool:
        """Return whether the disk of an executor has not refused in this batch.

        If all are set aside, those that were before this batch may be tried once more. If none is left, everything is
        forgotten: the next try starts afresh.
        """
        if any(not self._aside.holds(executor.id, now) for executor in executors):
            return True
        earlier = {executor.id for executor in executors} - self._refused
        if not earlier:
            self.forget()
        for executor in earlier:
            self._aside.forget(executor)
        return bool(earlier)

    def start_batch(self) -> None:
        """Forget whose disks refused in the batch that was committed."""
        self._refused.clear()

    def forget(self) -> None:
        """Forget failures, and drop answers to earlier censuses: a late one would be taken for the whole state."""
        self._census_calls = CensusCalls(self._cluster, self._background)
        self._answerable = True
        self._refused.clear()
        self._aside.clear()
        self._unanswered.clear()

    def look(
        self, executors: Sequence[Executor], membership: Membership, copies: ReportedCopies, home: Home, now: float
    ) -> list[MemberChanges]:
        """Bring members and copies up to date; return what changed, in order."""
        membership.executors = tuple(executors)
        handed_on = membership.hand_on(executors)
        gone = membership.departed(executors)
        planned = self._cluster.planned([living.executor.id for living in gone]) if gone else frozenset()
        here = {executor.id for executor in executors}
        for delays in (self._aside, self._unanswered):
            delays.forget_but(lambda executor: executor in here)
        aside = [living for living in membership.live.values() if self._aside.holds(living.executor.id, now)]
        left = membership.remove([*gone, *(living for living in aside if living not in gone)], now, planned)
        order = self._order(home)
        changes = [handed_on, left, self._add(self._answers(now), executors, membership, copies, now)]
        if not membership.live:
            usable = [executor for executor in executors if not self._aside.holds(executor.id, now)] or executors
            changes.append(self._add(self._ask_now(usable, order), executors, membership, copies, now))
            if not membership.live:
                changes.append(membership.stand_in(usable))
        if self._answerable:
            unknown = [e for e in membership.without_census(executors) if not self._is_delayed(e.id, now)]
            self._census_calls.ask(unknown, order)
            changes.append(self._add(self._answers(now), executors, membership, copies, now))
        return changes

    def _answers(self, now: float) -> list[Census]:
        """Return the censuses that arrived, without those of executors that were set aside meanwhile."""
        return [census for census in self._census_calls.answers() if not self._aside.holds(census.executor, now)]

    def _order(self, home: Home) -> CensusOrder:
        settings = self._settings
        return CensusOrder(
            home,
            folder_cleanup_seconds=settings.folder_cleanup_delay,
            timeout_seconds=settings.upkeep_timeout,
        )

    def _is_delayed(self, executor: str, now: float) -> bool:
        return self._aside.holds(executor, now) or self._unanswered.holds(executor, now)

    def _ask_now(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Ask executors for a census and wait for it.

        Executors that cannot be asked now become members by their own ids, and are asked again beside the batches. If
        the answer is empty, the cluster cannot ask executors at all.
        """
        try:
            answers = self._cluster.census(executors, order)
        except UnavailableError as error:
            self._warnings.update({e.id: f"executor {e.id} cannot take part yet: {error}" for e in executors})
            return []
        self._answerable = bool(answers)
        return answers

    def _add(
        self,
        censuses: Sequence[Census],
        executors: Sequence[Executor],
        membership: Membership,
        copies: ReportedCopies,
        now: float,
    ) -> MemberChanges:
        """Add the members that censuses name, with their copies."""
        hosts = {executor.id: executor.host for executor in executors}
        named = [census for census in censuses if census.member and census.executor in hosts]
        racks = self._racks_of([(c.member, hosts[c.executor], c.rack) for c in named]) if named else {}
        changes = membership.add(named, executors, racks)
        for census in censuses:
            self._note_failure(census, changes.duplicates.get(census.executor), now)
        added = {*changes.joined, *changes.returned}
        for census in named:
            if census.member in added and census.executor not in changes.duplicates:
                copies.counted(census)
        return changes

    def _note_failure(self, census: Census, duplicate_of: str | None, now: float) -> None:
        """Note whether an executor may take part. One that may not is asked again later and later."""
        executor = census.executor
        if duplicate_of is not None:
            self._warnings[executor] = (
                f"executor {executor} cannot take part: its folder is named {duplicate_of}, and so is another live "
                "executor's, since the disk of one machine is a copy of the other's\n"
                f"  What to do: remove the folder {duplicate_of} below `local_dir` on the machine of executor "
                f"{executor}, and make machine images without `local_dir`"
            )
        elif census.error is None:
            self._unanswered.forget(executor)
            return
        else:
            self._warnings[executor] = f"executor {executor} cannot take part yet: {census.error}"
        (self._aside if self._aside.tries(executor) else self._unanswered).failed(executor, now)

    def take_warnings(self) -> Iterable[str]:
        """Return the warnings since the last call, by executor."""
        warnings = [warning for _, warning in sorted(self._warnings.items())]
        self._warnings.clear()
        return warnings


class CensusCalls:
    """Censuses that run beside the batches, at most one at a time per executor."""

    def __init__(self, cluster: Cluster, background: Background) -> None:
        self._cluster = cluster
        self._background = background
        self._asked: set[str] = set()
        self._answers: deque[tuple[frozenset[str], list[Census]]] = deque()

    def ask(self, executors: Sequence[Executor], order: CensusOrder) -> None:
        """Start the census of the executors that have none under way."""
        new_executors = [executor for executor in executors if executor.id not in self._asked]
        if new_executors:
            self._asked |= {executor.id for executor in new_executors}
            self._background.submit(lambda: self._ask(new_executors, order))

    def answers(self) -> list[Census]:
        """Return the censuses since the last call. Executors that did not answer may be asked again."""
        censuses: list[Census] = []
        while self._answers:
            asked, answers = self._answers.popleft()
            self._asked -= asked
            censuses += answers
        return censuses

    def _ask(self, executors: Sequence[Executor], order: CensusOrder) -> None:
        answers: list[Census] = []
        try:
            answers = self._cluster.census(executors, order)
        finally:
            self._answers.append((frozenset(executor.id for executor in executors), answers))
