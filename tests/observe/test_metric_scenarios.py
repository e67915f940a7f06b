"""Each metric has a value in a scenario of a real driver, and no scenario has a value of an unknown metric."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riffle_spark.errors import FencedError
from riffle_spark.messages.slot_orders import RECEIPT, Receipt
from riffle_spark.observe.metric_list import METRICS
from riffle_spark.observe.readings import Reading, readings
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.counters import Counters
from riffle_spark.testing import Attempt
from tests.kit import metrics_reference as reference
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.world import World, one_row, rows_of, totals

MARK = "user-key-"


def with_receipt(answer: pa.Table, **changes: object) -> pa.Table:
    """Return a slot's answer with changed fields in its receipt."""
    receipt = Receipt.from_json(answer.column(RECEIPT)[-1].as_py())
    texts = [*answer.column(RECEIPT).to_pylist()[:-1], replace(receipt, **changes).to_json()]  # type: ignore[arg-type]
    place = answer.column_names.index(RECEIPT)
    return answer.set_column(place, answer.schema.field(place), pa.array(texts, answer.schema.field(place).type))


def readings_of(world: World, report: BatchReport | None = None) -> tuple[Reading, ...]:
    """Return the readings of a world's driver now."""
    return readings(report, world.driver.facts())


def elastic_cluster(folder: Path) -> list[Reading]:
    """An executor joins and another is lost. This causes warm-ups, probes, moves, restores and lagging standbys."""
    all_readings: list[Reading] = []
    world = Elastic(folder, executors=("1", "2"), num_standbys=1, probing_rebalance_interval=60)
    world.cluster.memories = {"1": lambda: (30, 70)}
    world.cluster.disks = {"1": lambda: (0.3, 10**9)}

    def slow(attempt: Attempt) -> pa.Table:
        world.clock.advance(0.5)
        return attempt.run()

    world.feed(3, perform=slow)
    world.cluster.add("3")
    world.cluster.stalled.add("3")
    world.feed_every(70, 3)
    world.cluster.stalled.clear()
    for _ in range(3):
        report = world.feed()
        all_readings += readings_of(world, report)
    world.cluster.lose("1", planned=False)
    for report in world.feed_every(30, 12):
        all_readings += readings_of(world, report)
    world.rest(2, 100)
    all_readings += readings_of(world)
    return all_readings


def cold_and_warm_copies(folder: Path) -> list[Reading]:
    """Executor 1 is lost and executor 2 restores the copies. Then 2 is lost, and 1 returns with outdated copies."""
    world = Elastic(folder, executors=("1", "2"), num_standbys=0, scheduled_rebalance_max_delay=0)
    world.feed(3)
    world.cluster.lose("1")
    report = world.feed()
    assert report.restores > 0
    cold = readings_of(world, report)
    world.feed()
    world.cluster.lose("2", disk=True)
    world.cluster.add("1")
    report = world.feed()
    assert report.catch_ups > 0
    return [*cold, *readings_of(world, report)]


def taken_over(folder: Path) -> list[Reading]:
    """A second driver takes over, and the first one is fenced."""
    world = World(folder)
    world.batch(0, one_row(1))
    first = world.driver
    run_id = world.run_id
    world.start()
    world.batch(1, one_row(2))
    world.driver = first
    with pytest.raises(FencedError):
        world.batch(1, one_row(2), run_id=run_id)
    return list(readings_of(world))


def failing_parts(folder: Path) -> list[Reading]:
    """A sink fails, a slot loses its block, and upkeep fails."""
    world = World(folder, executors=("1", "2", "3"), num_standbys=1)
    sink = world.sinks["totals"]
    world.sinks["totals"] = _raise  # type: ignore[assignment]
    with pytest.raises(RuntimeError):
        world.batch(0, one_row(1))
    world.start()
    world.sinks["totals"] = sink
    world.batch(0, one_row(1), lose_block="totals")
    world.background.submit(_raise_in_upkeep)
    world.background.run()
    report = world.batch(1, one_row(2))
    return list(readings_of(world, report))


def user_functions(folder: Path) -> list[Reading]:
    """Slots report late rows, dead letters, fired timers and expired keys."""
    world = World(folder, operators=[totals()])

    def perform(attempt: Attempt) -> pa.Table:
        return with_receipt(
            attempt.run(), late_rows=1, dead_rows=2, dead_example="ValueError", timers_fired=3, expired=4
        )

    report = world.batch(0, one_row(1), perform, watermark_source="spark", watermark_ms=500)
    return list(readings_of(world, report))


def source_with_lag(folder: Path) -> list[Reading]:
    """Kafka has more records than the last batch read."""
    world = World(folder)
    report = world.batch(0, one_row(1))
    now = world.clock.seconds()
    world.driver.record_source(['{"events":{"0":10}}'], ['{"events":{"0":25}}'], now)
    world.clock.advance(7)
    return list(readings_of(world, report))


def spark_only(folder: Path) -> list[Reading]:
    """Spark builds a plan again and runs a slot on another executor. A simulation never does either."""
    world = World(folder)
    report = replace(world.batch(0, one_row(1)), plan_fallbacks=2, misses=1, misplaced_runs=1)
    counters = Counters()
    counters.add_report(report)
    return list(readings(report, replace(world.driver.facts(), counters=counters.values())))


def _raise(*_: object) -> None:
    raise RuntimeError("the sink is full")


def _raise_in_upkeep() -> None:
    raise OSError("no upkeep today")


SCENARIOS = (
    elastic_cluster,
    cold_and_warm_copies,
    taken_over,
    failing_parts,
    user_functions,
    source_with_lag,
    spark_only,
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Reading]:
    """Return all readings of all scenarios."""
    return [reading for scenario in SCENARIOS for reading in scenario(tmp_path_factory.mktemp("metrics"))]


def test_every_metric_has_a_value_in_some_scenario(seen: list[Reading]) -> None:
    """Each listed metric has a value, and each reading has as many labels as its metric."""
    valued = {reading.metric.name for reading in seen if reading.value or reading.metric.kind == "gauge"}
    assert {metric.name for metric in METRICS} - valued == set()
    assert all(len(reading.labels) == len(reading.metric.labels) for reading in seen)


def test_each_series_has_one_value(tmp_path: Path) -> None:
    """Each series has one value."""
    world = Elastic(tmp_path, executors=("1", "2"), num_standbys=1)
    report = world.feed(3)
    counts = Counter(reading.sample for reading in readings_of(world, report))
    assert [sample for sample, count in counts.items() if count > 1] == []


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.text(min_size=12), st.integers(0, 9)), min_size=1, max_size=6))
def test_keys_of_user_data_never_appear(pairs: list[tuple[str, int]]) -> None:
    """Property: no key is in facts or readings, not even the key of a late row or a dead letter."""
    with TemporaryDirectory() as folder:
        world = World(Path(folder), operators=[totals()])
        keys = [f"{MARK}{key}" for key, _ in pairs]
        rows = rows_of(*((key, value, value) for key, (_, value) in zip(keys, pairs, strict=True)))
        report = world.batch(
            0, rows, lambda attempt: with_receipt(attempt.run(), late_rows=1, dead_rows=1, dead_example="KeyError")
        )
        facts = world.driver.facts()
        assert MARK not in repr(facts)
        assert MARK not in repr(readings(report, facts))


def test_the_metrics_page_is_up_to_date() -> None:
    """The page of metrics is generated. ``./run reference`` writes it after a metric is changed."""
    text = reference.PAGE.read_text()
    assert reference.page(text) == text
    assert all(f"`{metric.name}`" in text for metric in METRICS)
