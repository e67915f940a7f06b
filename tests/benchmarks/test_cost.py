"""The benchmark of cost: what it counts, and the figures that it makes of it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from benchmarks.cost import CASES, CostCase, figure_name, parse_case
from benchmarks.costs.counting_store import CountingStore, kind_of
from benchmarks.costs.figures import Counted, Space, figures_of
from benchmarks.costs.load import ROW_BYTES, CostLoad, KeyPattern

SNAPSHOT = f"rows/key_group=0003/snapshot/{7:020d}-1-{9:032x}"
DELTA = f"delta/{7:020d}/1-{9:032x}"


def test_figures_are_relative_to_changed_and_live_bytes() -> None:
    """Puts are relative to changed bytes, the largest space to live bytes, and disks are shared out by copies."""
    counted = Counted(
        batches=10,
        changed_bytes=1_000,
        put_bytes={"delta": 2_000, "snapshot": 5_000, "log": 500},
        read_bytes=3_000,
        local_bytes=8_000,
        requests={"put": 40, "head": 20, "delete": 10},
        copies=2,
    )
    spaces = [
        Space(10_000, stored_bytes=45_000, retained_bytes=20_000, disk_bytes=20_000, copies=2),
        Space(10_000, stored_bytes=40_000, retained_bytes=16_000, disk_bytes=30_000, copies=2),
    ]
    figures = figures_of(counted, spaces)
    assert (figures["put_ratio"], figures["put_ratio_snapshot"], figures["put_ratio_delta"]) == (7.5, 5.0, 2.0)
    assert (figures["read_ratio"], figures["local_ratio"]) == (3.0, 4.0)
    assert (figures["space_ratio"], figures["retained_ratio"], figures["disk_ratio"]) == (2.5, 2.0, 1.5)
    assert (figures["requests_a_batch"], figures["requests_a_changed_million"]) == (7.0, 70_000.0)


def test_the_bill_is_of_a_batch_every_ten_seconds() -> None:
    """A month has 259,200 batches. Four puts and two heads a batch cost 5.39 dollars, 4.5 x 100 GB cost 10.35."""
    counted = Counted(10, 1_000, {}, 0, 0, {"put": 40, "head": 20, "delete": 10}, copies=1)
    figures = figures_of(counted, [Space(10_000, stored_bytes=45_000, retained_bytes=0, disk_bytes=0, copies=1)])
    assert figures["requests_usd"] == pytest.approx(259_200 * (4 * 0.005 + 2 * 0.0004) / 1_000)
    assert figures["storage_usd"] == pytest.approx(4.5 * 100 * 0.023)


def test_a_case_is_named_by_pattern_percent_and_key_groups() -> None:
    """All cases can be parsed; another pattern is refused; a figure's name has no point within the case."""
    assert parse_case("zipf_0.1_1024") == CostCase("zipf", 0.1, 1_024)
    assert len({figure_name("put_ratio", case) for case in CASES}) == len(CASES)
    assert figure_name("put_ratio", "uniform_0.01_128") == "put_ratio.uniform_001_128"
    assert [parse_case(case).key_groups for case in CASES].count(128) == 6
    with pytest.raises(ValueError, match="burst"):
        parse_case("burst_1_128")


def test_patterns_draw_distinct_keys() -> None:
    """A batch changes as many distinct keys as it should. Hot ones are the same, Zipf's are mostly the same."""
    shared = {}
    for name in ("uniform", "hot", "zipf"):
        batches = [set(keys.tolist()) for keys in islice(KeyPattern(name, 10_000, 100).draw(), 3)]
        assert [len(keys) for keys in batches] == [100, 100, 100]
        shared[name] = len(batches[0] & batches[1])
    assert shared["hot"] == 100
    assert shared["uniform"] < 10 < shared["zipf"] < 100


def test_the_store_counts_bytes_by_kind() -> None:
    """Refused puts send their bytes too, but store nothing; deleted objects have no size."""
    store = CountingStore()
    assert [kind_of(name) for name in (DELTA, SNAPSHOT, "log/00000000000000000001", "status")] == [
        "delta",
        "snapshot",
        "log",
        "other",
    ]
    assert store.put_if_absent(DELTA, b"12345")
    assert not store.put_if_absent(DELTA, b"123")
    store.put_if_absent(SNAPSHOT, b"1234")
    store.get(DELTA, 1, 2)
    pieces: list[bytes] = []
    store.copy_to(SNAPSHOT, 0, 3, pieces.append)
    assert (dict(store.put_bytes), store.read_bytes) == ({"delta": 8, "snapshot": 4}, 5)
    assert store.bytes_of([DELTA, SNAPSHOT, DELTA, "log/1"]) == 9
    store.delete([DELTA])
    assert (store.sizes, store.bytes_of([DELTA])) == ({SNAPSHOT: 4}, 0)


def test_a_load_counts_what_its_batches_write(tmp_path: Path) -> None:
    """Deltas of the counted batches have at least the changed bytes, and a standby reads each of them once."""
    load = CostLoad(tmp_path, key_groups=4)
    counted, spaces = load.counted(KeyPattern("uniform", 400, 100), warm_up=2, batches=3)
    assert counted.changed_bytes == 3 * 100 * ROW_BYTES
    assert counted.changed_bytes < counted.put_bytes["delta"] < 3 * counted.changed_bytes
    assert counted.read_bytes == counted.put_bytes["delta"]
    assert counted.requests["list"] == 0
    assert counted.local_bytes > 2 * counted.changed_bytes
    assert len(spaces) == 16
    assert all(s.live_bytes == 400 * ROW_BYTES < min(s.stored_bytes, s.disk_bytes / 2) for s in spaces)
