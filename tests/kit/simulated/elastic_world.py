"""A simulated query whose executors join and leave. It makes its own input and knows the expected state.

Executors are named by a letter or number. Members get names in the order in which they first claimed a folder.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from riffle_spark import keygroups
from riffle_spark.assign.model import Assignment
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.groups import GROUP, task
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.state.copies.folder import Folder
from riffle_spark.testing import Attempt
from tests.kit.simulated.placement_invariants import check_valid
from tests.kit.simulated.world import World, rows_of, totals

__all__ = ["Elastic", "InOrder", "SlotRun", "member_roles", "warnings"]

KEYS = 120
"""The number of keys per key-group. The whole state is much larger than the changes of a batch."""
TOUCHED = 4
"""The number of keys per key-group that a batch changes, after the first batch."""


class InOrder:
    """A replacement of ``uuid`` whose names are ascending."""

    def __init__(self) -> None:
        self._count = 0

    def uuid4(self) -> uuid.UUID:
        """Return the next name. Its first twelve digits count up."""
        self._count += 1
        return uuid.UUID(int=self._count << 80)


@dataclass(frozen=True)
class SlotRun:
    """A slot of a batch: the executor on which it ran, its store and its key-groups."""

    version: int
    store: str
    executor: str
    key_groups: tuple[int, ...]


class Elastic(World):
    """A query with a few key-groups, all of which each batch touches. Its executors join and leave."""

    def __init__(
        self,
        local_dir: Path,
        *,
        executors: Sequence[str] = ("1", "2"),
        operators: Sequence[Operator] = (),
        key_groups: int = 6,
        **settings: Any,
    ) -> None:
        settings = {"acceptable_recovery_lag": TOUCHED, "retained_versions": 4, "snapshot_chain_links": 6, **settings}
        super().__init__(
            local_dir, executors=executors, operators=list(operators) or [totals()], key_groups=key_groups, **settings
        )
        self.version = -1
        self.fed: dict[str, tuple[int, int]] = {}
        self.ran: list[SlotRun] = []
        self.keys = _keys(key_groups)

    def feed(
        self,
        batches: int = 1,
        *,
        keys: Sequence[str] | None = None,
        perform: Callable[[Attempt], pa.Table] = Attempt.run,
    ) -> BatchReport:
        """Run the next batches, check the assignment after each, and return the last report.

        The first batch touches every key, later ones a few keys of each key-group or, if it is set, ``keys``.
        """
        for _ in range(batches):
            self.version += 1
            touched = keys if keys is not None else self._touched()
            report = self.batch(
                self.version,
                rows_of(*((key, self.version, n) for n, key in enumerate(touched))),
                lambda attempt: self._perform(attempt, perform),
            )
            for key in touched:
                count, total = self.fed.get(key, (0, 0))
                self.fed[key] = (count + 1, total + self.version)
            check_valid(self)
        return report

    def feed_every(self, seconds: float, batches: int, keys: Sequence[str] | None = None) -> list[BatchReport]:
        """Run ``batches`` batches at intervals of ``seconds``, and return the reports."""
        reports = []
        for _ in range(batches):
            self.clock.advance(seconds - 1)
            reports.append(self.feed(keys=keys))
        return reports

    def of_groups(self, key_groups: set[int]) -> list[str]:
        """Return a few keys of each of these key-groups."""
        return [key for group in sorted(key_groups) for key in self.keys[group][:TOUCHED]]

    def _touched(self) -> list[str]:
        if not self.fed:
            return [key for keys in self.keys for key in keys]
        return self.of_groups(set(range(self.settings.key_groups)))

    def _perform(self, attempt: Attempt, perform: Callable[[Attempt], pa.Table]) -> pa.Table:
        order = attempt.order
        self.ran.append(SlotRun(order.version, order.store, attempt.executor, order.slots[attempt.slot]))
        return perform(attempt)

    def settle(self, rounds_max: int = 30) -> list[BatchReport]:
        """Run batches until no warm-up and no probe is pending, and return the reports."""
        reports = [self.feed()]
        while self.ownership.placement.present.needs_probe or self.ownership.placement.present.warmups:
            assert len(reports) < rounds_max, "the assignment does not converge (I8)"
            reports.append(self.feed())
        return reports

    def arrange(self, placement: Mapping[str, tuple[set[int], set[int]]]) -> None:
        """Make each executor own and keep as standby the key-groups of ``placement``, which are pairs of both.

        At first every executor gets a copy of every key-group. Then the assignment is replaced.
        """
        previous = self.driver.settings
        self.driver.operations.reconfigure(previous, {"num_standbys": len(placement) - 1})
        self.feed(3)
        back = {"num_standbys": previous.num_standbys, "state_cleanup_delay": 0}
        self.driver.operations.reconfigure(previous, back)
        owners = {task(group): self.member(executor) for executor, (owned, _) in placement.items() for group in owned}
        keepers = [
            (task(group), self.member(executor)) for executor, (_, groups) in placement.items() for group in groups
        ]
        self.ownership.placement.present = Assignment(
            owners, {t: tuple(m for of, m in keepers if of == t) for t, _ in keepers}
        )
        self.ownership.placement.forget_layout()
        self.feed(2)
        self.driver.operations.reconfigure(previous, {"state_cleanup_delay": previous.state_cleanup_delay})
        assert {e: self.holds(e) for e in placement} == {e: (*roles, set()) for e, roles in placement.items()}

    @property
    def ownership(self) -> Ownership:
        """The members that the driver knows, and their tasks."""
        return self.driver.ownership

    def member(self, executor: str) -> str:
        """Return the member of an executor."""
        living = self.ownership.membership.of_executor(executor)
        assert living is not None, f"executor {executor} has no member"
        return str(living.id)

    def holds(self, executor: str) -> tuple[set[int], set[int], set[int]]:
        """Return the key-groups that an executor owns, keeps as standby, and warms up."""
        present = self.ownership.placement.present
        member = self.member(executor)
        return (
            {t.key_group for t, owner in present.owners.items() if owner == member},
            {t.key_group for t, members in present.standbys.items() if member in members},
            {t.key_group for t, members in present.warmups.items() if member in members},
        )

    def owners(self, group: str = GROUP) -> dict[int, str]:
        """Return the owner of each key-group of a group."""
        return {
            t.key_group: str(owner) for t, owner in self.ownership.placement.present.owners.items() if t.group == group
        }

    def owned(self, executor: str) -> set[int]:
        """Return the key-groups that an executor owns."""
        return self.holds(executor)[0]

    def copies_of(self, executor: str, store: str = "totals") -> set[int]:
        """Return the key-groups of which an executor has copies on its disk."""
        folder = Folder(self.folder_of(executor), "")
        return {key_group for of_store, key_group in folder.copies() if of_store == store}

    def folder_of(self, executor: str) -> Path:
        """Return the folder of an executor."""
        owner = f"{self.home.application}/{executor}"
        return next(o.parent for o in self.local_dir.glob("*/*/owner") if o.read_text() == owner)

    def check_state(self) -> None:
        """Compare the whole state with the input."""
        assert self.state("totals") == self.fed


def _keys(key_groups: int) -> list[list[str]]:
    """Return names of keys by key-group, the same number for each."""
    names = [f"key-{n}" for n in range(KEYS * key_groups * 2)]
    owners_of: list[list[str]] = [[] for _ in range(key_groups)]
    for name, group in zip(names, keygroups.key_groups([pa.array(names)], key_groups).tolist(), strict=True):
        owners_of[group].append(name)
    assert min(map(len, owners_of)) >= KEYS
    return [keys[:KEYS] for keys in owners_of]


NONE: frozenset[int] = frozenset()


def member_roles(
    owned: Set[int] = NONE, standbys: Set[int] = NONE, warm: Set[int] = NONE
) -> tuple[set[int], set[int], set[int]]:
    """Return the key-groups of an executor in the form of ``Elastic.holds``."""
    return set(owned), set(standbys), set(warm)


def warnings(reports: Sequence[BatchReport], text: str) -> list[str]:
    """Return the warnings of the reports that contain a text."""
    return [warning for report in reports for warning in report.warnings if text in warning]
