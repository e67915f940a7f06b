"""Readings of a driver: every one is in the list of metrics, and its values are those of the batches."""

from __future__ import annotations

from pathlib import Path

from riffle_spark.observe.metric_list import LABELS, METRICS, Metric
from riffle_spark.observe.readings import Reading, readings
from tests.kit.simulated.world import World, one


def values(world: World, name: str) -> dict[tuple[str, ...], int | float]:
    """Return the readings of a metric after the world's last batch, by the values of its labels."""
    return {r.labels: r.value for r in readings(None, world.driver.facts()) if r.metric.name == name}


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Names are unique, only counters end in ``_total``, and units are in the names."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("riffle_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        if metric.unit in ("seconds", "bytes", "ratio"):
            assert metric.unit in metric.name.split("_"), metric.name
        assert set(metric.labels) <= set(LABELS)
    assert {label for metric in METRICS for label in metric.labels} == set(LABELS)


def test_a_sample_is_written_as_in_prometheus() -> None:
    """Labels are quoted, and special characters escaped."""
    metric = Metric("riffle_x", "gauge", "x", ("a", "b"), "", "")
    assert Reading(metric, ('say "hi"\\', "2\n"), 1).sample == 'riffle_x{a="say \\"hi\\"\\\\",b="2\\n"}'
    assert Reading(Metric("riffle_x", "gauge", "x", (), "", ""), (), 1).sample == "riffle_x"


def test_counters_are_sums_over_batches(tmp_path: Path) -> None:
    """Rows of two batches count in each store, and members by state."""
    world = World(tmp_path)
    world.batch(0, one(1))
    world.batch(1, one(2, "b"))
    assert values(world, "riffle_rows_total") == {("totals",): 2, ("tails",): 2}
    assert values(world, "riffle_batches_total") == {("run",): 2}
    assert values(world, "riffle_members")[("active",)] == 2
    assert sum(values(world, "riffle_owned_key_groups").values()) == 8
    assert values(world, "riffle_state_rows") == {("totals",): 2, ("tails",): 2}
