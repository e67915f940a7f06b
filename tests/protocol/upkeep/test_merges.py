"""Merged deltas: when links are merged, and which objects such queries keep, list and delete."""

from __future__ import annotations

import base64
import math
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riffle_spark.errors import CorruptStateError
from riffle_spark.protocol.operator import operator_of
from riffle_spark.protocol.upkeep.merges import MergePolicy, choose_merges, find_sparse, list_merges
from riffle_spark.protocol.upkeep.snapshots import SnapshotPolicy, needs_snapshot
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.blocks import read_index
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import (
    EMPTY,
    Address,
    Entry,
    Head,
    Link,
    Manifest,
    MergedDelta,
    Replacement,
    Snapshot,
)
from riffle_spark.state.objects.encryption import key_id_of
from riffle_spark.testing import InlineBackground
from riffle_spark.worker.member_folders import keys_of
from tests.kit.simulated.alarms import Alarms, AlarmsOracle
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.event_rows import EVENTS, EventOracle, event_operators
from tests.kit.simulated.invariants import History
from tests.kit.simulated.world import ROWS, Crash, Oracle, World, drawn_batch, rows_of, totals, two_stores
from tests.kit.state.faulty_store import Fault

ADDRESS = ("totals", 3)
NO_AGE = 1 << 40


def delta(version: int, length: int = 100) -> Link:
    """Return the link of a delta."""
    return Link(Head(version, f"1-{version:032x}"), 0, length, 0, 1)


def merged(entry: Entry, level: int, number: int) -> Replacement:
    """Return the replacement of all links of a cut entry by one merged delta."""
    size = entry.chain_bytes
    name = MergedDelta(paths.snapshot_id(entry.head.version, f"1-{number:032x}"), level, size)
    return Replacement(entry.base, Link(entry.head, 0, size, 0, 1, name))


def ordered(policy: MergePolicy, entry: Entry, version: int) -> Entry | None:
    """Return the cut entry of the merge that is ordered for a key-group, or ``None``."""
    orders = choose_merges(policy, {ADDRESS: entry}, lambda _: "m1", version)
    return orders["m1"][0].entry if orders else None


@settings(max_examples=40)
@given(st.integers(4, 16), st.integers(1, 1200), st.integers(1, 5))
def test_merges_write_each_row_once_per_level(fan_in: int, deltas: int, late: int) -> None:
    """With `fan_in ** n` deltas, a chain has at most ``fan_in`` links for each of ``n`` levels, and each row is written
    once per level, also if merges are listed some batches late.
    """
    policy = MergePolicy(fan_in, NO_AGE)
    entry = EMPTY
    written = 0
    waiting: tuple[int, Replacement] | None = None
    for version in range(deltas):
        if waiting is not None and version >= waiting[0]:
            replaced = entry.replace_by_merged(waiting[1])
            assert replaced is not None
            entry = replaced
            waiting = None
        entry = entry.add_link(delta(version))
        cut = ordered(policy, entry, version) if waiting is None else None
        if cut is not None:
            (order,) = choose_merges(policy, {ADDRESS: entry}, lambda _: "m1", version)["m1"]
            written += cut.chain_bytes
            waiting = version + late, merged(cut, order.level, version)
        levels = [link.level for link in entry.chain]
        assert levels == sorted(levels, reverse=True)
    depth = 1
    while fan_in**depth <= deltas:
        depth += 1
    assert written <= 100 * deltas * (depth - 1)
    assert len(entry.chain) <= fan_in * depth + late


def test_an_old_delta_is_merged_even_if_it_is_the_only_one() -> None:
    """A delta of a certain age is merged even if it is the only one, because its object has the parts of other
    key-groups. A merged delta is not merged for its age.
    """
    policy = MergePolicy(16, 100)
    entry = EMPTY.add_link(delta(0))
    assert ordered(policy, entry, 99) is None
    cut = ordered(policy, entry, 100)
    assert cut == Entry(None, entry.chain, cut=entry.base)
    listed = entry.replace_by_merged(merged(entry, 1, 1))
    assert listed is not None
    assert ordered(policy, listed, 10_000) is None


def test_an_old_delta_is_merged_even_if_newer_ones_arrive() -> None:
    """The age of the oldest delta in a chain counts."""
    policy = MergePolicy(16, 100)
    entry = EMPTY.add_link(delta(0)).add_link(delta(99))
    assert ordered(policy, entry, 99) is None
    assert ordered(policy, entry, 100) == Entry(None, entry.chain, cut=entry.base)


def test_key_groups_that_are_half_due_are_merged_with_a_due_one() -> None:
    """If one key-group of an executor is due, key-groups with half as many links are merged too. Other executors merge
    nothing.
    """
    policy = MergePolicy(16, NO_AGE)
    entries: dict[Address, Entry] = {}
    for key_group, links in enumerate((16, 8, 7, 15)):
        entries["totals", key_group] = Entry(chain=tuple(map(delta, range(links))))
    owners = {("totals", 0): "m1", ("totals", 1): "m1", ("totals", 2): "m1", ("totals", 3): "m2"}
    orders = choose_merges(policy, entries, owners.get, 20)
    assert {owner: [order.key_group for order in due] for owner, due in orders.items()} == {"m1": [0, 1]}


def test_a_merged_delta_that_is_mostly_unlisted_is_merged_again() -> None:
    """A merged delta of which few bytes are still listed is merged again, so that unlisted bytes stay below listed
    ones.
    """
    policy = MergePolicy(16, NO_AGE)
    size = 1 << 20
    name = MergedDelta(paths.snapshot_id(5, f"1-{7:032x}"), 2, size)
    entries = {("totals", kg): Entry(chain=(Link(Head(5, "1-a"), 0, size // 4, 0, 1, name), delta(6))) for kg in (0, 1)}
    assert find_sparse(Manifest(entries)) == frozenset()
    del entries["totals", 0]
    manifest = Manifest(entries)
    sparse = find_sparse(manifest)
    assert sparse == {name}
    orders = choose_merges(policy, entries, lambda _: "m1", 7, sparse)
    (order,) = orders["m1"]
    assert (order.entry.chain, order.level) == (entries["totals", 1].chain, 2)
    changes = list_merges(manifest, {}, [(("totals", 1), merged(order.entry, order.level, 8))])
    assert find_sparse(manifest.with_entries(changes)) == frozenset()


def test_a_record_can_list_a_snapshot_and_a_later_merged_delta() -> None:
    """A record can list a snapshot of a key-group and a merged delta of the links after it."""
    entry = Entry(chain=tuple(map(delta, range(4))))
    snapshot = Snapshot(paths.snapshot_id(1, f"1-{8:032x}"), entry.chain[1].head, 10, 0, 1)
    snapped = entry.replace_by_snapshot(snapshot)
    assert snapped is not None
    replacement = merged(Entry(None, entry.chain[2:], cut=entry.chain[1].head), 1, 9)
    changes = list_merges(Manifest({ADDRESS: entry}), {ADDRESS: snapped}, [(ADDRESS, replacement)])
    assert changes == {ADDRESS: Entry(snapshot, (replacement.link,))}


@pytest.mark.parametrize(("links", "fan_in"), [(2, 0), (15, 0), (16, 4), (64, 16), (5000, 16)])
def test_short_chains_get_snapshots_instead_of_merges(links: int, fan_in: int) -> None:
    """For short chains merges would write more than snapshots, so none are made."""
    assert MergePolicy.of_chains(links, 100).fan_in == fan_in


def test_snapshots_and_merges_write_at_most_five_times_the_changes() -> None:
    """For a key-group of constant size, snapshots and merges write at most five times the changed bytes, and the listed
    bytes are at most 2.2 times the state.
    """
    state = 1 << 20
    for share in (0.0001, 0.001, 0.01, 0.1):
        changed = int(state * share)
        policy = MergePolicy.of_chains(64, 100)
        snapshots = SnapshotPolicy.of_chains(64, 100, are_merged=True)
        entry = EMPTY
        put = 0
        batches = int(4 / share)
        for version in range(batches):
            entry = entry.add_link(delta(version, changed))
            put += changed
            if needs_snapshot(snapshots, ADDRESS, entry, version):
                put += state
                snapshot_id = paths.snapshot_id(version, f"1-{version:032x}")
                replaced = entry.replace_by_snapshot(Snapshot(snapshot_id, entry.head, state, 0, 1))
                assert replaced is not None
                entry = replaced
            elif policy.has_due(entry, version):
                (order,) = choose_merges(policy, {ADDRESS: entry}, lambda _: "m1", version)["m1"]
                put += order.entry.chain_bytes
                entry = entry.replace_by_merged(merged(order.entry, order.level, version)) or entry
            assert len(entry.chain) <= 64
            assert entry.measure().bytes <= 2.2 * state
        assert put <= 5 * changed * batches, (share, put / changed / batches)


def query(folder: Path, **settings: object) -> World:
    """Return a query that merges deltas, whose upkeep runs on request."""
    world = World(folder, **{"snapshot_chain_links": 16, "retained_versions": 3, **settings})  # type: ignore[arg-type]
    world.start(InlineBackground(deferred=True))
    return world


def levels_of(world: World) -> Counter[int]:
    """Return the number of links of each level in the newest record."""
    return Counter(link.level for entry in world.log().manifest.entries.values() for link in entry.chain)


def end_batch(
    world: World,
    history: History,
    contents: Mapping[int, Mapping[str, Mapping[object, tuple[object, ...]]]],
    chance: random.Random,
) -> int:
    """Run upkeep after most batches, and check what is stored. Return the number of merged deltas in the record.

    ``contents`` is the state after each batch so far, by store. Copies are compared with it after every fourth batch.
    """
    if chance.random() < 0.7:
        world.background.run()
    history.look()
    if max(contents) % 4 == 3:
        history.check_copies(contents)
    return sum(count for level, count in levels_of(world).items() if level)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sample(step=3)
def test_a_merging_query_keeps_its_state_and_its_objects(tmp_path: Path, seed: int) -> None:
    """Over batches, restarts and crashes, every record has its objects (I1 to I5), copies equal the committed state,
    and only listed objects are left.
    """
    chance = random.Random(seed)
    world = query(tmp_path, operators=two_stores(), num_standbys=1, orphan_scan_interval=1)
    history, oracle = History(world), Oracle()
    contents: dict[int, dict[str, dict[object, tuple[object, ...]]]] = {}
    merges = 0
    for version in range(40):
        rows = drawn_batch(chance, version)
        oracle.feed(rows)
        contents[version] = {
            "totals": {key: tuple(values) for key, values in oracle.totals.items()},
            "tails": {key: (values,) for key, values in oracle.tails.items()},
        }
        if chance.random() < 0.2:
            world.start(InlineBackground(deferred=True))
        if chance.random() < 0.15:
            world.crash_at = chance.choice(["before run", "after record", "after seal", "after sink"])
        try:
            world.batch(version, rows)
        except Crash:
            world.start(InlineBackground(deferred=True))
            world.batch(version, rows)
        merges += end_batch(world, history, contents, chance)
    assert merges
    assert world.state("totals") == contents[39]["totals"]
    assert world.state("tails") == contents[39]["tails"]


def test_standbys_fetch_no_merged_delta_of_deltas_that_they_have(tmp_path: Path) -> None:
    """Standbys fetch each delta once, and no merged delta of deltas that they have."""
    world = Elastic(tmp_path, num_standbys=1, snapshot_chain_links=16, retained_versions=20)
    world.feed(40)
    assert any(link.merged for entry in world.log().manifest.entries.values() for link in entry.chain)
    gets = [name for method, name in world.store.calls if method == "get" and name.startswith("merged/")]
    assert gets == []


def test_a_failed_merge_is_a_warning_and_is_repeated(tmp_path: Path) -> None:
    """A failed merge is a warning of the next report and is repeated."""
    world = query(tmp_path, executors=["1"], operators=[totals()])
    world.store.script(Fault("unavailable", "put", "merged/"))
    warnings: list[str] = []
    for version in range(16):
        warnings += world.batch(version, rows_of(("a", 1, 0))).warnings
        world.background.run()
    assert any("will be retried: totals, key-group" in warning for warning in warnings)
    assert max(levels_of(world)) >= 1


def test_unlisted_merged_deltas_are_deleted(tmp_path: Path) -> None:
    """Merged deltas without a record are deleted: those of an ended driver and those that a snapshot replaced."""
    world = query(tmp_path, executors=["1"], operators=[totals()], orphan_scan_interval=1)
    for version in range(30):
        world.batch(version, rows_of(("a", 1, 0), ("b", 1, 0)))
        world.background.run()
        if version % 5 == 4:
            world.start(InlineBackground(deferred=True))
    world.clock.advance(100)
    for version in range(30, 60):
        world.batch(version, rows_of(("a", 1, 0), ("b", 1, 0)))
        world.background.run()
    present = {name for name in world.memory.list("") if name.startswith("merged/")}
    log = world.log()
    tail = log.tail
    assert tail is not None
    kept = [sequence for sequence in map(paths.parse_record_name, world.memory.list(paths.LOG)) if sequence is not None]
    retained = [log.read(sequence) for sequence in kept]
    listed = set().union(*log.listed_objects(retained, min(kept)))
    merges = world.driver._upkeep._merged  # private: links that no record lists yet
    assert present
    assert present <= listed | {replacement.link.object for _, replacement in merges}


def test_a_merged_delta_that_no_commit_can_list_is_deleted_at_once(tmp_path: Path) -> None:
    """A merged delta whose first link is no longer in the chain is deleted without a scan."""
    world = query(tmp_path, executors=["1"], operators=[totals()])
    upkeep = world.driver._upkeep  # private: links that no record lists yet
    version = 0
    while not upkeep._merged:
        world.batch(version, rows_of(("a", 1, 0)))
        world.background.run()
        upkeep.gather(world.driver.ownership)
        version += 1
    ((address, replacement),) = upkeep._merged
    upkeep._merged[:] = [(address, replacement._replace(since=Head(999, "1-a")))]
    assert world.memory.get(replacement.link.object) is not None
    for later in range(version, version + 40):
        world.clock.advance(10)
        world.batch(later, rows_of(("a", 1, 0)))
        world.background.run()
    assert world.memory.get(replacement.link.object) is None


def test_links_of_the_previous_driver_are_merged(tmp_path: Path) -> None:
    """After a restart, key-groups that no batch changes are merged once, and a record lists the merged delta."""
    world = query(tmp_path, executors=["1"], operators=[totals()])
    idle = tuple(f"k{n}" for n in range(20))
    for version in range(5):
        world.batch(version, rows_of(*((key, 1, 0) for key in idle)))
    world.start(InlineBackground(deferred=True))
    before = len(world.memory.list("merged/"))
    for version in range(5, 9):
        world.batch(version, rows_of(("a", 1, 0)))
        world.background.run()
    entries = world.log().manifest.entries.values()
    idle_chains = [[link.level for link in entry.chain] for entry in entries if entry.head.version < 5]
    assert idle_chains
    assert idle_chains == [[1]] * len(idle_chains)
    assert len(world.memory.list("merged/")) - before <= 2


def test_a_rollback_goes_back_before_merged_deltas(tmp_path: Path) -> None:
    """The deltas of a retained record stay after they were merged, so that a rollback works."""
    world = query(tmp_path, executors=["1"], operators=[totals()], retained_versions=30)
    history = History(world)
    for version in range(20):
        world.batch(version, rows_of(("a", 1, 0)))
        world.background.run()
        history.look()
    log = world.log()
    assert max(levels_of(world)) >= 1
    before = next(s for s in sorted(history.records) if history.records[s].version == 2)
    target = log.manifest_of(log.read(before))
    assert all(not link.merged for entry in target.entries.values() for link in entry.chain)
    assert all(world.memory.get(name) is not None for name in target.object_names())


@pytest.mark.long
def test_overdue_merges_run_before_the_first_batch(tmp_path: Path) -> None:
    """If each driver runs one batch, overdue merges are made before that batch, because later ones would never be
    listed.
    """
    world = World(tmp_path, operators=[totals()], snapshot_chain_links=16, retained_versions=100)
    history = History(world)
    longest = 0
    for version in range(40):
        world.start()
        world.batch(version, rows_of(*((f"k{n}", 1, n) for n in range(20))))
        history.look()
        longest = max(longest, *(len(entry.chain) for entry in world.log().manifest.entries.values()))
    assert longest <= 2 * 4 + 8
    assert world.state("totals") == {f"k{n}": (40, 40) for n in range(20)}


def test_variables_with_timers_and_ends_are_merged(tmp_path: Path) -> None:
    """Merged deltas of values, lists, maps and timers have the newest row of each element. A cleared list stays
    cleared.
    """
    operator = operator_of("alarms", ["k"], Alarms(), ("at",), ROWS)
    world = query(tmp_path, operators=[operator], num_standbys=1)
    history, oracle, chance = History(world), AlarmsOracle(), random.Random(5)
    contents: dict[int, dict[str, dict[object, tuple[object, ...]]]] = {}
    merges = 0
    for version in range(30):
        rows = drawn_batch(chance, version)
        now_ms = 1_000 * version
        in_order = sorted(rows.to_pylist(), key=lambda row: row["at"])
        oracle.feed([(row["k"], row["v"], now_ms) for row in in_order], now_ms, [now_ms])
        contents[version] = {"alarms": oracle.state()}
        world.batch(version, rows)
        world.background.run()
        history.look()
        if version % 4 == 3:
            history.check_copies(contents)
        merges += sum(count for level, count in levels_of(world).items() if level)
    assert merges
    assert world.state("alarms") == oracle.state()


def slow_events(chance: random.Random, version: int) -> pa.Table:
    """Draw a batch with few of many keys. Time passes so slowly that keys outlive the merges of their rows."""
    newest = 20_000 + 120 * version
    keys = [f"key-{chance.randrange(40)}" for _ in range(chance.choice([0, 1, 4, 6]))]
    rows = [(key, chance.randrange(9), 100 * version + index, newest - 40 * index) for index, key in enumerate(keys)]
    columns = zip(*rows, strict=True) if rows else [()] * len(EVENTS)
    return pa.table([pa.array(column, f.type) for column, f in zip(columns, EVENTS, strict=True)], schema=EVENTS)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)])
def test_keys_that_expire_are_merged(tmp_path: Path, seed: int) -> None:
    """Keys that expire stay deleted in copies that apply merged deltas. Keys with a later time do not expire early."""
    chance = random.Random(seed)
    operators = [operator for operator in event_operators() if operator.schema.one_row_a_key]
    world = query(tmp_path, operators=operators, num_standbys=1)
    history, oracle = History(world), EventOracle("min", last_pass=False)
    stores = [operator.store for operator in operators]
    contents: dict[int, Mapping[str, Mapping[object, tuple[object, ...]]]] = {}
    merges = 0
    for version in range(40):
        rows = slow_events(chance, version)
        oracle.feed(stores, rows)
        contents[version] = {store: oracle.state()[store] for store in stores}
        if chance.random() < 0.2:
            world.start(InlineBackground(deferred=True))
        world.batch(version, rows)
        merges += end_batch(world, history, contents, chance)
    assert merges
    assert {store: world.state(store) for store in stores} == {store: oracle.state()[store] for store in stores}


@pytest.mark.parametrize("headers_max", [pytest.param(1e-9, id="blocks"), pytest.param(math.inf, id="parts")])
def test_merged_deltas_are_encrypted_for_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers_max: float
) -> None:
    """Another member decrypts a merged delta. A part in the place of another key-group is refused, and local files are
    encrypted.
    """
    monkeypatch.setattr(part_codec, "_HEADERS_MAX", headers_max)  # private: no setting
    key = base64.b64encode(bytes(range(32))).decode()
    (tmp_path / "keys").write_text(f"a = {key}\n")
    world = query(tmp_path / "copies", operators=[totals()], encryption_keys=f"file:{tmp_path / 'keys'}")
    history = History(world)
    for version in range(12):
        world.batch(version, rows_of(*((f"visitor-{n}", 1, n) for n in range(20))))
        world.background.run()
        history.look()
    files = [path.read_bytes() for path in (tmp_path / "copies").rglob("*") if path.is_file()]
    assert any(len(data) > 1_000 for data in files)
    assert not [data for data in files if b"visitor-" in data]
    merged_links = {
        address: link
        for address, entry in world.log().manifest.entries.items()
        for link in entry.chain
        if link.merged is not None
    }
    assert len({link.object for link in merged_links.values()}) < len(merged_links)
    keys = keys_of(world.home)
    assert keys is not None
    for (store, key_group), link in merged_links.items():
        start, end = link.byte_range
        data = world.memory.get(link.object, start, end - start)
        assert data is not None
        rows = data if link.block is None else read_index(pa.py_buffer(data))[0].to_pybytes()
        assert key_id_of(rows) == "a"
        keys.decrypt(rows, link.place(store, key_group), "")
        other = link.place(store, key_group + 1) if link.block is None else link.place("other", key_group)
        with pytest.raises(CorruptStateError):
            keys.decrypt(rows, other, "")
    assert world.state("totals") == {f"visitor-{n}": (12, 12) for n in range(20)}
