"""Readings of a driver are of listed metrics, and their values are those of the batches."""

from __future__ import annotations

from pathlib import Path

from riffle_spark.observe.metric_list import LABELS, METRICS, Metric
from riffle_spark.observe.readings import Reading, readings
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.facts import DriverFacts, MemberFacts
from tests.kit.simulated.world import World, one_row, two_stores


def values(world: World, name: str) -> dict[tuple[str, ...], int | float]:
    """Return the readings of a metric after the last batch, by label values."""
    return {r.labels: r.value for r in readings(None, world.driver.facts()) if r.metric.name == name}


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Metric names are unique and contain their unit. Only counters end in ``_total``."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("riffle_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        if metric.unit in ("seconds", "bytes", "ratio"):
            assert metric.unit in metric.name.split("_"), metric.name
        assert set(metric.labels) <= set(LABELS)
    assert {label for metric in METRICS for label in metric.labels} == set(LABELS)


def test_a_sample_has_the_text_format_of_prometheus() -> None:
    """A sample quotes its labels and escapes special characters."""
    metric = Metric("riffle_x", "gauge", "x", ("a", "b"), "", "")
    assert Reading(metric, ('say "hi"\\', "2\n"), 1).sample == 'riffle_x{a="say \\"hi\\"\\\\",b="2\\n"}'
    assert Reading(Metric("riffle_x", "gauge", "x", (), "", ""), (), 1).sample == "riffle_x"


def test_counters_are_sums_over_batches(tmp_path: Path) -> None:
    """Rows of two batches are added up per store, and members are counted by state."""
    world = World(tmp_path, operators=two_stores())
    world.batch(0, one_row(1))
    world.batch(1, one_row(2, "b"))
    assert values(world, "riffle_rows_total") == {("totals",): 2, ("tails",): 2}
    assert values(world, "riffle_batches_total") == {("run",): 2}
    assert values(world, "riffle_members")[("active",)] == 2
    assert sum(values(world, "riffle_owned_key_groups").values()) == 8
    assert values(world, "riffle_state_rows") == {("totals",): 2, ("tails",): 2}


def test_an_executor_id_has_the_readings_of_its_active_member() -> None:
    """If an awaited member has the same executor id as an active one, the readings are those of the active member."""
    active = MemberFacts("new", "1", "host", owned=5)
    awaited = MemberFacts("old", "1", "host", state="awaited", owned=3)
    for members in ((active, awaited), (awaited, active)):
        shown = {r.metric.name: r.value for r in readings(None, DriverFacts(1, "q", members=members)) if r.labels}
        assert shown["riffle_owned_key_groups"] == 5


def test_the_watermark_delay_grows_while_no_batch_commits() -> None:
    """The watermark delay is the time of the facts minus the watermark, so it grows while no batch commits."""
    facts = DriverFacts(100_000, "q", commit_ms=60_000, watermark_ms=50_000)
    shown = {r.metric.name: r.value for r in readings(None, facts)}
    assert shown["riffle_watermark_delay_seconds"] == 50
    assert shown["riffle_last_commit_timestamp_seconds"] == 60


def test_a_repeated_batch_has_no_rows_of_the_last_batch() -> None:
    """A repeated batch changes no state, so it has no reading of rows or memory."""
    names = {"riffle_last_batch_rows", "riffle_worker_peak_memory_bytes"}
    for decision, expected in (("run", names), ("repeat", set())):
        report = BatchReport(3, "q", decision, 1_000, 1, {"total": 0.5}, rows=7)
        shown = {r.metric.name for r in readings(report, DriverFacts(1, "q"))}
        assert shown & names == expected
