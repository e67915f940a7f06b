"""The published capacity formula and its limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError
from riffle_spark.simulate.capacity import Need, compute_capacity

NEED = Need(
    rows_per_second=100_000,
    rows_per_worker=9_000,
    state_bytes=120e9,
    cores_per_host=5,
    cache_fraction=0.2,
    rows_in_flight=10_000,
    row_bytes=500,
    changed_bytes_per_second=1e6,
    num_standbys=2,
)


def test_the_capacity_formula_equals_a_calculation_by_hand() -> None:
    """12 workers take 100,000 rows/s. Memory holds a fifth of each worker's 10 GB and 10,000 rows in flight. Disk and
    writes include the standbys.
    """
    capacity = compute_capacity(NEED)
    assert (capacity.total_workers, capacity.num_hosts, capacity.workers_per_host, capacity.bound_by) == (
        12,
        3,
        4,
        "cores",
    )
    assert capacity.state_per_worker == 10e9
    assert capacity.memory_per_worker == 2e9 + 5e6
    assert (capacity.disk_bytes, capacity.written_bytes_per_second) == (360e9, 3e6)


def test_memory_may_require_more_machines_than_cores() -> None:
    """If a machine has memory for only two workers, twelve workers need six machines instead of three."""
    capacity = compute_capacity(replace(NEED, memory_per_host=5e9))
    assert (capacity.num_hosts, capacity.workers_per_host, capacity.bound_by) == (6, 2, "memory")


def test_a_worker_larger_than_a_machine_is_refused() -> None:
    """A worker that needs more memory than a machine has is refused, with both figures."""
    with pytest.raises(ConfigError, match="RIFFLE-0252"):
        compute_capacity(replace(NEED, memory_per_host=1e9))


@pytest.mark.parametrize(
    ("figure", "value", "option"),
    [
        ("rows_per_second", float("inf"), "--rows-per-second"),
        ("rows_per_second", 1e300, "--rows-per-second"),
        ("rows_per_worker", 0, "--rows-per-worker"),
        ("state_bytes", float("nan"), "--state-bytes"),
        ("state_bytes", -5, "--state-bytes"),
        ("cache_fraction", -1, "--cache-fraction"),
        ("row_bytes", -1, "--row-bytes"),
        ("cores_per_host", 0, "--cores"),
        ("memory_per_host", 0, "--memory-bytes"),
    ],
)
def test_an_invalid_figure_is_refused_with_its_option_name(figure: str, value: float, option: str) -> None:
    """Negative, infinite and undefined figures are refused, as are machines without cores or memory. A rate of 0 rows
    is valid.
    """
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        compute_capacity(replace(NEED, **{figure: value}))  # type: ignore[arg-type]
    assert compute_capacity(replace(NEED, rows_per_second=0)).total_workers == 1


@given(
    st.builds(
        Need,
        st.floats(0, 1e7),
        st.floats(1, 1e6),
        st.floats(0, 1e12),
        st.integers(1, 64),
        st.floats(0, 0.001),
        memory_per_host=st.none() | st.floats(2e9, 1e12),
    )
)
def test_property_the_number_of_machines_is_sufficient_and_minimal(need: Need) -> None:
    """Workers take in all rows, each has a core and enough memory, and one machine fewer is not enough."""
    capacity = compute_capacity(need)
    assert capacity.total_workers * need.rows_per_worker >= need.rows_per_second * (1 - 1e-9)
    assert capacity.num_hosts * capacity.workers_per_host >= capacity.total_workers
    assert capacity.workers_per_host <= need.cores_per_host
    if need.memory_per_host is not None:
        assert capacity.workers_per_host * capacity.memory_per_worker <= need.memory_per_host * (1 + 1e-9)
    if capacity.bound_by == "cores":
        assert (capacity.num_hosts - 1) * need.cores_per_host < capacity.total_workers
