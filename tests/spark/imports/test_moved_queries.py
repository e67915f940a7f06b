"""Spark's own queries that are moved to riffle return the rows that they would return without the move."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Settings
from riffle_spark.errors import ConfigError
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import ROCKSDB, Played, difference, move, play_moved, play_native_part
from tests.kit.queries.query_shape import Shape
from tests.kit.queries.record_checkpoints import MOVED, STORES, half_of, unpack
from tests.kit.queries.record_shapes import is_recorded, recorded
from tests.kit.roots.stored_rows import state_of

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.needs_spark4("the source statestore")]

KINDS = (
    "aggregate",
    "chain",
    "complete",
    "dedup",
    "form",
    "groups",
    "inner",
    "key",
    "outer",
    "processor",
    "semi",
    "session",
    "sliding",
    "sql",
    "tumbling",
    "within",
)
OFTEN = ("null_struct_key",)
"""The shapes that every test run moves. ``--all`` moves all others."""
FORMATS = {
    "partitions": {"spark.sql.shuffle.partitions": "3"},
    "changelog": {
        **ROCKSDB,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
}
SECOND_FORMAT = {
    **ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}
REFUSED_OF_SPARK_35 = (("session_meeting", "rocksdb"),)
"""Shapes and stores of Spark 3.5 whose state Spark 4 cannot read."""
REFUSED = dict.fromkeys(
    (
        "approximate_distinct",
        "approximate_quantiles",
        "chain_by_window_time",
        "chain_of_sketches",
        "chain_united_then_counted",
        "chain_windows_then_once",
        "distinct_sketches",
        "form_map_in_arrow_after",
        "form_static_after",
        "lists",
        "texts",
    ),
    "RIFFLE-1613",
) | {"form_no_operator": "RIFFLE-1617"}
"""The errors of shapes that cannot be moved: their state is in Spark's binary form, lacks a dropped result, or does not
exist.
"""


LATER = ("chain_counted_then_joined", "chain_joined_after_then_counted", "chain_joined_ever_then_counted", "form_union")
"""Shapes that return some results later after any restart."""


def _is_moved(shape: Shape) -> bool:
    """Return whether the shape runs one batch at a time on Spark's own stream and can be moved."""
    is_played = shape.play == "each" and shape.oracle == "stream" and len(shape.batches) > 1
    return is_played and shape.name not in LATER and not shape.owed and not shape.differs and shape.kind in KINDS


def _cases() -> list[object]:
    """Return the cases: each shape with each state store of Spark."""
    cases = list[object]()
    for name, shape in SHAPES.items():
        for store in STORES if _is_moved(shape) and is_recorded(shape) else ():
            marks = [] if name in OFTEN and store == "hdfs" else [pytest.mark.long]
            cases.append(pytest.param(shape, store, id=f"{name}-{store}", marks=marks))
    return cases


@pytest.mark.parametrize(("shape", "store"), _cases())
def test_a_moved_query_continues_as_if_it_had_not_moved(
    spark: SparkSession, shape: Shape, store: str, tmp_path: Path
) -> None:
    """A query that is moved after half of its batches returns the recorded rows of the query that stays on Spark.

    State in a form that riffle cannot read is refused.
    """
    settings = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    steps = play_native_part(spark, shape, tmp_path, range(half_of(shape)), STORES[store])
    if shape.name in REFUSED:
        with pytest.raises(ConfigError) as caught:
            play_moved(spark, shape, tmp_path, steps, settings)
        assert caught.value.id == REFUSED[shape.name]
        assert not (tmp_path / "state").exists()
        return
    assert difference(play_moved(spark, shape, tmp_path, steps, settings), recorded(shape)) == ""


@pytest.mark.long
@pytest.mark.parametrize("shape", [SHAPES[name] for name in LATER], ids=lambda shape: shape.name)
def test_a_moved_query_of_several_streams_continues_as_after_a_restart(
    spark: SparkSession, shape: Shape, tmp_path: Path
) -> None:
    """A moved query of several streams returns the rows of Spark's own query after a restart.

    Spark forgets the watermark of a stream without new rows at a restart, so some rows are returned later.
    """
    settings = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    half = half_of(shape)
    steps = play_native_part(spark, shape, tmp_path / "moved", range(half), {})
    moved = play_moved(spark, shape, tmp_path / "moved", steps, settings)
    restarted = play_native_part(spark, shape, tmp_path / "restarted", range(half), {})
    restarted += play_native_part(spark, shape, tmp_path / "restarted", range(half, len(shape.batches)), {})
    of_spark = Played(moved.columns, [rows for rows, _ in restarted], [watermark for _, watermark in restarted])
    assert of_spark.steps != recorded(shape).steps, "the restart changes nothing: remove this shape from LATER"
    assert difference(moved, of_spark) == ""


@pytest.mark.long
@pytest.mark.parametrize("conf", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("shape", [SHAPES[name] for name in ("tumbling_append", "outer_full")], ids=lambda s: s.name)
def test_state_of_several_partitions_in_other_formats_moves(
    spark: SparkSession, shape: Shape, conf: Mapping[str, str], tmp_path: Path
) -> None:
    """State in several partitions and state with changelogs can be moved."""
    settings = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    steps = play_native_part(spark, shape, tmp_path, range(half_of(shape)), conf)
    assert difference(play_moved(spark, shape, tmp_path, steps, settings), recorded(shape)) == ""


@pytest.mark.long
def test_sparks_second_state_format_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint in Spark's second state format is refused, because Spark cannot read it as a table."""
    shape = SHAPES["tumbling_append"]
    settings = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    steps = play_native_part(spark, shape, tmp_path, range(half_of(shape)), SECOND_FORMAT)
    with pytest.raises(ConfigError, match="checkpointFormatVersion") as caught:
        play_moved(spark, shape, tmp_path, steps, settings)
    assert caught.value.id == "RIFFLE-1700"
    assert not (tmp_path / "state").exists()


@pytest.mark.long
@pytest.mark.parametrize("shape", [SHAPES[name] for name in MOVED if name != "sums"], ids=lambda shape: shape.name)
def test_the_final_state_does_not_depend_on_when_the_query_moved(
    spark: SparkSession, shape: Shape, tmp_path: Path
) -> None:
    """A query that moved after half of its batches has the same final state as a query that moved at the end.

    Sums of floating-point numbers may differ in the last bit, because they are added in another order.
    """
    roots = {}
    for name, count in (("middle", half_of(shape)), ("end", len(shape.batches))):
        folder = tmp_path / name
        settings = Settings(root=f"file://{folder}/state", local_dir=f"{folder}/local", key_groups=8)
        steps = play_native_part(spark, shape, folder, range(count), {})
        if name == "middle":
            play_moved(spark, shape, folder, steps, settings)
        else:
            move(spark, shape, folder, settings)
        roots[name] = state_of(f"file://{folder}/state", tmp_path / f"copies of {name}")
    assert roots["middle"] == roots["end"]


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("shape", [SHAPES[name] for name in MOVED], ids=lambda shape: shape.name)
def test_a_query_of_spark_35_continues(spark: SparkSession, shape: Shape, store: str, tmp_path: Path) -> None:
    """A checkpoint of Spark 3.5, which has no metadata of operators, can be moved. The query names its operators."""
    settings = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    steps = unpack(shape, store, "3.5.9", tmp_path)
    if (shape.name, store) in REFUSED_OF_SPARK_35:
        with pytest.raises(ConfigError, match="Run the Spark query on Spark 4") as caught:
            play_moved(spark, shape, tmp_path, steps, settings)
        assert caught.value.id == "RIFFLE-1613"
        assert not (tmp_path / "state").exists()
        return
    assert difference(play_moved(spark, shape, tmp_path, steps, settings), recorded(shape)) == ""


@pytest.mark.long
def test_sessions_of_spark_35_in_rocksdb_move_after_a_batch_on_spark_4(spark: SparkSession, tmp_path: Path) -> None:
    """Sessions of Spark 3.5 in RocksDB can be moved after one batch on Spark 4, which writes the missing metadata."""
    shape = SHAPES["session_meeting"]
    settings = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    steps = unpack(shape, "rocksdb", "3.5.9", tmp_path)
    steps += play_native_part(spark, shape, tmp_path, range(len(steps), len(steps) + 1), ROCKSDB)
    assert difference(play_moved(spark, shape, tmp_path, steps, settings), recorded(shape)) == ""
