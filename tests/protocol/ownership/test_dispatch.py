"""With partition and hashed dispatch, results equal those of key-group dispatch, partitions keep their numbers, and
each has an owner.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.kit.simulated.partitioned_query import BY_PARTITION, Played, of_partition, offsets, owners
from tests.kit.simulated.world import World, one_row, two_stores


@pytest.mark.parametrize("dispatch", [*BY_PARTITION, "key_group"])
@pytest.mark.sample(step=2)
def test_every_dispatch_gives_the_same_results(tmp_path: Path, dispatch: str) -> None:
    """If keys stay in their partitions, state and output are the same with every dispatch, also after a lost executor
    and a restart.
    """
    played = Played(World(tmp_path, operators=two_stores(), dispatch=dispatch, key_groups=16))
    played.batches(4)
    played.world.cluster.lose("1", disk=True)
    played.batches(2)
    played.world.cluster.add("3", cores=2)
    played.restart()
    played.batches(3)
    played.check()
    reference = Played(World(tmp_path / "reference", operators=two_stores(), key_groups=16))
    reference.batches(9)
    assert played.world.delivered("totals") == reference.world.delivered("totals")
    assert played.world.delivered("tails") == reference.world.delivered("tails")


@pytest.mark.parametrize("dispatch", BY_PARTITION)
def test_a_query_with_fewer_partitions_than_slots_survives_losses(tmp_path: Path, dispatch: str) -> None:
    """With 16 partitions and 32 slots, every partition has a slot. State survives the loss of half of the executors."""
    world = World(tmp_path, executors=(), dispatch=dispatch, key_groups=128)
    for name in range(8):
        world.cluster.add(str(name), cores=4)
    rows = pa.concat_tables([one_row(n, f"key-{n}") for n in range(48)])
    report = world.batch(0, of_partition(rows, *range(16)), offsets=offsets(*range(16)))
    assert report.rows == 48
    assert sum(report.owners.values()) == 16
    assert report.slots == 16 if dispatch == "partition" else 1 < report.slots <= 16
    for name in range(0, 8, 2):
        world.cluster.lose(str(name), disk=True)
    world.batch(1, of_partition(rows, *range(16)), offsets=offsets(*range(16)))
    assert world.state("totals") == {f"key-{n}": (2, 2 * n) for n in range(48)}


@pytest.mark.parametrize("dispatch", BY_PARTITION)
def test_shard_numbers_stay_if_a_topic_gets_more_partitions(tmp_path: Path, dispatch: str) -> None:
    """New partitions get the next numbers, so that state of the old ones stays in place."""
    world = World(tmp_path, dispatch=dispatch)
    world.batch(0, of_partition(one_row(1), 1, topic="orders"))
    world.batch(1, of_partition(one_row(2, "b"), 0, topic="events"))
    world.batch(2, of_partition(one_row(4), 1, topic="orders"))
    world.start()
    world.batch(3, of_partition(one_row(8), 0, topic="orders"))
    log = world.log()
    assert log.tail is not None
    assert log.tail.shards == (("orders", 1), ("events", 0), ("orders", 0))
    counts = {shard: len(entry.chain) for (store, shard), entry in log.manifest.entries.items() if store == "totals"}
    assert counts == {0: 2, 1: 1, 2: 1}
    assert set(owners(world)) == {"0", "1", "2"}


def test_a_key_has_separate_state_in_each_partition(tmp_path: Path) -> None:
    """State belongs to a partition: the same key in another partition has other state."""
    world = World(tmp_path, operators=two_stores(), dispatch="partition")
    for version, partition in enumerate([0, 1, 0]):
        world.batch(version, of_partition(one_row(10), partition))
    assert [row["count"] for row in world.delivered("totals")] == [1, 1, 2]
    assert [row["last"] for row in world.delivered("tails")] == [[10], [10], [10, 10]]


@pytest.mark.parametrize(("offsets_known", "dispatch"), list(zip([False, True], BY_PARTITION, strict=True)))
def test_a_start_with_other_partitions_is_a_warning(tmp_path: Path, dispatch: str, offsets_known: bool) -> None:
    """With the same topic and partitions the state continues. Other values start without state, and a warning has both
    partitions and the batch to return to.
    """

    def run(version: int, topic: str, *partitions: int) -> tuple[str, ...]:
        counts = ",".join(f'"{partition}":{version}' for partition in partitions)
        offsets = f'v1\n{{"batchWatermarkMs":0}}\n{{"{topic}":{{{counts}}}}}' if offsets_known else None
        rows = pa.concat_tables([one_row(1), one_row(1, "b")])
        return world.batch(version, of_partition(rows, *partitions, topic=topic), offsets=offsets).warnings

    world = World(tmp_path, dispatch=dispatch, key_groups=16)
    assert run(0, "events", 0, 1) == ()
    world.start()
    assert run(1, "events", 0, 1, 2) == ()
    assert world.state("totals") == {"a": (2, 2), "b": (2, 2)}
    world.start()
    (warning,) = run(2, "v", 7, 8)
    assert "RIFFLE-0808" in warning
    assert run(3, "w", 9) == ()


def test_a_job_finds_partitions_only_if_offsets_do_not_list_them(tmp_path: Path) -> None:
    """With Kafka's offsets all partitions are known without a job. Otherwise one job per batch finds them."""
    world = World(tmp_path, dispatch="partition")
    world.batch(0, of_partition(one_row(1), 1), offsets=offsets(0, 5, 0))
    assert world.work.partition_reads == 0
    assert world.log().tail.shards == (("events", 0), ("events", 1), ("events", 2))  # type: ignore[union-attr]
    world.batch(1, of_partition(one_row(1), 3))
    assert world.work.partition_reads == 1
    assert world.batch(1, of_partition(one_row(1), 3)).decision == "repeat"
    assert world.work.partition_reads == 0


@pytest.mark.parametrize("dispatch", BY_PARTITION)
def test_a_query_without_partitions_runs_one_slot(tmp_path: Path, dispatch: str) -> None:
    """A query without any partition runs one slot. The first partition then gets an owner."""
    world = World(tmp_path, dispatch=dispatch)
    empty = world.batch(0, of_partition(one_row(1).slice(0, 0), 0))
    assert (empty.slots, empty.rows, owners(world)) == (1, 0, {})
    assert world.batch(1, of_partition(one_row(1), 0)).rows == 1
    assert world.state("totals") == {"a": (1, 1)}


def test_a_live_change_without_effect_in_hashed_dispatch_is_a_warning(tmp_path: Path) -> None:
    """If a live change has no effect with hashed dispatch, the next report has one warning."""
    world = World(tmp_path, dispatch="hashed", key_groups=16)
    world.batch(0, of_partition(one_row(1), 0), offsets=offsets(0))
    world.driver.operations.reconfigure(world.driver.settings, {"exclude": "id=x", "retained_for": 7})
    reports = [world.batch(n, of_partition(one_row(n), 0), offsets=offsets(0)) for n in (1, 2)]
    no_effect_warnings = [[text for text in report.warnings if "no effect" in text] for report in reports]
    assert [len(texts) for texts in no_effect_warnings] == [1, 0]
    assert no_effect_warnings[0][0].startswith(
        "[RIFFLE-0765] With dispatch = hashed these settings have no effect: exclude.\n"
    )
