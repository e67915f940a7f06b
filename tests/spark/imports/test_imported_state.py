"""The state that `riffle import` writes, row by row.

Most checkpoints were recorded on Spark 3.5 and are stored with the tests, so only few queries run here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

import riffle_spark
from riffle_spark import Settings
from riffle_spark.errors import ConfigError, ConflictError
from riffle_spark.offline.checkpoint import Checkpoint, times_of_entry
from riffle_spark.spark.imports import import_checkpoint as imports
from riffle_spark.spark.seeds.first_version import FirstVersion
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.objects.open import open_store
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import move, play_native_part
from tests.kit.queries.query_shape import Frames, beside
from tests.kit.queries.record_checkpoints import unpack

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.needs_spark4("the source statestore")]

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def at(seconds: int) -> datetime:
    """Return the recorded time of a second."""
    return START + timedelta(seconds=seconds)


def first_ms_after(seconds: int) -> int:
    """Return the first millisecond after a second, which is when state that ends at this second is due."""
    return int(at(seconds).timestamp() * 1000) + 1


def imported(spark: SparkSession, name: str, folder: Path) -> str:
    """Import the recorded checkpoint of a shape, and return the root."""
    settings = Settings(root=f"file://{folder}/state", local_dir=f"{folder}/local", key_groups=8)
    assert settings.root is not None
    unpack(SHAPES[name], "hdfs", "3.5.9", folder)
    move(spark, SHAPES[name], folder, settings)
    return only_root(settings.root)


def rows_of(root: str, *columns: str, variable: str | None = None) -> list[tuple[Any, ...]]:
    """Return columns of the imported state, sorted."""
    rows = riffle_spark.read_state(root, variable=variable).read_all().select(columns).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def test_a_group_keeps_its_state_and_its_timeout(spark: SparkSession, tmp_path: Path) -> None:
    """A group keeps its state and its timeout. The first record has the watermark of Spark's last batch."""
    root = imported(spark, "groups_until_quiet", tmp_path)
    (group,) = rows_of(root, "k", "due_ms", "has_state", "c", "s", "newest")
    assert group == ("c", first_ms_after(70), True, 2, 6, int(at(60).timestamp() * 1000))
    tail = Log(open_store(root), root).open()
    assert tail is not None
    spark_checkpoint = Checkpoint(str(tmp_path / "checkpoint"))
    assert tail.version == spark_checkpoint.last_committed_batch()
    entry = spark_checkpoint.offsets(tail.version)
    assert entry is not None
    time_ms, watermark_ms = times_of_entry(entry)
    assert watermark_ms > 0
    assert (tail.time_ms, tail.watermark_ms, tail.late_watermark_ms) == (time_ms, watermark_ms, watermark_ms)


def test_buffered_join_rows_keep_their_matches_and_due_times(spark: SparkSession, tmp_path: Path) -> None:
    """Buffered rows of a join keep whether they had a partner. Left rows are due 10 s after their time and right rows 5
    s after.
    """
    root = imported(spark, "outer_full", tmp_path)
    assert rows_of(root, "k", "at", "n", "has_partner", "due_ms", variable="left") == [
        ("a", at(30), 4, True, first_ms_after(40)),
        ("a", at(40), 1, True, first_ms_after(50)),
    ]
    assert rows_of(root, "k", "bt", "m", "has_partner", "due_ms", variable="right") == [
        ("a", at(30), 1, True, first_ms_after(35)),
        ("a", at(33), 2, True, first_ms_after(38)),
        ("a", at(41), 1, True, first_ms_after(46)),
        ("b", at(45), 1, False, first_ms_after(50)),
    ]


def test_a_group_without_a_timeout_has_no_due_time(spark: SparkSession, tmp_path: Path) -> None:
    """A group for which the function has set no timeout has no due time, although the function declares timeouts."""

    def some_end(key: tuple[Any, ...], _: Iterable[Any], state: Any) -> Iterator[Any]:
        state.update((1,))
        if key[0] == "c":
            state.setTimeoutTimestamp(10**15)
        yield pd.DataFrame({"k": [key[0]]})

    def build(frames: Frames) -> DataFrame:
        grouped = frames.timed().groupBy("k")
        return grouped.applyInPandasWithState(some_end, "k string", "c long", "update", "EventTimeTimeout")

    shape = replace(SHAPES["groups_until_quiet"], build=build)
    play_native_part(spark, shape, tmp_path, range(2), {})
    settings = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    move(spark, shape, tmp_path, settings)
    ends = rows_of(only_root(f"file://{tmp_path}/state"), "k", "due_ms")
    assert ends == [("a", None), ("b", None), ("c", 10**15 + 1)]


def test_sessions_in_rocksdb_of_spark_35_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Sessions of Spark 3.5 in RocksDB are refused, and the remedy is one batch on Spark 4."""
    shape = SHAPES["session_meeting"]
    unpack(shape, "rocksdb", "3.5.9", tmp_path)
    root = f"file://{tmp_path}/state"
    with pytest.raises(ConfigError, match="Run the Spark query on Spark 4") as caught:
        move(spark, shape, tmp_path, Settings(root=root, local_dir=f"{tmp_path}/local", key_groups=8))
    assert caught.value.id == "RIFFLE-1613"
    assert not (tmp_path / "state").exists()


def test_the_due_time_of_a_buffered_row_is_rounded_up(spark: SparkSession, tmp_path: Path) -> None:
    """The due time of a buffered row is rounded up to milliseconds, so that a row of the other side at the same
    microsecond still matches.
    """
    shape = replace(SHAPES["outer_full"], batches=beside(("10.0001a1", "10.0001b1"), ("11a1", "11b1")))
    play_native_part(spark, shape, tmp_path, range(1), {})
    root = f"file://{tmp_path}/state"
    move(spark, shape, tmp_path, Settings(root=root, local_dir=f"{tmp_path}/local", key_groups=8))
    assert rows_of(only_root(root), "k", "due_ms", variable="left") == [("a", first_ms_after(20) + 1)]
    assert rows_of(only_root(root), "k", "due_ms", variable="right") == [("b", first_ms_after(15) + 1)]


def test_an_import_fails_if_the_query_commits_a_batch_meanwhile(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The import fails if Spark commits a batch meanwhile, because the state would lack its rows. No record
    is written.
    """
    write = imports.write_first_version  # type: ignore[attr-defined] # it is replaced below
    checkpoint = tmp_path / "checkpoint"

    def write_while_spark_commits(*arguments: Any) -> FirstVersion:
        written = write(*arguments)
        version = Checkpoint(str(checkpoint)).last_committed_batch()
        for log in ("offsets", "commits"):
            shutil.copy(checkpoint / log / str(version), checkpoint / log / str(version + 1))
        return written

    monkeypatch.setattr(imports, "write_first_version", write_while_spark_commits)
    with pytest.raises(ConflictError) as caught:
        imported(spark, "count_by_key", tmp_path)
    assert caught.value.id == "RIFFLE-1615"
    assert Checkpoint(str(tmp_path / "checkpoint-riffle")).find_query_id() is None
    assert not list((tmp_path / "state").rglob("log/*"))
