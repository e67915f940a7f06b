"""State of live queries is exported to Parquet files or frames and loaded again without a difference."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import riffle_spark
from apps.demo.servers import S3Server
from riffle_spark import Settings
from riffle_spark.offline.export import export_state, load_state
from riffle_spark.offline.recovery import adopt
from riffle_spark.offline.state_edits import Editor
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.worker.member_folders import options_of
from tests.kit.processors.both_forms import InPandas
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import ROCKSDB, Played, configured, difference, play_part
from tests.kit.queries.query_shape import Shape
from tests.kit.queries.record_checkpoints import half_of
from tests.kit.queries.record_shapes import recorded
from tests.kit.queries.shapes_of_groups import COUNTS, Started
from tests.kit.roots.stored_rows import state_of
from tests.kit.streams.streaming import Feed

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.newer_spark]

CONF = {
    "spark.executorEnv.AWS_ACCESS_KEY_ID": "demo",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "demo-secret",
    "spark.executorEnv.AWS_DEFAULT_REGION": "us-east-1",
}
WHY = Editor("move", "ann", "laptop")
EXPORTED = (
    "sums",
    "special_doubles",
    "decimals",
    "lists",
    "typed_keys",
    "null_struct_key",
    "dedup_by_struct",
    "within_by_key",
    "tumbling_many_functions",
    "session_meeting",
    "session_gap_by_row",
    "inner_by_key",
    "outer_full",
    "semi_within",
    "groups_until_quiet",
    "chain_three",
)
"""One or more shapes for each kind of store."""
OF_SPARK_4 = ("processor_lists_and_maps", "processor_quiet")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> None:
    """Set the server's credentials in this process."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)


def _cases() -> Iterator[object]:
    for name in (*EXPORTED, *OF_SPARK_4):
        marks = [pytest.mark.needs_spark4("transformWithState")] if name in OF_SPARK_4 else []
        yield pytest.param(SHAPES[name], id=name, marks=marks)


@pytest.mark.parametrize("shape", list(_cases()))
def test_exported_stores_continue_in_another_object_store(
    spark: SparkSession, s3_server: S3Server, shape: Shape, tmp_path: Path
) -> None:
    """Stores exported from files to S3, with another number of key-groups, continue in the new root.

    The checkpoint is copied, so no row is missed.
    """
    half = half_of(shape)
    old = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    new = Settings(
        root=f"s3://{s3_server.bucket}/exported/{shape.name}",
        s3_endpoint=s3_server.endpoint,
        local_dir=f"{tmp_path}/local2",
        key_groups=5,
    )
    assert old.root is not None
    assert new.root is not None
    columns, before = play_part(spark, shape, tmp_path, range(half), old, "checkpoint")
    options = options_of(new)
    stored = state_of(old.root, tmp_path / "old copies")
    assert any(stored.values())
    for store in stored:
        export_state(only_root(old.root), store, f"{tmp_path}/out/{store}")
        load_state(new.root, f"{tmp_path}/out/{store}", WHY, key_groups=5, options=options, execute=True)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copied")
    adopt(new.root, str(tmp_path / "copied"), options=options, execute=True)
    assert state_of(new.root, tmp_path / "new copies", options) == stored
    columns, after = play_part(spark, shape, tmp_path, range(half, len(shape.batches)), new, "copied")
    steps = before + after
    played = Played(columns, [rows for rows, _ in steps], [watermark for _, watermark in steps])
    assert difference(played, recorded(shape)) == ""


FRAMES = (
    "sums",
    "special_doubles",
    "decimals",
    "extremes_by",
    "typed_keys",
    "null_struct_key",
    "dedup_by_struct",
    "within_by_key",
    "tumbling_append",
    "session_meeting",
)


@pytest.mark.parametrize("name", FRAMES)
def test_an_export_is_a_frame_from_which_a_query_starts(spark: SparkSession, name: str, tmp_path: Path) -> None:
    """A query that starts from an exported frame has exactly the state that was exported."""
    shape = SHAPES[name]
    old = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    new = Settings(root=f"file://{tmp_path}/state2", local_dir=f"{tmp_path}/local2", key_groups=3)
    assert old.root is not None
    assert new.root is not None
    play_part(spark, shape, tmp_path, range(half_of(shape)), old, "checkpoint")
    before = state_of(old.root, tmp_path / "old copies")
    ((store, rows),) = before.items()
    assert rows
    export_state(only_root(old.root), store, f"{tmp_path}/out")
    frame = spark.read.parquet(f"{tmp_path}/out")
    if shape.kind == "session":
        lists = [column for column, kind in frame.dtypes if kind.startswith("array")]
        frame = frame.selectExpr("k", f"inline(arrays_zip({', '.join(f'`{each}`' for each in lists)}))")
    nothing = {stream: table.slice(0, 0) for stream, table in shape.batches[0].items()}
    unfed = replace(shape, batches=[nothing])
    play_part(spark, unfed, tmp_path / "new", range(1), new, "checkpoint", {store: frame})
    assert state_of(new.root, tmp_path / "new copies") == before


@pytest.mark.needs_spark4("transformWithState")
def test_sparks_query_starts_with_the_variables_of_a_wrapped_query(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own query starts with the counts that a wrapped query left, by ``state_frame``."""
    shape = SHAPES["processor_count"]
    old = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    assert old.root is not None
    _, steps = play_part(spark, shape, tmp_path, range(len(shape.batches)), old, "checkpoint")
    counts = {key: count for rows, _ in steps for key, count in rows}
    frame = riffle_spark.state_frame(spark, only_root(old.root), variable="count")
    feed = Feed(tmp_path / "in", "k string")
    feed.add([{"k": key} for key in (*counts, "new")])
    rows = list[tuple[Any, ...]]()
    with configured(spark, ROCKSDB):
        initial_state = frame.selectExpr("k", "count AS known").groupBy("k")
        grouped = feed.stream(spark).groupBy("k")
        out = grouped.transformWithStateInPandas(InPandas(Started()), COUNTS, "update", "None", initial_state)
        writer = out.writeStream.outputMode("update").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"{tmp_path}/spark")
        writer.foreachBatch(lambda batch, _: rows.extend(map(tuple, batch.collect()))).start().awaitTermination()
    assert dict(rows) == {**{key: count + 1 for key, count in counts.items()}, "new": 1}
