"""Totals have no labels: open labels are added up, and labels with fixed values are in the name."""

from __future__ import annotations

from pathlib import Path

from riffle_spark.observe.metric_list import LABELS, METRIC_BY_NAME, METRICS
from riffle_spark.observe.readings import Reading, readings
from riffle_spark.observe.totals import FIXED_LABELS, totals
from riffle_spark.protocol.facts import DriverFacts
from tests.kit.simulated.world import World, one_row, two_stores


def test_open_labels_are_added_up_and_fixed_ones_are_in_the_name(tmp_path: Path) -> None:
    """Rows of both stores are one sum. Members have a total per state, and requests one per kind."""
    world = World(tmp_path, operators=two_stores())
    report = world.batch(0, one_row(1))
    values = totals(readings(report, world.driver.facts()))
    assert values["riffle_rows_total"] == 2
    assert values["riffle_members.active"] == 2
    assert values["riffle_members.quarantined"] == 0
    assert values["riffle_requests_total.batch.put"] == report.requests["put"]
    assert values["riffle_batches_total.run"] == 1


def test_the_total_of_ratios_and_seconds_is_the_maximum() -> None:
    """The total of a ratio or of a lag in seconds is the maximum. A lag in records is a sum."""
    disk = METRIC_BY_NAME["riffle_local_disk_used_ratio"]
    lag = METRIC_BY_NAME["riffle_source_lag_seconds"]
    records = METRIC_BY_NAME["riffle_source_lag_records"]
    values = totals(
        [
            Reading(disk, ("1",), 0.5),
            Reading(disk, ("2",), 0.25),
            Reading(lag, ("t", "0"), 3.0),
            Reading(lag, ("t", "1"), 9.0),
            Reading(records, ("t", "0"), 3),
            Reading(records, ("t", "1"), 9),
        ]
    )
    assert values["riffle_local_disk_used_ratio"] == 0.5
    assert values["riffle_source_lag_seconds"] == 9.0
    assert values["riffle_source_lag_records"] == 12


def test_counters_without_labels_start_at_zero() -> None:
    """Counters without labels start at zero, so that an alert sees the first failure as growth."""
    values = totals(readings(None, DriverFacts(0)))
    counters = {metric.name for metric in METRICS if metric.kind == "counter" and not metric.labels}
    assert dict.fromkeys(counters, 0).items() <= values.items()


def test_six_labels_have_no_fixed_list_of_values() -> None:
    """The labels outside of names are those without a fixed list of values."""
    assert set(LABELS) - FIXED_LABELS == {"executor", "id", "partition", "reason", "store", "topic"}
