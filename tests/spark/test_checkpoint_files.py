"""Checkpoints written by Spark's two checkpoint file managers: crashes inside a rename, and a change of the class."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, StatefulJob, aggregate, count, sum_
from riffle_spark.spark.checkpoint_files import MANAGER, unsafe_rename_warning
from riffle_spark.spark.engine import inventory
from riffle_spark.spark_installation import find_spark
from tests.kit.streams.streaming import CollectingSink, Feed, run_to_end, settings_in

KEYS = 5


@pytest.fixture
def managers(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """A function that sets the checkpoint file manager: ``default``, or ``renaming`` for local disks."""
    installation = find_spark(os.environ)
    assert installation is not None
    classes = {"default": "", "renaming": installation.renaming_checkpoint_manager}
    assert classes["renaming"]
    before = spark.conf.get(MANAGER, None)

    def choose(name: str) -> None:
        spark.conf.unset(MANAGER) if name == "default" else spark.conf.set(MANAGER, classes[name])

    yield choose
    spark.conf.unset(MANAGER) if before is None else spark.conf.set(MANAGER, before)


class Query:
    """Running totals over files in a folder. Each run has a new job, as after a crash of the driver."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = folder / "kept" / "checkpoint"
        self.sink = CollectingSink()
        self._spark = spark
        self._feed = Feed(folder / "in", "k long, v long")
        self._files = 0

    def run(self, batches: int) -> None:
        """Add ``batches`` files, and run the query with one file per batch."""
        for number in range(self._files, self._files + batches):
            self._feed.add([{"k": k, "v": number} for k in range(KEYS)])
        self._files += batches
        job = self._job()
        job.stop(run_to_end(self._feed.stream(self._spark), job, self.checkpoint))

    def _job(self) -> StatefulJob:
        compute = aggregate(rows=count(), total=sum_("v"))
        settings = settings_in(self.folder / "kept")
        return Stateful("totals", "k", compute, settings=settings).into(self.sink)

    def check(self) -> None:
        """Check that each key has counted each file once."""
        expected = {"rows": self._files, "total": sum(range(self._files))}
        assert self.sink.latest("k") == dict.fromkeys(range(KEYS), expected)


def undo_rename(entry: Path, *, only_checksum: bool) -> None:
    """Undo the rename of an entry in one of Spark's logs, or only that of its checksum."""
    temporary = entry.with_name(f".{entry.name}.0a1b2c3d-0000-4000-8000-000000000000.tmp")
    entry.with_name(f".{entry.name}.crc").rename(entry.with_name(f".{temporary.name}.crc"))
    if not only_checksum:
        entry.rename(temporary)


@pytest.mark.spark
@pytest.mark.newer_spark
@pytest.mark.smoke
@pytest.mark.long
def test_a_query_continues_with_the_other_checkpoint_class(
    spark: SparkSession, tmp_path: Path, managers: Callable[[str], None]
) -> None:
    """A query continues with the other class, because both write the same files."""
    query = Query(spark, tmp_path)
    for name in ("default", "renaming", "default"):
        managers(name)
        query.run(2)
        query.check()
    assert {path.name for path in (query.checkpoint / "offsets").glob("[0-9]*")} == {str(n) for n in range(6)}


@pytest.mark.spark
@pytest.mark.newer_spark
@pytest.mark.long
@pytest.mark.parametrize("only_checksum", [False, True], ids=["before the rename", "before the rename of the checksum"])
def test_a_crash_during_a_rename_loses_and_duplicates_no_row(
    spark: SparkSession, tmp_path: Path, managers: Callable[[str], None], only_checksum: bool
) -> None:
    """Each row counts once if the driver dies before a commit file of Spark is renamed, or before its checksum is."""
    managers("renaming")
    query = Query(spark, tmp_path)
    query.run(3)
    entry = query.checkpoint / "commits" / "2"
    assert entry.with_name(".2.crc").exists()
    undo_rename(entry, only_checksum=only_checksum)
    query.run(2)
    query.check()


@pytest.mark.spark
def test_the_location_of_a_checkpoint_is_read_from_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """The checkpoint location is read from the query in each batch, as a URL."""
    feed = Feed(tmp_path / "in", "k long")
    feed.add([{"k": 1}])
    locations: list[str] = []
    run_to_end(
        feed.stream(spark), lambda batch, _: locations.append(inventory.checkpoint_location(batch)), tmp_path / "c"
    )
    assert locations == [f"file:{tmp_path}/c"]


@pytest.mark.parametrize("scheme", ["s3a", "S3", "gs"])
def test_a_checkpoint_in_an_object_store_is_warned_of(scheme: str) -> None:
    """A checkpoint in an object store causes a warning only with the class that needs an atomic rename."""
    name = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    warning = unsafe_rename_warning(name, f"{scheme}://bucket/c")
    assert warning is not None
    assert "RIFFLE-1450" in warning
    assert f"{scheme}://bucket/c" in warning
    assert unsafe_rename_warning("", f"{scheme}://bucket/c") is None
    other = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
    assert unsafe_rename_warning(other, f"{scheme}://bucket/c") is None
    assert unsafe_rename_warning(name, "file:/c") is None
    assert unsafe_rename_warning(name, "hdfs://host/c") is None
