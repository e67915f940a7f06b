"""Queries of Spark's own that move to riffle in the middle answer what they would have answered without the move."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Settings
from riffle_spark.errors import ConfigError
from riffle_spark.state.log.log import Log
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.restore.follow import restore_tables
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.state.schemas.variable_kinds import INDEX
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import difference, move, play_moved, play_native_part
from tests.kit.queries.query_shape import Shape
from tests.kit.queries.record_checkpoints import MOVED, STORES, half_of, unpack
from tests.kit.queries.record_shapes import is_recorded, recorded

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.needs_spark4("the source statestore")]

KINDS = (
    "aggregate",
    "complete",
    "dedup",
    "groups",
    "inner",
    "key",
    "outer",
    "processor",
    "semi",
    "session",
    "sliding",
    "tumbling",
    "within",
)
OFTEN = ("tumbling_append",)
"""Shapes that every run of the tests moves. `--all` moves all others."""
OF_SPARK_35 = ("dedup_by_time", "within_by_key", "tumbling_append", "outer_full", "groups_until_quiet")
REFUSED = dict.fromkeys(
    (
        "approximate_distinct",
        "approximate_quantiles",
        "distinct_sketches",
        "lists",
        "texts",
    ),
    "RIFFLE-1613",
)
"""Shapes whose state Spark keeps in its own binary form."""


def _is_moved(shape: Shape) -> bool:
    """Return whether a shape has batches one by one on Spark's own stream, and can be moved."""
    is_played = shape.play == "each" and shape.oracle == "stream" and len(shape.batches) > 1
    return is_played and not shape.owed and not shape.differs and shape.kind in KINDS


def _cases() -> list[object]:
    """Return the cases: each shape from each state store."""
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
    """Moved after about half of its batches, it answers each later batch as Spark's own undisturbed run did.

    What riffle stores in another form is refused.
    """
    settings = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    steps = play_native_part(spark, shape, tmp_path, half_of(shape), STORES[store])
    if shape.name in REFUSED:
        with pytest.raises(ConfigError) as caught:
            play_moved(spark, shape, tmp_path, steps, settings)
        assert caught.value.id == REFUSED[shape.name]
        assert not (tmp_path / "state").exists()
        return
    assert difference(play_moved(spark, shape, tmp_path, steps, settings), recorded(shape)) == ""


def state_of(root: str, folder: Path) -> dict[str, list[str]]:
    """Return the rows of each store below a root, without the numbers of elements in lists."""
    objects = open_store(root, StoreOptions())
    log = Log(objects, root)
    tail = log.open()
    assert tail is not None
    state = dict[str, list[str]]()
    for store, text in tail.schemas.items():
        schema = schema_of_text(store, text)
        entries = {group: entry for (name, group), entry in log.manifest.entries.items() if name == store}
        rows = list[str]()
        for table in restore_tables(schema, entries, Reader(objects, None), folder / store).values():
            plain = schema.either(lambda _: table, lambda variables: variables.to_wide_rows(table))  # noqa: B023 - called at once
            names = [name for name in schema.part_schema().names if name != INDEX]
            rows += map(repr, plain.select(names).to_pylist())
        state[store] = sorted(rows)
    return state


@pytest.mark.long
@pytest.mark.parametrize("shape", [SHAPES[name] for name in MOVED], ids=lambda shape: shape.name)
def test_the_state_at_the_end_is_sparks(spark: SparkSession, shape: Shape, tmp_path: Path) -> None:
    """A query that moved in the middle has the state that its undisturbed run on Spark has in the end."""
    roots = {}
    for name, count in (("middle", half_of(shape)), ("end", len(shape.batches))):
        folder = tmp_path / name
        settings = Settings(root=f"file://{folder}/state", local_dir=f"{folder}/local", key_groups=8)
        steps = play_native_part(spark, shape, folder, count, {})
        if name == "middle":
            play_moved(spark, shape, folder, steps, settings)
        else:
            move(spark, shape, folder, settings)
        roots[name] = state_of(f"file://{folder}/state", tmp_path / f"copies of {name}")
    assert roots["middle"] == roots["end"]


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("shape", [SHAPES[name] for name in OF_SPARK_35], ids=lambda shape: shape.name)
def test_a_query_of_spark_35_continues(spark: SparkSession, shape: Shape, store: str, tmp_path: Path) -> None:
    """Checkpoints of Spark 3.5 have no metadata of operators: the query says which they are."""
    settings = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    steps = unpack(shape, store, "3.5.9", tmp_path)
    assert difference(play_moved(spark, shape, tmp_path, steps, settings), recorded(shape)) == ""
