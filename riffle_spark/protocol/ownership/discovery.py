"""Update the members from the live executors before a batch, and take a census of new executors.

An executor is set aside for a while if its local disk refused, or if its census failed.
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

_ASIDE_SECONDS = 10.0
_LONGEST_ASIDE_SECONDS = 600.0
_UNANSWERED_SECONDS = 1.0


class Discovery:
    """Keeps members and their copies up to date with the live executors.

    An executor becomes a member with its census, which reports its folder and its copies.
    """

    def __init__(self, settings: Settings, cluster: Cluster, background: Background, racks_of: RacksOf) -> None:
        """Create a discovery that knows no member yet. ``racks_of`` returns the racks of members."""
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

    def set_aside(self, executor: str, reason: str, now: float) -> None:
        """Give an executor no slots for a while, because its local disk refused for this ``reason``."""
        self._refused.add(executor)
        seconds = self._aside.record_failure(executor, now)
        self._warnings[executor] = (
            f"[RIFFLE-0766] Executor {executor} gets no tasks for {seconds:g} s, because its local disk refused: "
            f"{reason}\n"
            "  What to do: Free space on the disk, or repair it. The executor is tried again."
        )

    def is_set_aside(self, executor: str, now: float) -> bool:
        """Return whether an executor gets no slots at time ``now``, because its local disk refused."""
        return self._aside.is_delayed(executor, now)

    def has_usable_executor(self, executors: Sequence[Executor], now: float) -> bool:
        """Return whether the disk of at least one executor has not refused in this batch.

        If all are set aside, the executors that refused before this batch are tried once more. If none is left, all
        failures are forgotten.
        """
        if any(not self._aside.is_delayed(executor.id, now) for executor in executors):
            return True
        earlier = {executor.id for executor in executors} - self._refused
        if not earlier:
            self.forget()
        for executor in earlier:
            self._aside.forget(executor)
        return bool(earlier)

    def forget_refusals(self) -> None:
        """Forget which disks refused in the committed batch."""
        self._refused.clear()

    def forget(self) -> None:
        """Forget failures, and drop late answers to earlier censuses: they would replace newer reports of copies."""
        self._census_calls = CensusCalls(self._cluster, self._background)
        self._answerable = True
        self._refused.clear()
        self._aside.clear()
        self._unanswered.clear()

    def update_members(
        self, executors: Sequence[Executor], membership: Membership, copies: ReportedCopies, home: Home, now: float
    ) -> list[MemberChanges]:
        """Update members and copies for these live executors; return the changes, in order.

        If no executor is a member yet, this waits for their censuses.
        """
        membership.executors = tuple(executors)
        reassignment = membership.reassign_folders(executors)
        departed_members = membership.find_departed(executors)
        planned_executors = (
            self._cluster.find_planned_removals([member.executor.id for member in departed_members])
            if departed_members
            else frozenset()
        )
        alive = {executor.id for executor in executors}
        for delays in (self._aside, self._unanswered):
            delays.keep_only(lambda executor: executor in alive)
        aside = [member for member in membership.live.values() if self._aside.is_delayed(member.executor.id, now)]
        removal = membership.remove(
            [*departed_members, *(member for member in aside if member not in departed_members)], now, planned_executors
        )
        order = self._census_order(home)
        changes = [
            reassignment,
            removal,
            self._add_members(self._take_answers(now), executors, membership, copies, now),
        ]
        if not membership.live:
            usable = [executor for executor in executors if not self._aside.is_delayed(executor.id, now)] or executors
            changes.append(self._add_members(self._ask_now(usable, order), executors, membership, copies, now))
            if not membership.live:
                changes.append(membership.add_without_census(usable))
        if self._answerable:
            executors_to_ask = [
                e for e in membership.executors_without_census(executors) if not self._is_delayed(e.id, now)
            ]
            self._census_calls.start_census(executors_to_ask, order)
            changes.append(self._add_members(self._take_answers(now), executors, membership, copies, now))
        return changes

    def _take_answers(self, now: float) -> list[Census]:
        """Take the censuses that arrived, without those of executors that were set aside since."""
        return [
            census for census in self._census_calls.take_answers() if not self._aside.is_delayed(census.executor, now)
        ]

    def _census_order(self, home: Home) -> CensusOrder:
        settings = self._settings
        return CensusOrder(
            home,
            folder_cleanup_seconds=settings.folder_cleanup_delay,
            timeout_seconds=settings.upkeep_timeout,
        )

    def _is_delayed(self, executor: str, now: float) -> bool:
        """Return whether it is too early to ask an executor for a census."""
        return self._aside.is_delayed(executor, now) or self._unanswered.is_delayed(executor, now)

    def _ask_now(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Ask executors for a census and wait for it.

        Executors that do not answer become members by their own ids, and are asked again in the background. If there is
        no answer at all, the cluster cannot ask executors.
        """
        try:
            answers = self._cluster.census(executors, order)
        except UnavailableError as error:
            self._warnings.update({executor.id: _no_census_warning(executor.id, str(error)) for executor in executors})
            return []
        self._answerable = bool(answers)
        return answers

    def _add_members(
        self,
        censuses: Sequence[Census],
        executors: Sequence[Executor],
        membership: Membership,
        copies: ReportedCopies,
        now: float,
    ) -> MemberChanges:
        """Add the members that these censuses name, with their copies; return the changes.

        Failed censuses are recorded, so that the executors are asked again later.
        """
        hosts = {executor.id: executor.host for executor in executors}
        named_censuses = [census for census in censuses if census.member and census.executor in hosts]
        racks = (
            self._racks_of([(c.member, hosts[c.executor], c.rack) for c in named_censuses]) if named_censuses else {}
        )
        changes = membership.add(named_censuses, executors, racks)
        for census in censuses:
            self._note_failure(census, changes.duplicates.get(census.executor), now)
        added_members = {*changes.joined, *changes.returned}
        for census in named_censuses:
            if census.member in added_members and census.executor not in changes.duplicates:
                copies.record_census(census)
        return changes

    def _note_failure(self, census: Census, duplicate_of: str | None, now: float) -> None:
        """Record whether an executor can become a member, and add a warning if it cannot.

        ``duplicate_of`` names the member whose folder its own is a copy of. The executor is asked again after growing
        delays.
        """
        executor = census.executor
        if duplicate_of is not None:
            self._warnings[executor] = (
                f"[RIFFLE-0767] Executor {executor} cannot take part, because another live executor has a folder "
                f"{duplicate_of}, too. The disk of one machine is a copy of the other's.\n"
                f"  What to do: Remove {duplicate_of} below `local_dir` on the machine of executor {executor}. Build "
                "machine images without `local_dir`."
            )
        elif census.error is None:
            self._unanswered.forget(executor)
            return
        else:
            self._warnings[executor] = _no_census_warning(executor, census.error)
        (self._aside if self._aside.failures(executor) else self._unanswered).record_failure(executor, now)

    def take_warnings(self) -> Iterable[str]:
        """Return the warnings since the last call, sorted by executor, and forget them."""
        warnings = [warning for _, warning in sorted(self._warnings.items())]
        self._warnings.clear()
        return warnings


def _no_census_warning(executor: str, reason: str) -> str:
    # Cause: The executor did not answer the census in time, or cannot use its folder for local copies.
    # Remedy: Follow the remedy of the error. If it has none, do nothing, because the executor is asked again.
    return f"[RIFFLE-0768] Executor {executor} cannot take part yet: {reason}"


class CensusCalls:
    """Censuses that run in the background, at most one at a time per executor."""

    def __init__(self, cluster: Cluster, background: Background) -> None:
        """Create the censuses of ``cluster``, which run in ``background``."""
        self._cluster = cluster
        self._background = background
        self._unanswered: set[str] = set()
        self._answers: deque[tuple[frozenset[str], list[Census]]] = deque()

    def start_census(self, executors: Sequence[Executor], order: CensusOrder) -> None:
        """Start a census of these executors in the background.

        Executors are left out if ``take_answers`` has not yet returned the result of their last census.
        """
        new_executors = [executor for executor in executors if executor.id not in self._unanswered]
        if new_executors:
            self._unanswered |= {executor.id for executor in new_executors}
            self._background.submit(lambda: self._ask(new_executors, order))

    def take_answers(self) -> list[Census]:
        """Take the censuses that arrived since the last call. Executors that did not answer may be asked again."""
        censuses: list[Census] = []
        while self._answers:
            executors, answers = self._answers.popleft()
            self._unanswered -= executors
            censuses += answers
        return censuses

    def _ask(self, executors: Sequence[Executor], order: CensusOrder) -> None:
        """Run the census of these executors in the background, and keep the answers for ``take_answers``."""
        answers: list[Census] = []
        try:
            answers = self._cluster.census(executors, order)
        finally:
            self._answers.append((frozenset(executor.id for executor in executors), answers))
