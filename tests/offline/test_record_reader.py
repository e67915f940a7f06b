"""`riffle log` shows records and says which of them a rollback may return to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.offline.periods import ALWAYS, Period
from riffle_spark.offline.root_contents import read_records
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.open import open_store
from tests.kit.simulated.fixtures import full_record_every
from tests.kit.simulated.world import World, one_row
from tests.kit.state.drawn_records import PLAIN, drafted, entry

_NUMBERS = count()
MINUTE_MS = 60_000


def make_log(targets: Sequence[int | None]) -> tuple[str, Log]:
    """Return a root and its log: record 0, and one record per minute for each of the targets. ``None`` is a batch, and
    a number is a rollback to a record before it.
    """
    root = f"memory://record-reader-{next(_NUMBERS)}"
    log = Log(open_store(root), root)
    log.open()
    log.append(PLAIN, log.manifest)
    for sequence, number in enumerate(targets, 1):
        assert log.tail is not None
        changes = {"rollbacks": log.tail.rollbacks, "version": log.tail.version + 1}
        draft = drafted(f"c{sequence}")
        target = None if number is None else number % sequence
        if target is not None:
            changes = {"rollbacks": log.tail.rollbacks + 1, "version": log.read(target).version, "target": target}
            draft = replace(draft, kind="rollback")
        draft = replace(draft, written_ms=sequence * MINUTE_MS, **changes)  # type: ignore[arg-type]
        changed = {("totals", sequence % 8): entry(draft.version)} if target is None else {}
        log.append(draft, log.manifest.with_entries(changed))
    return root, log


def present_history(log: Log, tail: Record) -> set[int]:
    """Return the numbers of the records that no rollback abandoned, from the newest one back through the targets."""
    history = set()
    sequence = tail.sequence
    while sequence >= 0:
        history.add(sequence)
        target = log.read(sequence).target
        sequence = sequence - 1 if target is None else target
    return history


@given(
    st.lists(st.none() | st.none() | st.integers(0, 60), min_size=1, max_size=40),
    st.integers(1, 45), st.none() | st.integers(0, 45), st.none() | st.integers(0, 45),
)  # fmt: skip
def test_records_of_a_period_have_the_sizes_and_targets_of_a_full_read(
    targets: Sequence[int | None], limit: int, since: int | None, until: int | None
) -> None:
    """The records of any period have the sizes and rollback targets that reading the whole log gives."""
    root, log = make_log(targets)
    assert log.tail is not None
    history = present_history(log, log.tail)
    period = Period(
        None if since is None else since * MINUTE_MS, None if until is None else until * MINUTE_MS + MINUTE_MS // 2
    )
    expected = [s for s in range(len(targets) + 1) if s * MINUTE_MS in period][-limit:]
    shown = read_records(root, limit, period=period)
    assert [record.sequence for record in shown] == expected
    for record in shown:
        whole = log.read(record.sequence)
        is_batch = whole.kind == "batch"
        target = str(whole.version) if is_batch and record.sequence in history else f"record:{record.sequence}"
        assert record.rollback_to == target
        assert (record.kind, record.version, record.time_ms) == (whole.kind, whole.version, whole.written_ms)
        assert (record.changed_rows, record.sealed_bytes) == ((1, 10) if is_batch else (0, 0))


@pytest.mark.parametrize(
    ("period", "most"),
    [(ALWAYS, 4), (Period(until_ms=100 * MINUTE_MS), 13), (Period(since_ms=197 * MINUTE_MS), 13)],
)
def test_a_limit_and_a_period_bound_the_records_that_are_read(
    period: Period, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit and a period read only the shown records, the one before them, and those of a binary search."""
    root, _ = make_log([None] * 200)
    read: Counter[str] = Counter()
    get = MemoryStore.get

    def counting(self: MemoryStore, name: str, *arguments: int) -> bytes | None:
        read[name] += 1
        return get(self, name, *arguments)

    monkeypatch.setattr(MemoryStore, "get", counting)
    assert len(read_records(root, 3, period=period)) >= 3
    assert len([name for name in read if paths.parse_record_name(name) is not None]) <= most


def test_a_full_record_counts_only_the_rows_of_its_own_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that lists the whole state counts only what its own batch changed."""
    full_record_every(1, monkeypatch)
    world = World(tmp_path, retained_versions=9)
    for version, key in enumerate("abcd"):
        world.batch(version, one_row(version, key))
    shown = read_records(world.home.root, 4)
    assert [(record.version, record.changed_rows) for record in shown] == [(version, 1) for version in range(4)]


def test_records_that_are_damaged_or_missing_are_left_out() -> None:
    """Damaged and missing records are left out, and the others are shown."""
    root, _ = make_log([None] * 10)
    objects = open_store(root)
    objects.delete([paths.record_name(4), paths.record_name(7)])
    objects.put_if_absent(paths.record_name(7), b"damaged")
    assert [record.sequence for record in read_records(root, 8)] == [3, 5, 6, 8, 9, 10]
