"""The simulation finds bugs: each of these, planted on purpose, shows within a few schedules."""

# private parts: faults are planted in all of them.

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.assign.model import TaskId
from riffle_spark.protocol.batch import driver
from riffle_spark.protocol.batch.enter import Decision
from riffle_spark.protocol.ownership import cleaner, slots
from riffle_spark.protocol.ownership.cleaner import Cleaner
from riffle_spark.protocol.ownership.known_copies import KnownCopies
from riffle_spark.protocol.ownership.members import LiveMember
from riffle_spark.protocol.ownership.slots import laid_out
from riffle_spark.protocol.ports import SlotLayout
from riffle_spark.protocol.receipts import changes_of
from riffle_spark.protocol.upkeep import scan
from riffle_spark.protocol.upkeep.retention import Retention
from riffle_spark.state.log import record
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Address, Entry, Head, Link, Manifest
from riffle_spark.worker import slot
from tests.kit.simulated.schedules import Schedule

SEEDS = 60

Plant = Callable[[pytest.MonkeyPatch], None]


def fold_without_checking_the_head(patch: pytest.MonkeyPatch) -> None:
    """A delta is put on whatever the copy holds."""
    patch.setattr(Entry, "after", lambda self, *_: self.chain[-1:])


def take_exists_for_success(patch: pytest.MonkeyPatch) -> None:
    """A driver that finds its next record taken believes it committed."""
    patch.setattr(Log, "_put", lambda self, written, data: self._store.put_if_absent(_name(written), data))


def run_again_while_unclear(patch: pytest.MonkeyPatch) -> None:
    """An append whose fate is unknown is forgotten, and the next record has another number."""
    original = Log._put

    def skipping(self: Log, written: record.Record, data: bytes) -> None:
        try:
            original(self, written, data)
        except Exception:
            self._unclear = None
            raise

    patch.setattr(Log, "_put", skipping)
    patch.setattr(Log, "next_is_absent", lambda *_: True)
    patch.setattr(driver, "decide", lambda *_: Decision.RUN)


def list_a_snapshot_that_is_no_link(patch: pytest.MonkeyPatch) -> None:
    """A snapshot replaces the whole chain, whatever its head."""
    patch.setattr(Entry, "replaced", lambda _, snapshot: Entry(snapshot, ()))


def sweep_too_early(patch: pytest.MonkeyPatch) -> None:
    """What a commit replaced is deleted at once."""
    original = Retention.take_free

    def early(self: Retention, _: int) -> list[str]:
        newest = self._records[-1] if self._records else (0, 0, 0)
        self._records.clear()
        self._records.append(newest)
        return original(self, newest[0])

    patch.setattr(Retention, "take_free", early)


def sweep_what_is_listed(patch: pytest.MonkeyPatch) -> None:
    """The scan for orphans knows the newest full record only."""
    patch.setattr(Manifest, "changed", _forgetting)
    patch.setattr(scan, "orphans", lambda names, listed, *_: [n for n in names if n not in listed])


def reuse_attempt_names(patch: pytest.MonkeyPatch) -> None:
    """Every attempt of a slot has the same name."""
    original = slot._Attempt.__init__

    def same(self: object, order: object, given: object, executor: str, attempt_id: bytes) -> None:
        original(self, order, given, executor, bytes(16))  # type: ignore[arg-type]

    patch.setattr(slot._Attempt, "__init__", same)


def run_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    """A batch that comes again is run again."""
    patch.setattr(driver, "decide", lambda *_: Decision.RUN)


def drop_the_fencing(patch: pytest.MonkeyPatch) -> None:
    """A driver does not look whether another has appended before its sink."""
    patch.setattr(driver.Driver, "_check_not_fenced", lambda *_: None)
    patch.setattr(Log, "_put", _whatever_happens)


def commit_with_a_receipt_missing(patch: pytest.MonkeyPatch) -> None:
    """A slot's changes are left out of the record."""
    original = changes_of
    patch.setattr(driver, "changes_of", lambda manifest, receipts: original(manifest, receipts[1:]))


def drop_what_nobody_has_answered(patch: pytest.MonkeyPatch) -> None:
    """The cleaner takes every copy for idle, with a place or without."""
    patch.setattr(cleaner, "_is_needed", lambda *_, **__: False)


def clean_up_before_the_answer(patch: pytest.MonkeyPatch) -> None:
    """The cleaner counts copies as idle as soon as they are reported."""
    original = Cleaner.due

    def due(self: Cleaner, copies: KnownCopies, live: Collection[str], *times: float, hurried: Set[str]) -> object:
        self._idle.update({(member, address): 0.0 for member in live for address in copies.of(member)})
        return original(self, copies, live, *times, hurried=hurried)

    patch.setattr(Cleaner, "due", due)


def take_a_foreign_head_for_the_base(patch: pytest.MonkeyPatch) -> None:
    """A copy that is on no chain is told to fold the chain."""
    original = KnownCopies._way

    def way(self: KnownCopies, address: Address, entry: Entry, head: Head) -> tuple[Link, ...]:
        found = original(self, address, entry, head)
        return entry.chain if found is None else found

    patch.setattr(KnownCopies, "_way", way)


def own_twice(patch: pytest.MonkeyPatch) -> None:
    """A task that moves is served by its old owner, too."""
    original = laid_out

    def twice(members: Mapping[str, LiveMember], owners: Mapping[TaskId, str], *given: Any) -> SlotLayout:
        first, *rest = original(members, owners, *given).slots
        also = tuple(sorted({*first.key_groups, *(rest[0].key_groups if rest else ())}))
        return SlotLayout((replace(first, key_groups=also), *rest))

    patch.setattr(slots, "laid_out", twice)


PLANTS = [
    fold_without_checking_the_head, take_exists_for_success, run_again_while_unclear, list_a_snapshot_that_is_no_link,
    sweep_too_early, sweep_what_is_listed, reuse_attempt_names, run_what_is_committed, drop_the_fencing,
    commit_with_a_receipt_missing, drop_what_nobody_has_answered, clean_up_before_the_answer,
    take_a_foreign_head_for_the_base, own_twice,
]  # fmt: skip


SOONEST: dict[Plant, int] = {
    take_exists_for_success: 6, sweep_too_early: 8, drop_what_nobody_has_answered: 2,
    take_a_foreign_head_for_the_base: 500,
}  # fmt: skip
"""The schedules that find what few find: they are tried first."""


@pytest.mark.usefixtures("short_cycles")
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_simulation_finds(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug shows within a few schedules."""
    plant(monkeypatch)
    for seed in (SOONEST.get(plant, 0), *range(SEEDS)):
        try:
            Schedule(seed, Path(tempfile.mkdtemp(dir=tmp_path))).run()
        except TypeError:
            raise  # the plant does not fit what it replaces, and nothing was planted
        except Exception as error:  # noqa: BLE001 - a bug shows in any way
            print(f"seed {seed}: {error!r}"[:300])
            return
    pytest.fail(f"{SEEDS} schedules did not find it")


def _name(written: record.Record) -> str:
    return f"log/{written.sequence:020d}"


def _whatever_happens(self: Log, written: record.Record, data: bytes) -> None:
    """Overwrite the record."""
    self._store.delete([_name(written)])
    self._store.put_if_absent(_name(written), data)


def _forgetting(self: Manifest, changes: dict[tuple[str, int], Entry]) -> Manifest:
    return Manifest({**self.entries, **changes}) if len(changes) > 3 else Manifest(dict(changes) or self.entries)
