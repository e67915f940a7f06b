"""With what a task of an executor may give up, an attempt of a slot, a piece of upkeep or a census: with what has
really befallen that task, or the folder, the copy or the log that it tells of.

Knows what met each task, and which files were harmed. Does not know what a query makes of it: that is in ``excuses``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from riffle_spark.messages.slot_orders import RECEIPT, Home, Receipt
from riffle_spark.messages.upkeep_orders import Census, CensusOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.state.copies.disk import is_member
from riffle_spark.state.copies.stack import Stack, Stacks
from riffle_spark.state.log import paths
from riffle_spark.testing import Attempt
from tests.dst.scheduler import FOREVER, Actor

__all__ = ["Attempts", "object_in", "receipt_in"]

_TOLD = re.compile(
    r"(?:(?P<store>\w+), key-group (?P<key_group>\d+): )?(?P<problem>.*?)"
    r"(?: \[(?P<where>[^\[\]]*(?:\[\d+:\d+\])?)\])?(?:\n  What to do: .*)?\Z",
    re.DOTALL,
)
"""What pieces and censuses tell as text: whose copy, what is wrong, and where."""
_STANDS_STILL = {"hang", "pause", "slow"}
_COPY = re.compile(r"(\w+), key-group (\d+)\Z")
_QUOTED = re.compile(r"'(/[^']*)'")


class _GaveUp(NamedTuple):
    """Who gave up with what. ``home`` and ``sequence`` are those that its order goes by, ``copy`` the one it tells of.
    ``asked``: it ran where the driver wanted it, which took ``member`` for the folder there.
    """

    actor: Actor
    problem: str
    where: str
    home: Home
    sequence: int
    epoch: int
    copy: tuple[str, int] | None = None
    asked: bool = True
    member: str = ""


def receipt_in(answer: Any) -> Receipt | None:
    """Return the receipt that a slot's answer holds, if it holds one."""
    told = answer.column(RECEIPT).drop_null()
    return Receipt.from_json(told[-1].as_py()) if len(told) else None


def object_in(where: str) -> str:
    """Return the name of an object: errors tell a range of it, too, or the executor that met it."""
    return re.split(r"\[|, ", where)[0]


class Attempts:
    """What tasks of a schedule, the ``world``, give up with."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._dropped: dict[tuple[str, str, int], float] = {}
        """Copies that went, with their members, and when they did last."""
        self._gone: dict[tuple[str, str, int], Actor | None] = {}
        """Those that have not come again, and who removed them."""
        self._switched: dict[tuple[str, int], dict[Actor | None, float]] = {}
        """Who put other lists in the place of a copy's, or was about to, and until when."""
        self._still: list[Actor] = []
        """Tasks that stood still."""

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Look from now on which copies go."""
        drop, switch = Stacks.drop, Stacks.switch

        def copy_in(stacks: Stacks, key_group: int) -> tuple[str, str, int]:
            return Path(stacks._path).parents[1].name, stacks.store, key_group  # private: where they are

        def dropped(stacks: Stacks, key_group: int) -> None:
            copy = copy_in(stacks, key_group)
            self._dropped[copy] = self._world.scheduler.now
            self._gone[copy] = self._world.scheduler.mine()
            drop(stacks, key_group)

        def switched(stacks: Stacks, key_group: int, before: Stack | None, stack: Stack) -> bool:
            copy, actor = copy_in(stacks, key_group), self._world.scheduler.mine()
            spans = self._switched.setdefault(copy[1:], {})
            spans[actor] = FOREVER
            try:
                came = switch(stacks, key_group, before, stack)
            finally:
                spans[actor] = self._world.scheduler.now
            if came:
                self._gone.pop(copy, None)
            return came

        patch.setattr(Stacks, "drop", dropped)
        patch.setattr(Stacks, "switch", switched)

    def befell(self, actor: Actor, kind: str) -> None:
        """Note what befell an actor."""
        actor.met.add(kind)
        if kind in _STANDS_STILL and actor.process.executor:
            self._still.append(actor)

    # --- who gives up -------------------------------------------------------------------------------------------------

    def member_of(self, executor: str) -> str:
        """Return what the driver that asks takes for an executor's folder by now."""
        actor = self._world.scheduler.mine()
        living = actor.process.driver.ownership.membership.of_executor(executor)
        return living.id if living is not None else ""

    def slot(self, answer: Any, attempt: Attempt, executor: str, member: str) -> None:
        """Look at what an attempt of a slot answers, whose driver took ``member`` for the folder there."""
        receipt, order = receipt_in(answer), attempt.order
        assert receipt is not None, "no slot is silent"
        if receipt.error is not None:
            _, problem, _, where = receipt.error
            of = (order.store, int(found[1])) if (found := re.search(r"the first is (\d+)$", problem)) else None
            told = problem, where, order.home, order.sequence, order.epoch, of, attempt.executor == executor, member
            self._check(*told)

    def piece(self, receipt: UpkeepReceipt, order: UpkeepOrder) -> None:
        """Look at what a piece of upkeep tells: of no copy that it has removed itself that it is there."""
        for store, key_group, version, _ in receipt.copies:
            remover = self._gone.get((receipt.member, store, key_group))
            if remover is not None and remover is self._world.scheduler.mine():
                wrong = f"{remover.name} removed its copy of {store}, {key_group}, and tells it at version {version}"
                self._world.scheduler.broke(AssertionError(wrong))
        for text in receipt.errors:
            told = _TOLD.match(text)
            assert told is not None
            of = (told["store"], int(told["key_group"])) if told["store"] else None
            self._check(told["problem"], told["where"] or "", order.home, order.sequence, order.epoch, of)

    def census(self, census: Census, order: CensusOrder) -> None:
        """Look at what a census tells."""
        if census.error is not None:
            told = _TOLD.match(census.error)
            assert told is not None
            self._check(told["problem"], told["where"] or "", order.home, -1, -1)

    def _check(self, *given: Any) -> None:
        actor = self._world.scheduler.mine()
        assert actor is not None
        told = _GaveUp(actor, *given)
        with self._world.scheduler.quiet():
            self._world.log_seen.look()
            is_explained = self.explains(told)
        if not is_explained:
            named = f"{actor.name} gives up with what has not befallen it: {told.problem} [{told.where}]"
            self._world.scheduler.broke(AssertionError(named))

    # --- what explains it ---------------------------------------------------------------------------------------------

    def explains(self, told: _GaveUp) -> bool:
        """Tell whether it has really happened."""
        for pattern, explains in _EXPLAINED:
            found = re.match(pattern, told.problem)
            if found:
                return explains(self, told, found)
        return self._is_damaged(told)

    def _has_met(self, told: _GaveUp, _: re.Match[str]) -> bool:
        """The store failed for this very task, with that object."""
        return told.where in told.actor.met

    def _is_damaged(self, told: _GaveUp) -> bool:
        """Bytes of that object came damaged to this very task; or it is gone, and the log promises it no more."""
        name = object_in(told.where)
        is_one = paths.parse(name) is not None or paths.record_sequence(name) is not None
        if not is_one:
            return False
        return name in told.actor.met or (not self._world.memory.exists(name) and self._is_given_up(told))

    def _is_given_up(self, told: _GaveUp) -> bool:
        newest = self._newest()
        return newest is None or newest.promised > told.sequence or self._is_other(told, newest)

    def _went_on(self, told: _GaveUp, found: re.Match[str]) -> bool:
        """A record after the one that the order goes by has the copy there, or of a cache, which no record lists, is
        there itself.
        """
        newest, copy = self._newest(), _COPY.match(told.where)
        if newest is None or self._is_other(told, newest):
            return True
        assert copy is not None
        of, there = (copy[1], int(copy[2])), (int(found[1]), int(found[2]))
        seen = self._world.log_seen
        later = [n for n in seen.manifests if n > told.sequence]
        is_cache = not any(store == of[0] for n in later for store, _ in seen.manifests[n].entries)
        places = [seen.records[n] if is_cache else seen.manifests[n].entry(*of).head for n in later]
        return any((one.version, one.epoch) == there for one in places)

    def _is_switched(self, told: _GaveUp, _: re.Match[str]) -> bool:
        """Another task has put another list in the place of that copy's meanwhile, or was about to."""
        assert told.copy is not None
        spans = self._switched.get(told.copy, {})
        return any(until >= told.actor.began for actor, until in spans.items() if actor is not told.actor)

    def _is_of_before(self, told: _GaveUp, _: re.Match[str]) -> bool:
        """A newer driver has written a record."""
        newest = self._newest()
        return newest is None or newest.epoch > told.epoch or self._is_other(told, newest)

    def _is_other(self, told: _GaveUp, newest: Any) -> bool:
        """Tell whether the log is another one than the order is of, or was restored: its numbers come again."""
        return newest.log_id != told.home.log_id or self._world.lines.restored > 0

    def _newest(self) -> Any:
        records = self._world.log_seen.records
        return records[max(records)] if records else None

    def _lost_folder(self, told: _GaveUp, _: re.Match[str]) -> bool:
        """The folder is not there any more, or somebody else's by now."""
        folder = Path(told.where)
        is_one = folder.is_relative_to(told.home.local_dir or "/nowhere") and is_member(folder.name)
        return is_one and not self._owns(told.actor, folder, told.home)

    def _is_not_its(self, told: _GaveUp, found: re.Match[str]) -> bool:
        """That folder is not this executor's; or it has two, begun while somebody who stood still kept it from both."""
        places = Path(told.home.local_dir or "").glob(f"*/{found[1]}")
        is_its = any(self._owns(told.actor, one, told.home) for one in places)
        return found[1] != found[2] and (not is_its or bool(self._still))

    def _owns(self, actor: Actor, folder: Path, home: Home) -> bool:
        try:
            return (folder / "owner").read_text() == f"{home.application}/{actor.process.executor}"
        except OSError:
            return False

    def _is_beside(self, told: _GaveUp, _: re.Match[str]) -> bool:
        """Another piece of upkeep is at work, of that executor or of one that had its folder before."""
        actors = self._world.scheduler.actors
        return any(one.kind == "piece" and one is not told.actor and not one.done for one in actors)

    def _is_held(self, told: _GaveUp, found: re.Match[str]) -> bool:
        """Another task stood still meanwhile."""
        since = self._world.scheduler.now - float(found[1])
        return any(one.ended > since for one in self._still if one is not told.actor)

    def _has_no_copy(self, told: _GaveUp, _: re.Match[str]) -> bool:
        """It ran elsewhere than it was to, or where nobody is seen any more, whose folder is another one's by now; or
        the one that its driver takes for its was given away or removed by another driver's census; or the copy went
        from that member's folder, and has not come again or went since this task began.
        """
        member = told.where.removeprefix("member ")
        assert told.copy is not None
        is_seen = told.actor.process.executor in {one.id for one in self._world.cluster.executors()}
        copy, is_harmed = (member, *told.copy), self._is_harmed_below(f"/{member}/")
        went = copy in self._gone or self._dropped.get(copy, -1.0) >= told.actor.began or is_harmed
        return not (told.asked and is_seen) or went or (told.member != member and self._has_lost(told))

    def _has_lost(self, told: _GaveUp) -> bool:
        """Tell whether the folder that the driver takes for its executor's is not that one's any more."""
        places = Path(told.home.local_dir or "").glob(f"*/{told.member}")
        return is_member(told.member) and not any(self._owns(told.actor, one, told.home) for one in places)

    def _is_of_earlier_piece(self, told: _GaveUp, found: re.Match[str]) -> bool:
        """The disk harmed what an earlier piece had fetched, or it came damaged to that one."""
        assert told.copy is not None
        snapshots = f"{paths.base(*told.copy)}/snapshot/"
        return any(name.startswith(snapshots) for name in self._world.damaged) or self._is_harmed(told, found)

    def _is_harmed(self, told: _GaveUp, _: re.Match[str]) -> bool:
        return self.is_harmed(told.problem, told.where)

    def is_harmed(self, problem: str, where: str) -> bool:
        """Tell whether the disk refused the file that is named; or harmed one of the same member's folder."""
        base = f"{self._world.files.base}/"
        place = object_in(where)
        named, harmed = _QUOTED.findall(problem), self._world.files.harmed
        if named:
            return any(f"{name}/".startswith(f"{one}/") for name in named for one in harmed)
        if not place.startswith(base):
            return False
        return self._is_harmed_below("/".join([base[:-1], *place[len(base) :].split("/")[:2]]) + "/")

    def _is_harmed_below(self, part: str) -> bool:
        return any(part in f"{name}/" for name in self._world.files.harmed)


_EXPLAINED: tuple[tuple[str, Callable[[Attempts, _GaveUp, re.Match[str]], bool]], ...] = (
    (r"the store failed: ", Attempts._has_met),
    (r"the copy is at version (-?\d+) of epoch (-?\d+), the batch starts from -?\d+$", Attempts._went_on),
    (r"another process moved the copy$", Attempts._is_switched),
    (r"a newer driver has moved the copy: ", Attempts._is_of_before),
    (r"this executor's folder (was taken over by another one|is gone from its disk)$", Attempts._lost_folder),
    (r"the order is for member (\w+), this is (\w+)$", Attempts._is_not_its),
    (r"another piece of upkeep is still at work$", Attempts._is_beside),
    (r"another process has held \S+ for (\d+) s", Attempts._is_held),
    (r"\d+ key-groups have no copy here and one on a standby, the first is \d+$", Attempts._has_no_copy),
    (r"a local copy is damaged: what had come of a snapshot before is not ", Attempts._is_of_earlier_piece),
    (
        r"(no executor is left whose local disk does not refuse: )?(the local disk refused: |a local copy cannot be "
        r"kept: |a local copy is damaged: |no folder for local copies can be made: |a snapshot cannot be kept: |a "
        r"snapshot that was just fetched: |the file of a snapshot that is being fetched is gone|what was just written "
        r"is not there: |\[Errno \d+\] )",
        Attempts._is_harmed,
    ),
)
"""What a task says, and what must have happened. All else is said of an object in the store."""
