"""The ledger distinguishes lost, doubled and wrong events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from apps.demo.job import counted_by, counted_minutes
from apps.demo.ledger import MINUTES, Difference, Events, Ledger, compare, minutes_of


def ledger(counts: list[int], sums: list[int]) -> Ledger:
    """Return a ledger of two short lists."""
    return Ledger(np.array(counts), np.array(sums))


def test_a_ledger_counts_and_sums_each_key() -> None:
    """The ledger has the number of events and the sum of the amounts per key. A key without events has zeros."""
    expected = Ledger.of(Events(np.array([0, 2, 0]), np.array([5, 7, 6])), 4)
    assert expected.counts.tolist() == [2, 0, 1, 0]
    assert expected.sums.tolist() == [11, 0, 7, 0]


def test_lost_and_duplicate_events_do_not_cancel_out() -> None:
    """If one key lost an event and another key has one twice, both are reported."""
    assert compare(ledger([5, 5], [10, 10]), ledger([4, 7], [8, 14])) == Difference(lost=1, doubled=2, wrong_keys=2)


def test_a_key_with_a_wrong_sum_and_the_right_count_is_wrong() -> None:
    """A key with the right count but a wrong sum is reported as a wrong key."""
    assert compare(ledger([5, 5], [10, 10]), ledger([5, 5], [10, 11])) == Difference(lost=0, doubled=0, wrong_keys=1)


def test_the_last_batch_of_a_key_counts(tmp_path: Path) -> None:
    """The totals of the highest batch id count. Batch ids are compared as numbers, not as names."""
    write_batch(tmp_path, 9, ["u0", "u1"], [1, 1], [10, 10])
    write_batch(tmp_path, 10, ["u1"], [2], [30])
    counted_ledger = counted_by(tmp_path, 3)
    assert counted_ledger.counts.tolist() == [1, 2, 0]
    assert counted_ledger.sums.tolist() == [10, 30, 0]


def test_only_complete_minutes_in_listed_files_count(tmp_path: Path) -> None:
    """Only complete minutes count. Only files that Spark's metadata list count, and a repeated minute is doubled."""
    expected = minutes_of(Events(np.zeros(600, np.int64), np.arange(600)), partitions=2)
    assert expected.counts.tolist() == [30] * (MINUTES - 2)
    assert expected.sums[:2].tolist() == [sum(range(0, 60, 2)), sum(range(60, 120, 2))]
    (tmp_path / "_spark_metadata").mkdir()
    for batch, since in enumerate(([120, 60], [180])):
        columns = {"since": since, "count": [30] * len(since), "total": [index * 30 - 930 for index in since]}
        pq.write_table(pa.table(columns), tmp_path / f"{batch}.parquet")
        pq.write_table(pa.table(columns), tmp_path / f"{batch}-broken.parquet")
        entry = f'v1\n{{"path":"file://{tmp_path}/{batch}.parquet"}}'
        (tmp_path / "_spark_metadata" / str(batch)).write_text(entry)
    assert counted_minutes(tmp_path, 4).counts.tolist() == [30, 30, 30, 0]
    assert counted_minutes(tmp_path, 4).sums.tolist() == [870, 2670, 4470, 0]
    (tmp_path / "_spark_metadata" / "2").write_text(entry.replace("1.parquet", "1-broken.parquet"))
    assert counted_minutes(tmp_path, 4).counts.tolist() == [30, 30, 60, 0]


def test_an_unfinished_batch_does_not_count(tmp_path: Path) -> None:
    """A folder without Spark's `_SUCCESS` file is ignored."""
    write_batch(tmp_path, 1, ["u0"], [1], [10])
    (tmp_path / "batch=1" / "_SUCCESS").unlink()
    assert counted_by(tmp_path, 1).counts.tolist() == [0]


def write_batch(folder: Path, batch: int, users: list[str], counts: list[int], sums: list[int]) -> None:
    """Write totals as the job writes them."""
    path = folder / f"batch={batch}"
    path.mkdir()
    pq.write_table(pa.table({"user_id": users, "count": counts, "total": sums}), path / "part-0.parquet")
    (path / "_SUCCESS").touch()
