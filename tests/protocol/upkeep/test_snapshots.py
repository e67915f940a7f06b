"""When snapshots are due and listed. Restore work and written bytes are bounded."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import UnavailableError
from riffle_spark.protocol.batch.records import Stamp, first_record
from riffle_spark.protocol.upkeep import snapshots, upkeep
from riffle_spark.protocol.upkeep.snapshots import LongChains, SnapshotPolicy, list_snapshots, needs_snapshot
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY, Address, Entry, Head, Link, Manifest, Snapshot
from riffle_spark.testing import InlineBackground
from tests.kit.simulated.invariants import History
from tests.kit.simulated.world import World, rows_of, totals
from tests.kit.state.faulty_store import Fault

ADDRESS = ("totals", 3)
FLOOR = snapshots._FLOOR_BYTES


def link(version: int, length: int = 10) -> Link:
    """Return a link."""
    return Link(Head(version, f"1-{version:032x}"), 0, length, 0, 1)


def taken(head: Head, length: int, epoch: int = 1) -> Snapshot:
    """Return a snapshot."""
    return Snapshot(paths.snapshot_id(head.version, f"{epoch}-{7:032x}"), head, length, 0, 1)


@given(
    st.floats(0.1, 4), st.integers(2, 40), st.lists(st.integers(1, 4 * FLOOR), min_size=1, max_size=60),
    st.integers(0, 32_767),
)  # fmt: skip
def test_the_links_and_bytes_of_a_chain_are_bounded(
    share: float, links: int, deltas: list[int], key_group: int
) -> None:
    """A chain has at most ``links`` links, or four times as many while the changes are small beside their base. The
    changes have at most the share of the base, or the floor, and one delta more. The base is a snapshot or the first
    link.
    """
    policy, entry, size = SnapshotPolicy(share, links, 50), EMPTY, 0
    for version, length in enumerate(deltas):
        entry, size = entry.add_link(link(version, length)), size + length
        base = entry.snapshot.length if entry.snapshot else entry.chain[0].length
        changes = entry.chain_bytes if entry.snapshot else entry.chain_bytes - base
        are_small = 4 * (changes - length) < base
        assert len(entry.chain) <= (4 if are_small else 1) * links
        assert changes <= max(FLOOR, share * base) + length
        assert version - entry.chain[0].head.version <= 50
        if needs_snapshot(policy, ("totals", key_group), entry, version):
            replaced = entry.replace_by_snapshot(taken(entry.head, size))
            assert replaced is not None
            entry = replaced


@given(st.floats(0.5, 4), st.lists(st.integers(1, FLOOR), min_size=30, max_size=200), st.integers(0, 40 * FLOOR))
def test_the_bytes_of_snapshots_are_bounded_by_those_of_deltas(
    share: float, deltas: list[int], keys_bytes: int
) -> None:
    """Snapshots that are due by bytes write at most 1/share of the bytes of deltas, and about twice the state."""
    policy, entry, state, written = SnapshotPolicy(share, 10_000, 10_000), EMPTY, keys_bytes, 0
    for version, length in enumerate(deltas):
        entry = entry.add_link(link(version, length))
        state = max(state, min(state + length, keys_bytes + FLOOR))
        if needs_snapshot(policy, ADDRESS, entry, version):
            written += state
            replaced = entry.replace_by_snapshot(taken(entry.head, state))
            assert replaced is not None
            entry = replaced
    assert written <= sum(deltas) / share + 2 * (keys_bytes + FLOOR) + sum(deltas)


def test_snapshots_of_key_groups_are_spread_over_the_batches() -> None:
    """The number of links until a snapshot differs per key-group, so that snapshots are spread over the batches."""
    policy, when = SnapshotPolicy(2.0, 32, 1000), []
    for key_group in range(128):
        entry, version = EMPTY, 0
        while not needs_snapshot(policy, ("totals", key_group), entry, version):
            entry, version = entry.add_link(link(version)), version + 1
        when.append(version)
    assert max(when) == 32
    assert max(when.count(version) for version in when) <= 128 // 12


HISTORIES = st.lists(st.sampled_from(["batch", "batch", "snapshot", "late"]), max_size=40)


@given(HISTORIES, st.randoms(use_true_random=False))
def test_a_snapshot_is_listed_only_if_its_head_is_a_link_i3(acts: list[str], chance: random.Random) -> None:
    """I3: a listed snapshot has the head of a link in the chain, so the entry keeps its head."""
    manifest, version, waiting = Manifest(), 0, []
    for act in acts:
        entry = manifest.entry(*ADDRESS)
        if act == "batch":
            manifest = manifest.with_entries({ADDRESS: entry.add_link(link(version))})
            version += 1
        elif act == "snapshot" and entry.chain:
            waiting.append((ADDRESS, taken(entry.head, 1)))
        elif waiting:
            chosen = chance.sample(waiting, chance.randint(1, len(waiting)))
            chosen.append((ADDRESS, taken(Head(version, "1-zz"), 1)))
            changes = list_snapshots(manifest, chosen)
            _check_listed(entry, changes, chosen)
            manifest = manifest.with_entries(changes)


def _check_listed(before: Entry, changes: dict[Address, Entry], chosen: list[tuple[Address, Snapshot]]) -> None:
    links = [link.head for link in before.chain]
    possible = [snapshot for _, snapshot in chosen if snapshot.head in links]
    assert bool(changes) == bool(possible)
    for entry in changes.values():
        assert entry.head == before.head
        assert entry.snapshot is not None
        assert entry.snapshot.head in links
        assert entry.chain == before.chain[links.index(entry.snapshot.head) + 1 :]
        assert links.index(entry.snapshot.head) == max(links.index(s.head) for s in possible)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a query that takes many snapshots, whose upkeep runs on request."""
    world = World(tmp_path, operators=[totals()], snapshot_chain_links=2, retained_versions=4)
    world.start(InlineBackground(deferred=True))
    return world


def test_a_commit_lists_snapshots_taken_since_the_last_commit(world: World) -> None:
    """A commit lists the snapshots that were taken since the last commit, while chains grow."""
    history = History(world)
    for version in range(12):
        world.batch(version, rows_of(*((f"k{n}", 1, n) for n in range(8))))
        history.look()
        if version % 3 == 2:
            world.background.run()
    assert any(entry.snapshot for entry in world.log().manifest.entries.values())
    assert world.state("totals") == {f"k{n}": (12, 12) for n in range(8)}


def test_a_late_snapshot_has_the_current_state_of_the_copy(world: World) -> None:
    """A late snapshot has the state that the copy has by then, so slow upkeep makes progress."""
    for version in range(3):
        world.batch(version, rows_of(("a", 1, 0)))
        if version == 0:
            world.background.run()
    assert world.driver._rounds._next is not None
    orders, _ = world.driver._rounds._next
    assert any(order.snapshots for order in orders.values())
    for version in range(3, 5):
        world.batch(version, rows_of(("a", 1, 0)))
    world.driver._rounds._next = None
    world.driver._rounds.run_now(orders)
    world.batch(5, rows_of(("a", 1, 0)))
    entry = next(iter(world.log().manifest.entries.values()))
    assert entry.snapshot is not None
    assert entry.snapshot.head.version == 3
    assert world.state("totals") == {"a": (6, 6)}


def test_a_snapshot_of_an_earlier_epoch_is_never_listed(world: World) -> None:
    """A late snapshot of an earlier run is not listed, because it may be deleted already."""
    for version in range(3):
        world.batch(version, rows_of(("a", 1, 0)))
    world.run_id = "started again"
    world.batch(3, rows_of(("a", 1, 0)))
    world.background.run()
    world.batch(4, rows_of(("a", 1, 0)))
    entry = next(iter(world.log().manifest.entries.values()))
    assert entry.snapshot is None or entry.snapshot.epoch == world.log().tail.epoch  # type: ignore[union-attr]


def test_a_failed_snapshot_is_a_warning_and_is_repeated(world: World) -> None:
    """A failed snapshot is a warning of the next report and is repeated."""
    world.store.script(Fault("unavailable", "put", "totals/"))
    warnings: list[str] = []
    for version in range(8):
        warnings += world.batch(version, rows_of(("a", 1, 0))).warnings
        world.background.run()
    assert any("will be retried: totals, key-group" in warning for warning in warnings)
    assert next(iter(world.log().manifest.entries.values())).snapshot is not None


def test_failing_snapshots_do_not_block_those_of_other_key_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Key-groups whose snapshots always fail do not block the snapshots of the others."""
    monkeypatch.setattr(upkeep, "_SNAPSHOTS_PER_EXECUTOR", 2)
    world = World(tmp_path, operators=[totals()], executors=["1"], snapshot_chain_links=2)
    for bad in range(4):
        world.store.script(Fault("unavailable", "put", f"totals/key_group={bad:04d}/", times=None))
    for version in range(24):
        world.batch(version, rows_of(*((f"k{n}", 1, n) for n in range(40))))
    entries = world.log().manifest.entries
    assert len(entries) == 8
    assert {key_group for (_, key_group), entry in entries.items() if entry.snapshot} == {4, 5, 6, 7}


def test_a_long_chain_is_a_warning_after_batches_without_a_snapshot(tmp_path: Path) -> None:
    """A long chain is a warning only if no snapshot came for some batches."""
    world = World(tmp_path, operators=[totals()])
    world.store.script(Fault("unavailable", "put", "totals/key_group=", times=None))
    warned = []
    for version in range(24):
        keys = [f"{n}{'x' * 50_000}" for n in range(100)] if version == 0 else ["a"]
        warnings = world.batch(version, rows_of(*((key, 1, 0) for key in keys))).warnings
        warned += [version for warning in warnings if "RIFFLE-0815" in warning]
    assert warned == [16]


def test_changing_long_chains_are_one_warning_per_ten_minutes() -> None:
    """If other chains are too long in each batch, only a much larger number is a new warning within ten minutes."""
    record = first_record("query", 8, "key_group", Stamp("c", 0))
    chains = LongChains()

    def warnings_of(minutes: float, count: int) -> int:
        later_record = replace(record, version=20, written_ms=int(60_000 * minutes))
        return len(chains.update([("totals", key_group) for key_group in range(count)], later_record))

    assert [warnings_of(0, 4), warnings_of(1, 0), warnings_of(2, 8), warnings_of(3, 0)] == [1, 0, 0, 0]
    assert [warnings_of(4, 9), warnings_of(13, 0), warnings_of(13.5, 9), warnings_of(14, 1)] == [1, 0, 0, 1]


@pytest.mark.usefixtures("short_cycles")
@pytest.mark.parametrize("waits", [False, True])
def test_overdue_snapshots_are_taken_before_the_first_batch(tmp_path: Path, waits: bool) -> None:
    """If each driver runs one batch, overdue snapshots are taken before that batch, because later ones would never be
    listed. Other waiting work does not change this.
    """
    world = World(tmp_path, operators=[totals()], snapshot_chain_links=4, retained_versions=3)
    history, longest = History(world), []
    for version in range(20):
        world.start(InlineBackground(deferred=waits))
        world.background.submit(lambda: None)
        assert world.batch(version, rows_of(*((f"k{n}", 1, n) for n in range(20)))).warnings == ()
        history.look()
        longest.append(max(len(entry.chain) for entry in world.log().manifest.entries.values()))
    assert max(longest) <= 2 * 4 + 1, longest
    assert world.state("totals") == {f"k{n}": (20, 20) for n in range(20)}


def test_only_the_first_batch_waits_for_a_few_overdue_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch after a start waits for a few overdue snapshots per executor. Later batches wait for none, and
    all are taken in time.
    """
    monkeypatch.setattr(upkeep, "_SNAPSHOTS_PER_EXECUTOR", 2)
    world = World(tmp_path, operators=[totals()], executors=["1"], retained_versions=3)
    reports = []
    for version in range(40):
        if version % 2 == 0:
            world.start(InlineBackground(deferred=True))
        reports.append(world.batch(version, rows_of(*((f"k{n}", 1, n) for n in range(20)))))
    assert max(report.snapshots for report in reports[::2]) == 2
    assert max(report.snapshots for report in reports[1::2]) == 0
    assert max(len(entry.chain) for entry in world.log().manifest.entries.values()) <= 2 * 6 + 2 * 8


def test_failed_upkeep_before_the_first_batch_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If upkeep before the first batch fails, the report has a warning, and the batch is committed."""
    world = World(tmp_path, operators=[totals()])
    for version in range(12):
        world.start(InlineBackground(deferred=True))
        if version == 5:
            monkeypatch.setattr(world.cluster, "upkeep", _gone)
        warnings = world.batch(version, rows_of(("a", 1, 0))).warnings
    assert any("executors are gone" in warning for warning in warnings)
    assert world.state("totals") == {"a": (12, 12)}


def _gone(_: object) -> list[object]:
    raise UnavailableError("executors are gone")
