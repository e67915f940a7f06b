"""Estimate the workers, hosts, memory and disk that a query needs, with its standbys."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from riffle_spark import setting_values as values
from riffle_spark.errors import ConfigError

_SIZE: Final = values.number(0, 1e18)
_OPTIONS: Final[Mapping[str, tuple[str, values.Check]]] = {
    "rows_per_second": ("--rows-per-second", _SIZE),
    "rows_per_worker": ("--rows-per-worker", values.number(1e-9)),
    "state_bytes": ("--state-bytes", _SIZE),
    "cores_per_host": ("--cores", values.whole(1)),
    "cache_fraction": ("--cache-fraction", values.share),
    "rows_in_flight": ("--rows-in-flight", _SIZE),
    "row_bytes": ("--row-bytes", _SIZE),
    "memory_per_host": ("--memory-bytes", values.optional(values.number(1, 1e18))),
    "num_standbys": ("--standbys", values.whole(0)),
    "changed_bytes_per_second": ("--changed-bytes-per-second", _SIZE),
}
"""The command-line option and the check of each figure."""


@dataclass(frozen=True, slots=True)
class Need:
    """The load of a query. ``rows_per_second`` is the peak. A worker is a slot.

    A worker has ``cache_fraction`` of its state in memory, and ``rows_in_flight`` rows of ``row_bytes``. A host has
    ``cores_per_host`` and, if known, ``memory_per_host`` bytes for all its workers.
    """

    rows_per_second: float
    rows_per_worker: float
    state_bytes: float
    cores_per_host: int = 4
    cache_fraction: float = 0.1
    rows_in_flight: float = 0.0
    row_bytes: float = 100.0
    memory_per_host: float | None = None
    num_standbys: int = 0
    changed_bytes_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity for a load. ``bound_by`` determines the number of hosts: cores or memory.

    ``disk_bytes`` and ``written_bytes_per_second`` are totals of the cluster, including standbys.
    """

    total_workers: int
    state_per_worker: float
    memory_per_worker: float
    num_hosts: int
    workers_per_host: int
    bound_by: str
    disk_bytes: float
    written_bytes_per_second: float


def compute_capacity(need: Need) -> Capacity:
    """Return the workers, hosts, memory and disk that a load needs. Raises ``ConfigError`` for invalid figures, and
    if a worker does not fit on a host.

    >>> compute_capacity(Need(rows_per_second=100_000, rows_per_worker=9_000, state_bytes=120e9)).total_workers
    12
    """
    for name, (option, check) in _OPTIONS.items():
        values.checked(option, getattr(need, name), check, remedy="Correct it.", where="capacity")
    workers = max(1, math.ceil(need.rows_per_second / need.rows_per_worker))
    state = need.state_bytes / workers
    memory = state * need.cache_fraction + need.rows_in_flight * need.row_bytes
    by_cores = math.ceil(workers / need.cores_per_host)
    by_memory = _count_hosts_by_memory(need, workers, memory)
    hosts = max(by_cores, by_memory)
    copies = 1 + need.num_standbys
    return Capacity(
        workers,
        state,
        memory,
        hosts,
        math.ceil(workers / hosts),
        "memory" if by_memory > by_cores else "cores",
        need.state_bytes * copies,
        need.changed_bytes_per_second * copies,
    )


def _count_hosts_by_memory(need: Need, workers: int, memory: float) -> int:
    """Return how many hosts have the memory for the workers, each of ``memory`` bytes; 0 if the memory of a host
    is unknown. Raises ``ConfigError`` if a host cannot hold one worker.
    """
    if need.memory_per_host is None:
        return 0
    if workers * memory <= need.memory_per_host:
        return 1
    workers_per_host = math.floor(need.memory_per_host / memory)
    if workers_per_host < 1:
        raise ConfigError(
            f"A worker needs {memory:.0f} bytes of memory, but a host has {need.memory_per_host:.0f}.",
            remedy="Use larger hosts, or more workers.",
            where="--memory-bytes",
            id="RIFFLE-0252",
        )
    return math.ceil(workers / workers_per_host)
