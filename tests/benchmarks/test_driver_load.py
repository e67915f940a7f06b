"""The benchmark of the driver: its made-up executors, and what it measures."""

from __future__ import annotations

import pytest

from benchmarks.driver import CASES, MEASURED, MEASURED_OF_LARGE, WARM_UP, WARM_UP_OF_LARGE, batches_of
from benchmarks.drivers.executors import CORES, CpuMeter
from benchmarks.drivers.load import DriverLoad, Measured
from riffle_spark.state.log.log import Log


def test_time_aside_does_not_count() -> None:
    """The meter leaves out blocks that run aside, also if they fail."""
    times = iter([2.0, 7.0, 8.0, 10.0, 11.0, 12.0])
    meter = CpuMeter(lambda: next(times))
    with meter.aside():
        pass
    assert meter.seconds() == 8.0 - (7.0 - 2.0)
    with pytest.raises(ValueError, match="broken"), meter.aside():
        raise ValueError("broken")
    assert meter.seconds() == 12.0 - (7.0 - 2.0) - (11.0 - 10.0)


def test_figures_are_means_per_batch() -> None:
    """CPU is the mean, because full records are in some batches only; the commit is a median."""
    figures = Measured([0.010, 0.010, 0.040], [0.001, 0.002, 0.009], [10, 20, 60], [1, 2, 3], [7, 7, 70]).figures()
    assert figures == {
        "cpu_ms": pytest.approx(20.0),
        "cpu_median_ms": 10.0,
        "commit_ms": 2.0,
        "sent_bytes": 30,
        "received_bytes": 2,
        "record_bytes": 28,
    }


def test_large_cases_run_fewer_batches() -> None:
    """Cases of 32,768 key-groups run fewer batches; an option sets the measured ones."""
    assert batches_of(4_096, 0) == (WARM_UP, MEASURED)
    assert batches_of(32_768, 0) == (WARM_UP_OF_LARGE, MEASURED_OF_LARGE)
    assert batches_of(128, 5) == (WARM_UP, 5)
    assert len(CASES) == 3 * 4 + 2


def test_made_up_executors_do_what_a_driver_orders() -> None:
    """Every key-group changes with each batch and has a standby that follows; snapshots shorten the chains."""
    load = DriverLoad(executors=3, key_groups=24, num_standbys=1)
    load.run(40)
    measured = load.run(2)
    log = Log(load.objects, load.root)
    newest = log.open()
    assert newest is not None
    manifest = log.manifest
    assert newest.version == 41
    assert {entry.head.version for entry in manifest.entries.values()} == {41}
    assert len(manifest.entries) == len(newest.owners) == len(newest.standbys) == 24
    assert all(entry.snapshot and len(entry.chain) < 40 for entry in manifest.entries.values())
    assert len(load.executors.live) * CORES == 12
    assert len(measured.cpu_s) == len(measured.record_bytes) == 2
    assert min(measured.sent_bytes + measured.received_bytes + measured.record_bytes) > 0
    assert 0 < min(measured.commit_s) <= max(measured.commit_s) < max(measured.cpu_s)
