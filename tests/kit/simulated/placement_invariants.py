"""Check the invariants of placement on a simulated query: P6, I6 and I9."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace

import pytest

from riffle_spark.assign.assignor import assign_settings
from riffle_spark.assign.board import is_allowed
from riffle_spark.assign.model import Assignment, View
from riffle_spark.assign.validity import find_violations
from riffle_spark.messages.upkeep_orders import Census, Drop
from riffle_spark.protocol.ownership.groups import ONE_GROUP, Groups
from riffle_spark.protocol.ownership.idle_copies import IdleCopies
from riffle_spark.protocol.ownership.membership import Membership
from riffle_spark.protocol.ownership.reported_copies import ReportedCopies
from riffle_spark.protocol.ownership.view import view_of
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.stacks import Stacks
from riffle_spark.state.log.manifest import Address, Head
from riffle_spark.state.restore.copy_progress import _has_files  # private: whether a copy has all files
from riffle_spark.worker.upkeep_piece import _Piece  # private: the method that removes copies
from tests.kit.simulated.world import World

__all__ = ["check_copies_bounded", "check_valid", "watch_the_cleaner"]

FILES_A_COPY = 12
OTHER_FILES = 300


def view_now(world: World) -> tuple[View, frozenset[str]]:
    """Return the assignor's current view, and the drained members."""
    stores = tuple(operator.store for operator in world.operators if operator.durable)
    second = world.clock.seconds()
    manifest = world.driver._log.manifest  # private: the log of the driver
    placement = world.driver.ownership.placement
    situation = placement.situation(manifest, stores, second)
    situation = replace(situation, quarantined=placement.triggers.quarantine.members_without_copies(situation))
    return view_of(situation, world.driver.settings), situation.drained


def check_valid(world: World) -> None:
    """Check I6 and P6, unless a new assignment is due.

    I6: every task is owned once, by a live member, and no member has two copies of a task. P6: there are as many
    standbys as members allow.
    """
    ownership = world.driver.ownership
    if ownership.placement.layout is not None:
        view, _ = view_now(world)
        wrong = find_violations(view, ownership.placement.present)
        assert wrong == (), f"I6: {wrong}"
        _check_standbys(world, view)
        for layout in ownership.placement.layout.all_groups:
            served = sorted(group for slot in layout.slots for group in slot.key_groups)
            assert served == list(range(world.settings.key_groups)), "I6: a key-group has no slot or two slots"


def _check_standbys(world: World, view: View) -> None:
    settings = world.driver.settings
    present = world.driver.ownership.placement.present
    allowed = [
        member
        for member in view.members
        if member.id not in view.drained and is_allowed(member, assign_settings(settings))
    ]
    if (
        settings.dispatch == "hashed"
        or settings.standby_mode != "replay"
        or settings.forced_awareness
        or view.quarantined
    ):
        return
    num_standbys = min(settings.num_standbys, len(allowed or view.members) - 1)
    counts = {task.id: len(present.standbys.get(task.id, ())) for task in view.tasks if task.kind == "stateful"}
    missing = {task: count for task, count in counts.items() if count < num_standbys}
    assert not missing, f"P6: tasks have fewer than {num_standbys} standbys: {missing}"


def check_copies_bounded(world: World) -> None:
    """Check that a live member has few files per copy, and few other files.

    A journal that a power failure has cut before its first entry remains until the member writes to that store again.
    """
    for member in world.driver.ownership.membership.live:
        for folder in [owner.parent for owner in world.local_dir.glob(f"*/{member}/owner")]:
            files = [path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()]
            copies = len(Folder(folder, "").copies())
            of_copies = files.count("stacks")
            stores_with_journal = {path.parent for path in folder.glob("stacks/*/*.journal")}
            allowed = FILES_A_COPY * copies + len(stores_with_journal)
            assert of_copies <= allowed, f"{member} has {of_copies} files for {copies} copies"
            assert len(files) - of_copies <= OTHER_FILES, f"{member} has {Counter(files)} files beside its copies"


def watch_the_cleaner(patch: pytest.MonkeyPatch) -> None:
    """Check I9 at every clean-up of copies.

    No copy is removed that is assigned, that was assigned within the delay, or that was reported since the last
    assignment. A removed copy is at the head at which its removal was ordered.
    """
    unanswered: dict[int, set[tuple[str, Address]]] = {}
    needed: dict[int, Callable[[str, Address], bool]] = {}
    idle: dict[int, dict[tuple[str, Address], float]] = {}
    original = ReportedCopies.record_census
    assigned = IdleCopies.record_assignment
    due = IdleCopies.take_due
    drop = _Piece._drop  # private: the method that removes copies

    def count(self: ReportedCopies, census: Census) -> None:
        original(self, census)
        unanswered.setdefault(id(self), set()).update(
            (census.member, address) for address in self.of_member(census.member)
        )
        copies_listed = {(store, key_group) for store, key_group, _, _ in census.copies}
        assert self.of_member(census.member).keys() == copies_listed, (
            f"{census.member} reported other copies than the driver recorded"
        )

    def answer(
        self: IdleCopies,
        assignment: Assignment,
        copies: ReportedCopies,
        members: Membership,
        second: float,
        *,
        pointers: bool,
        groups: Groups = ONE_GROUP,
    ) -> None:
        assigned(self, assignment, copies, members, second, pointers=pointers, groups=groups)
        unanswered.pop(id(copies), None)
        needed[id(copies)] = lambda member, address: (
            member
            in (
                assignment.owners.get(groups.task(*address)),  # no owner for a key-group that a switch has abolished
                *(() if pointers else assignment.standbys.get(groups.task(*address), ())),
                *assignment.warmups.get(groups.task(*address), ()),
            )
        )
        placed = [(member, address) for member in members.live for address in copies.of_member(member)]
        since = idle.get(id(copies), {})
        idle[id(copies)] = {copy: since.get(copy, second) for copy in placed if not needed[id(copies)](*copy)}

    def clean(
        self: IdleCopies,
        copies: ReportedCopies,
        live: Collection[str],
        second: float,
        delay: float,
        *,
        at_once: Set[str] = frozenset(),
    ) -> dict[str, list[Drop]]:
        drops = due(self, copies, live, second, delay, at_once=at_once)
        for member, address in [(name, (drop.store, drop.key_group)) for name in drops for drop in drops[name]]:
            assert (member, address) not in unanswered.get(id(copies), ()), (
                f"I9: the copy {address} on {member} was reported after the last assignment"
            )
            assert not needed[id(copies)](member, address), f"I9: the copy {address} on {member} is assigned"
            since = idle[id(copies)].pop((member, address), second)
            assert second - since >= delay or member in at_once, (
                f"I9: the copy {address} on {member} was assigned within the delay"
            )
        return drops

    def drop_all(self: _Piece, folder: Folder) -> None:
        heads = {(drop.store, drop.key_group): drop.head for drop in self._order.drops}
        drop(self, _Watched(folder, heads))

    patch.setattr(ReportedCopies, "record_census", count)
    patch.setattr(IdleCopies, "record_assignment", answer)
    patch.setattr(IdleCopies, "take_due", clean)
    patch.setattr(_Piece, "_drop", drop_all)  # private: as above


class _Watched(Folder):
    """The folder of a piece of upkeep that removes copies. ``heads`` are their heads when the removal was ordered."""

    def __init__(self, folder: Folder, heads: Mapping[Address, Head | None]) -> None:
        super().__init__(folder.path, folder._owner)  # private: the same folder
        self._heads = heads

    def drop(self, store: str, key_group: int, stacks: Stacks | None = None) -> None:
        stack = (stacks or self.stacks(store)).read(key_group)
        head = self._heads.get((store, key_group))
        if stack is not None and head not in {None, stack.head} and _has_files(self.path, stack):
            pytest.fail(
                f"I9: copy of {store}, key-group {key_group} on {self.member} is removed, but its head has changed"
            )
        super().drop(store, key_group, stacks)
