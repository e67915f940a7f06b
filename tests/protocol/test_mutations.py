"""The simulation finds bugs: each of these, planted on purpose, shows within a few schedules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from schedules import Schedule

from riffle_spark.protocol import driver, scan
from riffle_spark.protocol.enter import Decision
from riffle_spark.protocol.retention import Retention
from riffle_spark.state import record
from riffle_spark.state.copy import Copy
from riffle_spark.state.log import Log
from riffle_spark.state.manifest import Entry, Manifest
from riffle_spark.worker import slot

SEEDS = 40

Plant = Callable[[pytest.MonkeyPatch], None]


def fold_without_checking_the_head(patch: pytest.MonkeyPatch) -> None:
    """A delta is folded onto whatever the copy holds."""
    patch.setattr(Copy, "_expect", lambda *_: None)
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

    def early(self: Retention, now_ms: int) -> list[str]:
        newest = self._records[-1] if self._records else (0, 0, 0)
        self._records.clear()
        self._records.append(newest)
        return original(self, now_ms)

    patch.setattr(Retention, "take_free", early)


def sweep_what_is_listed(patch: pytest.MonkeyPatch) -> None:
    """The scan for orphans knows the newest full record only."""
    patch.setattr(Manifest, "changed", _forgetting)
    patch.setattr(scan, "orphans", lambda names, listed, *_: [n for n in names if n not in listed])


def reuse_attempt_names(patch: pytest.MonkeyPatch) -> None:
    """Every attempt of a slot has the same name."""
    original = slot._Attempt.__init__

    def same(self: object, order: object, executor: str, attempt_id: bytes) -> None:
        original(self, order, executor, bytes(16))  # type: ignore[arg-type]

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
    original = driver.changes_of
    patch.setattr(driver, "changes_of", lambda manifest, receipts: original(manifest, receipts[1:]))


PLANTS = [
    fold_without_checking_the_head, take_exists_for_success, run_again_while_unclear, list_a_snapshot_that_is_no_link,
    sweep_too_early, sweep_what_is_listed, reuse_attempt_names, run_what_is_committed, drop_the_fencing,
    commit_with_a_receipt_missing,
]  # fmt: skip


@pytest.mark.usefixtures("short_cycles")
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_simulation_finds(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug shows within a few schedules."""
    plant(monkeypatch)
    for seed in range(SEEDS):
        try:
            Schedule(seed, tmp_path / str(seed)).run()
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


def _forgetting(self: Manifest, changes: dict[object, Entry]) -> Manifest:
    return Manifest({**self.entries, **changes}) if len(changes) > 3 else Manifest(dict(changes) or self.entries)
