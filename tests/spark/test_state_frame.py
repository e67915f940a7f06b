"""State and its changes as Spark frames, by the function ``state_frame`` and by the data source ``riffle_state``."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import read_state, register_state_source, state_frame
from riffle_spark.errors import ConfigError, RefusedError, RiffleError
from riffle_spark.offline.recovery import adopt
from riffle_spark.offline.savepoints import Savepoints
from riffle_spark.spark.state_request import StateRequest, parse_options
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.schemas.variable_kinds import TIMER
from tests.kit.root_commands import read_json
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.simulated.world import World, rows_of, two_stores
from tests.protocol.test_encrypted_query import EncryptedQuery
from tests.testing.test_harness_processors import baskets, took

pytestmark = pytest.mark.newer_spark

ADDED = ("k", "key_group", "version", "due_ms")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A simulated query after four batches, with its root in a folder."""
    world = World(
        tmp_path / "copies",
        operators=two_stores(),
        root=f"file://{tmp_path}/state",
        executors=["1"],
        retained_versions=20,
    )
    for version in range(4):
        world.batch(version, rows_of(*((f"k{n}", n, n) for n in range(version, version + 5))))
    return world


def content(frame: DataFrame) -> dict[str, tuple[Any, ...]]:
    """Return the value columns of each key."""
    names = [name for name in frame.columns if name not in (*ADDED, "batch_id", "change_type")]
    return {row["k"]: tuple(row[name] for name in names) for row in frame.collect()}


def expected(world: World, store: str, version: int) -> dict[str, tuple[Any, ...]]:
    """Return the same rows as ``read_state`` returns them."""
    rows = read_state(world.home.root, store, version=version).read_all().to_pylist()
    return {row["k"]: tuple(value for name, value in row.items() if name not in ADDED) for row in rows}


def source(spark: SparkSession, root: str, **options: object) -> DataFrame:
    """Return a frame from the data source."""
    register_state_source(spark)
    return spark.read.format("riffle_state").options(**{name: str(value) for name, value in options.items()}).load(root)


@pytest.mark.spark
def test_a_version_of_a_store_is_a_frame(spark: SparkSession, world: World) -> None:
    """A frame has the newest or an older version of a store, with all or some keys, or the changes between
    two batches.
    """
    root = world.home.root
    for version in (3, 1):
        for store in ("totals", "tails"):
            assert content(state_frame(spark, root, store, version=version)) == expected(world, store, version)
    assert {*content(state_frame(spark, root, "totals", keys=["k3", "eve"]))} == {"k3"}
    changes = state_frame(spark, root, "totals", changes=(2, None))
    assert {(row.batch_id, row.change_type) for row in changes.collect()} == {(2, "update"), (3, "update")}
    assert content(changes.where("batch_id = 3")) == {
        key: value for key, value in expected(world, "totals", 3).items() if key in {f"k{n}" for n in range(3, 8)}
    }


@pytest.mark.spark
@pytest.mark.long
def test_the_options_of_the_object_store_come_from_the_session(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options of the object store come from the session's ``spark.riffle`` settings."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    settings = {"spark.riffle.s3_endpoint": "http://127.0.0.1:9", "spark.riffle.s3_patience": "1 s"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        with pytest.raises(RiffleError, match=r"127\.0\.0\.1:9"):
            state_frame(spark, "s3://bucket/state", "totals")
    finally:
        for name in settings:
            spark.conf.unset(name)


@pytest.mark.spark
@pytest.mark.long
def test_a_savepoint_can_be_read_as_a_version(spark: SparkSession, world: World) -> None:
    """A savepoint's name can be used as a version, in the function and on the command line."""
    root = world.home.root
    before = expected(world, "totals", 3)
    Savepoints(root).create("release")
    world.start()
    world.batch(4, rows_of(("k0", 5, 5)))
    assert content(state_frame(spark, root, "totals", version="savepoint:release")) == before
    shown = read_json("state", "diff", root, "--store", "totals", "--from", "savepoint:release")
    assert [(change["change"], change["after"]["k"]) for change in shown["changes"]] == [("update", "k0")]


@pytest.mark.spark
@pytest.mark.long
def test_encrypted_state_is_a_frame_only_if_tasks_have_the_keys(spark: SparkSession, tmp_path: Path) -> None:
    """Encrypted state is a frame if the tasks can read the encryption keys. Otherwise it is refused."""
    query = EncryptedQuery(tmp_path, "a", root=f"file://{tmp_path}/state")
    query.run(4)
    frame = state_frame(spark, query.world.home.root, "totals", encryption_keys=f"file:{query.file}")
    assert {row.k: (row["count"], row.total) for row in frame.collect()} == query.oracle.totals
    with pytest.raises(RefusedError, match="RIFFLE-1558"):
        state_frame(spark, query.world.home.root, "totals")


@pytest.mark.spark
@pytest.mark.long
def test_variables_and_timers_of_a_processor_are_frames(spark: SparkSession, tmp_path: Path) -> None:
    """The variables and timers of a processor are frames with the rows of ``read_state``."""
    root = f"file://{tmp_path}/state"
    with baskets() as query:
        query.feed(took("pen", "ink", "pen") + took("cup", user="bob"))
        objects = open_store(query.root)
        for name in objects.list(""):
            open_store(root).put_if_absent(name, objects.get(name) or b"")
    for variable in ("count", "taken", "kinds", TIMER):
        rows = [row.asDict() for row in state_frame(spark, root, variable=variable).collect()]
        table = read_state(root, variable=variable).read_all()
        assert table.num_rows
        assert sorted(rows, key=repr) == sorted(table.to_pylist(), key=repr)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.needs_spark4("data sources in Python")
def test_the_data_source_has_the_rows_of_state_frame(spark: SparkSession, world: World) -> None:
    """The data source has the function's rows, with versions, keys, key-groups and a change feed. Wrong options are
    refused.
    """
    root = world.home.root
    frame = source(spark, root, store="totals")
    assert content(frame) == expected(world, "totals", 3)
    assert content(source(spark, root, store="tails", version=0)) == expected(world, "tails", 0)
    assert {*content(source(spark, root, store="totals", keys='["k1", "k7"]'))} == {"k1", "k7"}
    group = frame.collect()[0].key_group
    only = source(spark, root, store="totals", keyGroups=str(group)).collect()
    assert {row.key_group for row in only} == {group}
    feed = source(spark, root, store="totals", readChangeFeed="true", changeStartBatchId=0, changeEndBatchId=1)
    assert {row.batch_id for row in feed.collect()} == {0, 1}
    for options in ({"stroe": "totals"}, {"store": "other"}, {"store": "totals", "version": "x"}):
        with pytest.raises(PySparkException, match="RIFFLE-"):
            source(spark, root, **options).collect()


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.needs_spark4("data sources in Python")
def test_a_stream_has_the_changes_of_each_batch_once(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """A stream of the data source has the changes of each batch once, and continues from its checkpoint."""
    register_state_source(spark)
    seen: list[tuple[int, str, int]] = []

    def run() -> None:
        stream = spark.readStream.format("riffle_state").option("store", "totals").option("readChangeFeed", "true")
        frame = stream.option("changeStartBatchId", "1").load(world.home.root)
        writer = frame.writeStream.foreachBatch(
            lambda rows, _: seen.extend((row.batch_id, row.k, row["count"]) for row in rows.collect())
        )
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()

    run()
    assert {batch for batch, _, _ in seen} == {1, 2, 3}
    world.batch(4, rows_of(("k0", 1, 1)))
    before = len(seen)
    run()
    assert seen[before:] == [(4, "k0", 2)]


def test_options_are_parsed_whatever_their_case() -> None:
    """Options are parsed in any case, together with settings of the object store."""
    request = parse_options(
        {"PATH": "file:///r", "keygroups": "0,3,8-10", "KEYS": '[1, [2, "a"]]', "s3_endpoint": "http://h"}
    )
    assert (request.root, request.key_groups, request.json_keys) == ("file:///r", (0, 3, 8, 9, 10), (1, [2, "a"]))
    assert request.options.s3.endpoint == "http://h"
    wrong_options = [{"keys": "ann"}, {"keys": "[]"}, {"keyGroups": "1-"}, {"readChangeFeed": "yes"}, {"pth": ""}, {}]
    for wrong in (*wrong_options, {"changeEndBatchId": "last"}):
        with pytest.raises(ConfigError):
            parse_options({"path": "file:///r", **wrong} if wrong else {})


def rows_in_python(root: str, **options: object) -> list[dict[str, Any]]:
    """Return the rows of the data source as Spark reads them in Python processes, which have no session."""
    from riffle_spark.spark.state_source import StateSource

    source = StateSource({"path": root, **{name: str(value) for name, value in options.items()}})
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
    rows = [row for piece in reader.partitions() for batch in reader.read(piece) for row in batch.to_pylist()]
    assert all(list(row) == source.schema().names for row in rows)
    assert not list(reader.read(None))
    return rows


@pytest.mark.needs_spark4("data sources in Python")
def test_the_data_source_reads_state_without_a_session(world: World) -> None:
    """The data source reads a version, some keys, some key-groups and a change feed in a process without a session."""
    root = world.home.root
    all_rows = rows_in_python(root, store="totals", version=2)
    assert {row["k"]: (row["count"], row["total"]) for row in all_rows} == expected(world, "totals", 2)
    groups = sorted({row["key_group"] for row in all_rows})
    some = rows_in_python(root, store="totals", version=2, keyGroups=f"{groups[0]}-{groups[1]}")
    assert {row["key_group"] for row in some} == {*groups[:2]}
    assert {row["k"] for row in rows_in_python(root, store="totals", keys='["k1", "k9"]')} == {"k1"}
    feed = rows_in_python(root, store="totals", readChangeFeed="true", changeStartBatchId=1, changeEndBatchId=2)
    assert {row["batch_id"] for row in feed} == {1, 2}


@pytest.mark.needs_spark4("data sources in Python")
def test_a_stream_of_changes_continues_unless_the_query_is_rolled_back(world: World) -> None:
    """A stream has the changes after its start. It is refused after a rollback, because it may have read changes of
    batches that no longer exist.
    """
    from riffle_spark.spark.state_source import StateSource

    options = {"path": world.home.root, "store": "totals", "readChangeFeed": "true"}
    source = StateSource(options)
    reader = pickle.loads(pickle.dumps(source.streamReader(source.schema())))
    before = reader.initialOffset()
    assert before == reader.latestOffset(), "without a start only later changes are read"
    assert reader.partitions(before, before) == []
    world.batch(4, rows_of(("k0", 1, 1)))
    pieces = reader.partitions(before, reader.latestOffset())
    rows = [row for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]
    assert [(row["batch_id"], row["k"], row["count"]) for row in rows] == [(4, "k0", 2)]
    started = StateSource({**options, "changeStartBatchId": "2"}).streamReader(source.schema())
    assert started.initialOffset() == {**before, "batch": 1}
    with pytest.raises(ConfigError, match="RIFFLE-1569"):
        reader.partitions(before, {**before, "rollbacks": before["rollbacks"] + 1})
    with pytest.raises(ConfigError, match="RIFFLE-1568"):
        StateSource({"path": world.home.root, "store": "totals"}).streamReader(source.schema())


@pytest.mark.needs_spark4("data sources in Python")
@pytest.mark.parametrize("cause", ["adopt", "restore"])
def test_a_stream_of_changes_ends_if_batches_are_numbered_anew(world: World, tmp_path: Path, cause: str) -> None:
    """After an adopt, or a restore of the root, batches get numbers that a stream has read. It fails instead of
    leaving their changes out.
    """
    from riffle_spark.spark.state_source import StateSource

    backup = {name: world.memory.get(name) or b"" for name in world.memory.list("")}
    world.batch(4, rows_of(("k0", 1, 1)))
    source = StateSource({"path": world.home.root, "store": "totals", "readChangeFeed": "true"})
    reader = source.streamReader(source.schema())
    before = reader.latestOffset()
    if cause == "adopt":
        adopt(world.home.root, str(written_checkpoint(tmp_path / "new", 2, "another")), execute=True)
    else:
        world.memory.delete(world.memory.list(""))
        for name, data in backup.items():
            world.memory.put_if_absent(name, data)
    with pytest.raises(ConfigError, match="RIFFLE-1791"):
        reader.partitions(before, reader.latestOffset())
    old = {name: value for name, value in before.items() if name != "query"}
    assert reader.partitions(old, {**before, "query": "another"}) == []


def test_a_change_feed_needs_a_first_batch_and_takes_no_keys(world: World) -> None:
    """A change feed without a first batch, or for some keys only, is refused with the option to set."""
    feed = StateRequest(world.home.root, "totals", has_changes=True)
    with pytest.raises(ConfigError, match="RIFFLE-1565") as refused:
        feed.split()
    assert "changeStartBatchId" in refused.value.remedy
    with pytest.raises(ConfigError, match="RIFFLE-1564") as refused:
        StateRequest(world.home.root, "totals", keys=["k1"], has_changes=True, first_batch=0).split()
    assert "keyGroups" in refused.value.remedy
