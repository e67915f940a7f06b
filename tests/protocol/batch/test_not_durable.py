"""Caches: stores without objects, whose state is lost with their member, beside durable stores in the same commit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark.errors import UnavailableError
from riffle_spark.offline.recovery import rollback
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Link
from riffle_spark.state.restore.stack_keeper import StackKeeper
from riffle_spark.state.restore.stack_parts import StackParts
from riffle_spark.testing import Attempt, InlineBackground
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.world import World, rows_of, tails, totals
from tests.kit.state.faulty_store import Fault

pytestmark = pytest.mark.usefixtures("names_in_order")


def seen() -> Operator:
    """Return an operator that counts the rows of each key in a cache."""
    return replace(operator_of("seen", ["k"], aggregate(count=count()), (), totals().rows), durable=False)


def mixed(tmp_path: Path, **settings: Any) -> Elastic:
    """Return a query with a cache and a durable store."""
    return Elastic(tmp_path, operators=[totals(), seen()], **settings)


def counts(world: Elastic) -> dict[str, int]:
    """Return the output of the cache in the newest batch: the count of each key with rows."""
    table = world.sinks["seen"].by_id[f"query/0/{world.version}"]
    return dict(zip(table["k"].to_pylist(), table["count"].to_pylist(), strict=True))


def test_a_cache_keeps_its_state_over_batches(tmp_path: Path) -> None:
    """The owner of a cache keeps its state over many batches and snapshots of the durable store."""
    world = mixed(tmp_path, snapshot_chain_links=3)
    world.feed(12)
    touched = world.of_groups(set(range(6)))
    assert counts(world) == dict.fromkeys(touched, 12)
    world.check_state()


def test_a_merge_during_a_batch_loses_no_cache_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late merge of a cache by another worker, in the middle of a batch, loses no state."""
    world = mixed(tmp_path)
    world.feed(5)
    merged, gather = list[int](), StackKeeper._parts_of  # private: between reading and replacing the stack

    def gathered_slowly(keeper: StackKeeper, links: Sequence[Link]) -> tuple[dict[Link, StackedPart], set[Link]]:
        stacked_parts = gather(keeper, links)
        stacks = keeper._folder.stacks("seen")  # private: as another process
        is_cache = keeper._schema.store == "seen"  # private: the store
        for key_group in stacks.key_groups() if is_cache else ():
            now = stacks.read(key_group)
            assert now is not None
            if len(now.parts) > 1:
                parts = StackParts(keeper._folder, keeper._schema, stacks, keeper._reader.keys)  # private: a merge
                parts._merge(key_group, now.parts, None, bottom=True)  # private: as above
                merged.append(key_group)
        return stacked_parts

    monkeypatch.setattr(StackKeeper, "_parts_of", gathered_slowly)  # private: as above
    world.feed(1)
    monkeypatch.undo()
    assert merged
    world.feed(2)
    assert set(counts(world).values()) == {8}
    world.check_state()


def test_a_cache_puts_no_objects_and_no_log_entries(tmp_path: Path) -> None:
    """A cache has no objects and no entries in the log, and does not change the objects of the durable store."""
    world, plain = (
        mixed(tmp_path / "mixed", snapshot_chain_links=3),
        Elastic(tmp_path / "plain", snapshot_chain_links=3),
    )
    world.feed(8)
    plain.feed(8)
    assert not list(world.memory.list("seen"))
    assert {store for store, _ in world.log().manifest.entries} == {"totals"}
    assert len(list(world.memory.list("delta"))) == len(list(plain.memory.list("delta")))


def test_a_cache_counts_rows_once_if_spark_repeats_a_slot(tmp_path: Path) -> None:
    """If Spark computes a slot again because its block was lost, the cache counts the rows once."""
    world = mixed(tmp_path)
    world.feed(3)
    world.feed(perform=twice)
    assert set(counts(world).values()) == {4}
    world.version += 1
    keys = world.of_groups({0})
    world.batch(world.version, rows_of(*((key, 1, n) for n, key in enumerate(keys))), lose_block="seen")
    assert set(counts(world).values()) == {5}


def twice(attempt: Attempt) -> pa.Table:
    """Run a slot twice and return the second result."""
    attempt.run()
    return attempt.run()


def test_a_moved_cache_starts_empty(tmp_path: Path) -> None:
    """If a key-group moves, its cache starts empty on the new owner. The durable store is caught up."""
    world = mixed(tmp_path)
    world.feed(4)
    world.cluster.add("3")
    world.settle()
    moved = world.owned("3")
    assert moved
    version = world.version
    world.feed()
    since = {ran.version for ran in world.ran if ran.executor == "3" and ran.store == "seen"}
    new = world.version - min(since) + 1
    of_moved, rest = world.of_groups(moved), world.of_groups(set(range(6)) - moved)
    key_counts = counts(world)
    assert {key_counts[key] for key in of_moved} == {new}
    assert {key_counts[key] for key in rest} == {version + 2}
    world.check_state()


def test_caches_start_empty_after_a_driver_restart(tmp_path: Path) -> None:
    """Caches start empty after a restart of the driver."""
    world = mixed(tmp_path)
    world.feed(3)
    world.start()
    world.feed()
    assert set(counts(world).values()) == {1}
    world.feed()
    assert set(counts(world).values()) == {2}
    world.check_state()


def test_an_owner_does_not_reuse_its_outdated_cache(tmp_path: Path) -> None:
    """If a slot ran elsewhere for one batch, the owner does not use its old cache again."""
    cache = replace(tails(), durable=False)
    world = World(tmp_path, operators=[cache])
    world.batch(0, rows_of(("a", 1, 0)))

    def elsewhere(attempt: Attempt) -> pa.Table:
        return replace(attempt, executor="2" if attempt.executor == "1" else "1").run()

    world.batch(1, rows_of(("a", -1, 1)), elsewhere)
    world.batch(2, rows_of(("a", 3, 2)))
    assert world.sinks["tails"].by_id["query/0/2"].to_pylist() == [{"k": "a", "last": [3]}]


def back_to(world: Elastic, tmp_path: Path, version: int) -> None:
    """Roll the query back to a batch and start it again in the same process."""
    checkpoint = tmp_path / "checkpoint"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": "query"}))
    rollback(world.home.root, version, str(checkpoint), execute=True)
    world.version, world.run_id = version, "started again"


def test_a_cache_starts_empty_after_a_rollback_in_the_same_process(tmp_path: Path) -> None:
    """After a rollback in the same process the cache starts empty, so that no row counts twice."""
    world = mixed(tmp_path, retained_versions=10)
    world.feed(4)
    back_to(world, tmp_path, 1)
    for again in (1, 2, 3):
        world.version += 1
        keys = world.of_groups(set(range(6)))
        world.batch(world.version, rows_of(*((key, 1, n) for n, key in enumerate(keys))))
        delivery = world.sinks["seen"].by_id[f"query/1/{world.version}"]
        assert set(delivery["count"].to_pylist()) == {again}


def test_a_cache_starts_empty_after_a_restart_in_the_same_process(tmp_path: Path) -> None:
    """A query that starts again in the same process has empty caches, because another driver may have run."""
    world = mixed(tmp_path)
    world.feed(3)
    world.run_id = "started again"
    world.feed()
    assert set(counts(world).values()) == {1}
    world.check_state()


@pytest.mark.parametrize("same_run", [True, False])
def test_a_cache_starts_empty_after_an_unclear_commit(tmp_path: Path, same_run: bool) -> None:
    """If a commit is found later, the cache starts empty after that batch."""
    world = mixed(tmp_path)
    world.feed(3)
    record = paths.record_name(world.log().tail.sequence + 1)  # type: ignore[union-attr]
    world.store.script(Fault("answer_lost", "put", record), Fault("unavailable", "put", record, times=None))
    world.store.script(Fault("unavailable", "get", record, times=None))
    with pytest.raises(UnavailableError, match="RIFFLE-0421"):
        world.feed()
    world.store.heal()
    if not same_run:
        world.run_id = "started again"
    assert world.batch(world.version, rows_of()).decision == "repeat"
    for again in (1, 2):
        world.feed()
        assert set(counts(world).values()) == {again}


def test_upkeep_ignores_caches(tmp_path: Path) -> None:
    """Upkeep does not follow, snapshot or drop caches."""
    world = mixed(tmp_path, num_standbys=1, state_cleanup_delay=0, snapshot_chain_links=3)
    world.start(InlineBackground())
    warnings = [warning for _ in range(9) for warning in world.feed().warnings]
    assert not [warning for warning in warnings if "upkeep" in warning]
    assert set(counts(world).values()) == {9}
    world.check_state()


def test_a_query_with_only_caches_moves_tasks_at_once(tmp_path: Path) -> None:
    """In a query with only caches, a new member owns its share with the next batch."""
    world = Elastic(tmp_path, operators=[seen()])
    world.feed(2)
    world.cluster.add("3")
    world.feed()
    assert len(world.owned("3")) == 2
    assert not world.ownership.placement.present.warmups
