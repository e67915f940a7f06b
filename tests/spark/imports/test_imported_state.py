"""The state that `riffle import` writes, row by row, from checkpoints of Spark 3.5 that are stored with the tests.

No query runs, so these tests are quick.
"""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import riffle_spark
from riffle_spark import Settings
from riffle_spark.errors import ConflictError
from riffle_spark.offline.checkpoint import Checkpoint, times_of_entry
from riffle_spark.spark.imports import import_checkpoint as imports
from riffle_spark.spark.seeds.first_version import FirstVersion
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.objects.open import open_store
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import move
from tests.kit.queries.record_checkpoints import unpack

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.needs_spark4("the source statestore")]

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def at(seconds: int) -> datetime:
    """Return a time of the recorded rows."""
    return START + timedelta(seconds=seconds)


def first_ms_after(seconds: int) -> int:
    """Return the first millisecond after such a time, which is when the element of a store is due."""
    return int(at(seconds).timestamp() * 1000) + 1


def imported(spark: SparkSession, name: str, folder: Path) -> str:
    """Import the recorded checkpoint of a shape, and return the root."""
    settings = Settings(root=f"file://{folder}/state", local_dir=f"{folder}/local", key_groups=8)
    assert settings.root is not None
    unpack(SHAPES[name], "hdfs", "3.5.9", folder)
    move(spark, SHAPES[name], folder, settings)
    return only_root(settings.root)


def rows_of(root: str, *columns: str, variable: str | None = None) -> list[tuple[Any, ...]]:
    """Return columns of the imported state."""
    rows = riffle_spark.read_state(root, variable=variable).read_all().select(columns).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def test_a_group_keeps_its_state_and_its_timeout(spark: SparkSession, tmp_path: Path) -> None:
    """The first batch has the watermark of Spark's last one, by which rows are late."""
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


def test_rows_of_a_join_keep_their_partners_and_ends(spark: SparkSession, tmp_path: Path) -> None:
    """Left rows end 10 s after their time and right ones 5 s, once no row of the other side can match them."""
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


def test_a_query_that_commits_a_batch_meanwhile_is_not_moved(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its rows would be missing from the state. No record lists what was written."""
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
