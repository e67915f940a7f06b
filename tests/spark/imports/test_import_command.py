"""The command `riffle import`: its plan, what it writes and leaves unchanged, and what it refuses."""

from __future__ import annotations

import base64
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import pytest
from click.testing import CliRunner, Result
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from apps.demo.servers import S3Server
from riffle_spark.console.main import main
from riffle_spark.errors import ConfigError
from tests.kit.streams.streaming import Feed, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.needs_spark4("the source statestore")]

Build = Callable[[DataFrame], DataFrame]
MODULE = "query_of_import_command"


def by_page(events: DataFrame) -> DataFrame:
    """Count by page."""
    return events.groupBy("page").count()


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """A feed with a batch."""
    feed = Feed(tmp_path / "in", "page string, n long")
    feed.add([{"page": "a", "n": 1}, {"page": "b", "n": 2}, {"page": "a", "n": 3}])
    return feed


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module that the command can import."""
    sys.modules[MODULE] = ModuleType(MODULE)
    yield sys.modules[MODULE]
    del sys.modules[MODULE]


class MovedQuery:
    """A query of Spark's own, its wrapped form and the command that moves it."""

    def __init__(self, spark: SparkSession, feed: Feed, folder: Path, module: ModuleType) -> None:
        self.spark, self.feed, self.folder, self.module = spark, feed, folder, module
        self.root = f"file://{folder}/root"

    def run(self, frame: DataFrame, checkpoint: str, mode: str = "update") -> list[tuple[Any, ...]]:
        """Run a query to the end of its input, and return what its sink got."""
        rows = list[tuple[Any, ...]]()
        writer = frame.writeStream.outputMode(mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"{self.folder}/{checkpoint}")
        writer.foreachBatch(lambda batch, _: rows.extend(map(tuple, batch.collect()))).start().awaitTermination()
        return sorted(rows)

    def native(self, build: Build = by_page) -> list[tuple[Any, ...]]:
        """Run Spark's own query and return its rows."""
        return self.run(build(self.feed.stream(self.spark)), "spark")

    def wrapped(self, build: Build = by_page, settings: Mapping[str, Any] | None = None) -> DataFrame:
        """Return the wrapped query."""
        on = riffle_spark.on(
            self.feed.stream(self.spark), root=self.root, settings=settings_in(self.folder, root=None, **settings or {})
        )
        return build(on)

    def command(self, *options: str, query: Callable[..., object] | None = None, checkpoint: str = "spark") -> Result:
        """Run ``riffle import`` and return its result."""
        self.module.query = query or (lambda _: self.wrapped().writeStream.outputMode("update"))  # type: ignore[attr-defined]
        location = checkpoint if "://" in checkpoint else f"{self.folder}/{checkpoint}"
        arguments = ["import", self.root, "--checkpoint", location, "--query", f"{MODULE}:query", *options]
        return CliRunner().invoke(main, arguments)

    def files(self) -> set[Path]:
        """Return all files except the input."""
        return {path for path in self.folder.rglob("*") if path.is_file() and self.feed.folder not in path.parents}


@pytest.fixture
def moved(spark: SparkSession, feed: Feed, tmp_path: Path, module: ModuleType) -> MovedQuery:
    """A query that can be moved."""
    return MovedQuery(spark, feed, tmp_path, module)


@pytest.mark.long
def test_a_query_moves_and_only_its_new_checkpoint_continues(moved: MovedQuery) -> None:
    """After the move, the wrapped query continues from the new checkpoint only. The plan writes nothing.

    The old checkpoint stays unchanged, and Spark's own query continues from it.
    """
    assert moved.native() == [("a", 2), ("b", 1)]
    with pytest.raises(ConfigError, match="riffle import") as refused:
        moved.run(moved.wrapped(), "spark")
    assert refused.value.id == "RIFFLE-1129"
    moved.root = f"file://{moved.folder}/another-root"
    before = moved.files()
    plan = moved.command()
    assert plan.exit_code == 0, plan.output
    assert "store 'aggregate.page'" in plan.output
    assert moved.files() == before
    done = moved.command("--execute")
    assert done.exit_code == 0, done.output
    assert "store 'aggregate.page': 2 rows" in done.output
    assert {path for path in moved.files() - before if moved.folder / "spark" in path.parents} == set()
    moved.feed.add([{"page": "a", "n": 1}])
    with pytest.raises(ConfigError) as caught:
        moved.run(moved.wrapped(), "spark")
    assert caught.value.id == "RIFFLE-1634"
    assert moved.run(moved.wrapped(), "spark-riffle") == [("a", 3)]
    again = moved.command("--execute")
    assert again.exit_code == 1
    assert "RIFFLE-1619" in again.output
    assert moved.native() == [("a", 3)]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("collect_list(n)", "collect_list"),
        pytest.param("approx_count_distinct(n)", "approx", marks=pytest.mark.long),
        ("max(n)", "max(n)"),
    ],
    ids=["a list", "an approximate count", "a result that is not used"],
)
def test_state_that_spark_keeps_in_another_form_is_refused(moved: MovedQuery, function: str, words: str) -> None:
    """The command refuses state in Spark's binary form and results that Spark dropped, and writes nothing."""
    unused = function == "max(n)"

    def build(events: DataFrame) -> DataFrame:
        results = events.groupBy("page").agg(F.sum("n").alias("s"), F.expr(function).alias("m"))
        return results.select("page", "s") if unused else results

    moved.native(build)
    before = moved.files()
    result = moved.command("--execute", query=lambda _: moved.wrapped(build).writeStream.outputMode("update"))
    assert result.exit_code == 1, result.output
    assert "RIFFLE-1613" in result.output
    assert words in result.output
    assert moved.files() == before


OTHERS: dict[str, tuple[Build, str, str]] = {
    "another operator": (lambda e: e.dropDuplicates(["page"]), "RIFFLE-1622", "distinct.page"),
    "a key of another type": (lambda e: e.groupBy("n").count(), "RIFFLE-1613", "'n'"),
    "another key": (lambda e: e.groupBy("page", "n").count(), "RIFFLE-1613", "columns"),
    "another function": (lambda e: e.groupBy("page").agg(F.avg("n")), "RIFFLE-1613", "buffers"),
    "a distinct count": (lambda e: e.groupBy("page").agg(F.count_distinct("n")), "RIFFLE-1613", "DISTINCT"),
    "no operator": (lambda e: e.where("n > 0"), "RIFFLE-1617", "stateful"),
    "another source": (lambda e: by_page(e.union(e)), "RIFFLE-1621", "sources"),
}


def test_another_query_than_that_of_the_checkpoint_is_refused(moved: MovedQuery) -> None:
    """The command refuses a query with other operators, keys, types, functions or sources, and writes nothing."""
    moved.native()
    before = moved.files()
    for name, (wrapped, error, words) in OTHERS.items():
        query = moved.wrapped(wrapped).writeStream.outputMode("update")
        result = moved.command("--execute", query=lambda _, query=query: query)
        assert (name, result.exit_code) == (name, 1), result.output
        assert error in result.output, (name, result.output)
        assert words in result.output, (name, result.output)
    assert moved.files() == before


def test_unsuitable_frames_roots_and_checkpoints_are_refused(moved: MovedQuery) -> None:
    """The command refuses a frame that is not wrapped, a source without its connector, dispatch by partition, an
    occupied root or new checkpoint, a missing checkpoint, and one without a batch. The query is refused on the old
    checkpoint.
    """
    moved.native()
    for source in ("kafka", "no_such_source"):  # PySpark raises other errors for them.
        result = moved.command(query=lambda session, source=source: session.readStream.format(source).load())
        assert (source, result.exit_code, "RIFFLE-1745" in result.output) == (source, 1, True), result.output
    assert "RIFFLE-1616" in moved.command(query=lambda _: by_page(moved.feed.stream(moved.spark))).output
    by_partition = moved.wrapped(settings={"dispatch": "partition"}).writeStream.outputMode("update")
    assert "RIFFLE-1618" in moved.command(query=lambda _: by_partition).output
    assert "RIFFLE-0124" in moved.command(checkpoint="nothing").output
    (moved.folder / "spark-riffle").mkdir()
    (moved.folder / "spark-riffle" / "metadata").write_text("{}")
    assert "RIFFLE-1620" in moved.command("--execute").output
    shutil.rmtree(moved.folder / "spark-riffle")
    before = moved.files()
    plan = moved.command()
    assert (plan.exit_code, "store 'aggregate.page'" in plan.output) == (0, True), plan.output
    assert moved.files() == before
    assert moved.command("--execute").exit_code == 0
    assert "RIFFLE-1619" in moved.command("--execute").output
    for root, error in ((moved.root, "RIFFLE-1634"), (f"{moved.root}-2", "RIFFLE-1129")):
        moved.root = root
        with pytest.raises(ConfigError, match=error):
            moved.run(moved.wrapped(), "spark")
    for path in (moved.folder / "spark/commits").iterdir():
        path.unlink()
    moved.root += "-3"
    assert "RIFFLE-1614" in moved.command().output


@pytest.mark.long
def test_an_uncommitted_batch_of_spark_runs_in_the_wrapped_query(moved: MovedQuery) -> None:
    """A planned batch that Spark's own query did not commit runs in the wrapped query, and its rows count once."""
    moved.native()
    moved.feed.add([{"page": "a", "n": 1}, {"page": "c", "n": 1}])

    def fail(*_: object) -> None:
        raise OSError("the sink is full")

    writer = by_page(moved.feed.stream(moved.spark)).writeStream.outputMode("update").foreachBatch(fail)
    query = writer.option("checkpointLocation", f"{moved.folder}/spark").start()
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        query.awaitTermination()
    assert moved.command("--execute").exit_code == 0
    assert moved.run(moved.wrapped(), "spark-riffle") == [("a", 3), ("c", 1)]


@pytest.mark.long
def test_a_checkpoint_in_s3_is_refused_without_sparks_connector(
    moved: MovedQuery, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Spark's S3 connector in the session, the import of a checkpoint in S3 is refused and writes nothing."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    moved.native()
    client = boto3.client("s3", **s3_server.client_arguments)
    for path in (moved.folder / "spark").rglob("*"):
        if path.is_file():
            client.upload_file(str(path), s3_server.bucket, f"imported/{path.relative_to(moved.folder / 'spark')}")
    before = moved.files()
    query = moved.wrapped(settings={"s3_endpoint": s3_server.endpoint}).writeStream.outputMode("update")
    refused = moved.command(
        "--execute",
        "--s3-endpoint",
        s3_server.endpoint,
        query=lambda _: query,
        checkpoint=f"s3a://{s3_server.bucket}/imported",
    )
    assert refused.exit_code == 1, refused.output
    assert "RIFFLE-1700" in refused.output
    assert "new Spark session" in refused.output
    assert moved.files() == before
    assert not client.list_objects_v2(Bucket=s3_server.bucket, Prefix="imported-riffle").get("Contents")


@pytest.mark.long
def test_moved_state_is_encrypted_like_other_state(moved: MovedQuery) -> None:
    """MovedQuery state is encrypted with the query's encryption keys, and the query continues with them."""
    keys = moved.folder / "keys"
    keys.write_text(f"one = {base64.b64encode(bytes(range(32))).decode()}\n")
    settings = {"encryption_keys": f"file:{keys}"}
    moved.native()
    query = moved.wrapped(settings=settings).writeStream.outputMode("update")
    assert moved.command("--execute", query=lambda _: query).exit_code == 0
    snapshots = [path for path in (moved.folder / "root").rglob("*") if path.parent.name == "snapshot"]
    assert snapshots
    assert all(path.read_bytes().startswith(b"RFE") for path in snapshots)
    moved.feed.add([{"page": "b", "n": 1}])
    assert moved.run(moved.wrapped(settings=settings), "spark-riffle") == [("b", 2)]
