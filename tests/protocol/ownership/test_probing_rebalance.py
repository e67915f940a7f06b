"""When a probing rebalance runs or is skipped, and how long measured triggers must last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.assign.model import Assignment, Move, TaskId
from riffle_spark.protocol.ownership.triggers import Patience, Probes, is_outside_band

TASK = TaskId("query", 0)
ACCEPTABLE, INTERVAL = 10, 60.0
WAITING = Assignment({TASK: "a"}, needs_probe=True)
MOVED = Assignment({TASK: "a"}, needs_probe=True, moves=(Move(TASK, "owner", "b", "a", "balance", ""),))
LAGS = st.lists(st.integers(0, 30), max_size=5)


def probing(assignment: Assignment = WAITING) -> Probes:
    """Return probes after an assignment."""
    probes = Probes()
    probes.record_assignment(assignment, 0.0)
    return probes


def due(probes: Probes, lags: list[int], now: float, assignment: Assignment = WAITING) -> bool:
    """Return whether a probe is due."""
    return probes.is_due(assignment, lags, (ACCEPTABLE, INTERVAL), now)


@given(LAGS.filter(bool), st.floats(0, 500))
def test_no_probe_runs_while_no_warm_up_is_warm(lags: list[int], now: float) -> None:
    """While no warm-up has caught up, no probe runs, however long it takes."""
    cold = [lag + ACCEPTABLE + 1 for lag in lags]
    assert not due(probing(), cold, now)


@given(LAGS.filter(bool), st.floats(0, 500))
def test_a_probe_runs_as_soon_as_all_warm_ups_are_warm(lags: list[int], now: float) -> None:
    """When all warm-ups have caught up, a probe runs before the interval has passed."""
    assert due(probing(), [lag % (ACCEPTABLE + 1) for lag in lags], now)


@given(LAGS, st.floats(0, 500))
def test_an_assignment_without_warm_ups_gets_no_probe(lags: list[int], now: float) -> None:
    """An assignment that needs no probe gets none."""
    settled = Assignment({TASK: "a"})
    probes = probing(settled)
    assert not due(probes, lags, now, settled)
    assert probes.take_counts() == (0, 0)


def test_after_the_interval_one_caught_up_warm_up_causes_a_probe() -> None:
    """After the interval, one caught-up warm-up is enough, so that a slow one does not delay the others."""
    probes = probing()
    assert not due(probes, [0, 99], INTERVAL - 1)
    assert due(probes, [0, 99], INTERVAL)
    assert probes.take_counts() == (1, 0)


@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=60))
def test_skipped_probes_are_counted_once_per_interval(steps: list[float]) -> None:
    """At most one skipped probe counts per interval, and at least one per two intervals."""
    probes, now, skipped = probing(), 0.0, 0
    for step in steps:
        now += step
        assert not due(probes, [99], now)
        run, more = probes.take_counts()
        skipped += more
        assert run == 0
    assert skipped <= now / INTERVAL
    assert skipped >= int(now / (INTERVAL + max(steps)))


def test_moves_without_warm_ups_cause_a_probe_at_once() -> None:
    """After moves without warm-ups one probe runs with the next batch, to balance the rest."""
    probes = probing(MOVED)
    assert due(probes, [], 1.0, MOVED)
    probes.record_assignment(WAITING, 1.0)
    assert not due(probes, [], 2.0)
    assert due(probes, [], 1.0 + INTERVAL)


def test_batch_counts_restart_with_each_assignment() -> None:
    """Counts of batches restart with each assignment."""
    patience = Patience()
    for n in range(10):
        patience.count_growing_lags({(TASK, "b"): n})
        patience.count_outside_band(n >= 6)
    patience.reset()
    assert not patience.count_outside_band(outside=True)
    assert not patience.count_growing_lags({(TASK, "b"): 11})


def test_an_unlisted_standby_has_no_lag() -> None:
    """A standby that is not listed has no lag, so its first listed lag counts as growth."""
    patience = Patience()
    assert not patience.count_growing_lags({})
    for n in range(1, 10):
        assert not patience.count_growing_lags({(TASK, "b"): n})
    assert patience.count_growing_lags({(TASK, "b"): 10}) == {(TASK, "b"): 10}
    assert not patience.count_growing_lags({})
    assert not patience.count_growing_lags({(TASK, "b"): 11})


@given(
    st.dictionaries(st.integers(0, 9), st.floats(0, 100), max_size=10),
    st.floats(0.01, 0.9), st.integers(1, 4), st.integers(1, 4),
)  # fmt: skip
def test_the_balance_band_compares_work_per_slot(weights: dict[int, float], band: float, a: int, b: int) -> None:
    """Work is compared per slot. Work in proportion to the slots is never outside the band."""
    owners = {group: ("a" if group % 2 else "b") for group in weights}
    load = {name: sum(w for group, w in weights.items() if owners[group] == name) for name in ("a", "b")}
    is_outside = is_outside_band(weights, owners, {"a": a, "b": b}, band)
    mean = sum(load.values()) / (a + b)
    assert is_outside == (
        mean > 0 and any(not (1 - band) * mean <= load[m] / s <= (1 + band) * mean for m, s in (("a", a), ("b", b)))
    )
    assert not is_outside_band({0: float(a), 1: float(b)}, {0: "a", 1: "b"}, {"a": a, "b": b}, band)
