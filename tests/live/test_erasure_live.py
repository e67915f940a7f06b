"""Keys are erased from a query on executors: from S3, from its savepoints and from the executors' disks."""

from __future__ import annotations

import base64
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, StatefulJob, aggregate, count, read_state, sum_
from riffle_spark.offline.savepoints import Savepoints
from riffle_spark.offline.verify import verify
from riffle_spark.spark.engine import inventory
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.savepoints import read_savepoint, savepoint_objects
from riffle_spark.state.objects.open import open_store, root_id
from tests.kit.root_commands import run_command
from tests.kit.roots.key_search import find_files, find_objects, made_ids
from tests.kit.servers.object_server import ObjectServer
from tests.kit.streams.streaming import CollectingSink, Feed, rest, settings_in, start, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.long]

ALL = 3_000
ERASED = 1_000
BATCHES = 40
ROWS_PER_BATCH = 60


@pytest.fixture(scope="module")
def master(aws_environment: None) -> str:
    """Return the master of two executors, which inherit this process's credentials."""
    return "local-cluster[2,1,600]"


class Query:
    """A query that totals by a 32-byte id, with its root in S3, merged deltas and few retained records."""

    def __init__(self, spark: SparkSession, folder: Path, server: ObjectServer, *, encrypted: bool) -> None:
        self._spark = spark
        self._folder = folder
        self.options = server.options
        settings: dict[str, Any] = {"s3_endpoint": server.endpoint, "s3_region": "us-east-1"}
        if encrypted:
            (folder / "keys").write_text(f"first = {base64.b64encode(os.urandom(32)).decode()}\n")
            (folder / "keys").chmod(0o600)
            settings["encryption_keys"] = f"file:{folder}/keys"
        self.encryption_keys: str | None = settings.get("encryption_keys")
        self.root = server.new_root()
        self.local = folder / "local"
        self.checkpoint = folder / "checkpoint"
        self.settings = settings_in(
            folder, root=self.root, control="on", expected_executors=2, snapshot_chain_links=16, retained_versions=2,
            retained_for=0, **settings,
        )  # fmt: skip
        self.conf = folder / "riffle.toml"
        lines = {**settings, "local_dir": str(self.local)}
        self.conf.write_text("".join(f'{name} = "{value}"\n' for name, value in lines.items()))
        self.feed = Feed(folder / "in", "id string, n long")
        self.expected: dict[bytes, list[int]] = {}

    def add(self, ids: list[bytes], n: int) -> None:
        """Feed a batch with one row per id."""
        self.feed.add([{"id": id_.hex(), "n": n} for id_ in ids])
        for id_ in ids:
            before = self.expected.get(id_, [0, 0])
            self.expected[id_] = [before[0] + 1, before[1] + n]

    def stream(self) -> DataFrame:
        """Return the feed as a stream with ids as bytes."""
        return self.feed.stream(self._spark).selectExpr("unhex(id) id", "n")

    def run(self, batches: list[tuple[list[bytes], int]], savepoint_after: int | None = None) -> None:
        """Run these batches one by one, wait for the upkeep after each, and create a savepoint after one of them."""
        compute = aggregate(rows=count(), total=sum_("n"))
        job: StatefulJob = Stateful("totals", "id", compute, settings=self.settings).into(CollectingSink())
        query = start(self.stream(), job, self.checkpoint, processingTime="50 milliseconds")
        try:
            for place, (ids, n) in enumerate(batches):
                self.add(ids, n)
                wait_for(lambda place=place: len(job.reports) > place or query.exception(), "a batch")  # type: ignore[misc]
                assert query.exception() is None
                rest(job)
                if place == savepoint_after:
                    words = ("create", self.root, "--name", "before", "--wait", "60 s", "--conf-file", self.conf)
                    created = run_command("savepoint", *words)
                    assert created.exit_code == 0, created.output
        finally:
            query.stop()

    def objects_with(self, ids: list[bytes]) -> set[str]:
        """Return the objects below the root that contain one of the ids."""
        return find_objects(self.root, ids, self.options, self.encryption_keys)

    def state(self) -> dict[bytes, list[int]]:
        """Return the state by id."""
        table = read_state(self.root, "totals", options=self.options, encryption_keys=self.encryption_keys).read_all()
        return {row["id"]: [row["rows"], row["total"]] for row in table.to_pylist()}

    def retained_objects(self) -> set[str]:
        """Return the names of the objects that retained records list."""
        log = Log(open_store(self.root, self.options), self.root)
        tail = log.open()
        assert tail is not None
        records = [log.read(sequence) for sequence in range(tail.promised, tail.sequence + 1)]
        return set[str]().union(*log.listed_objects(records, log.first))

    def levels(self) -> set[int]:
        """Return the levels of all links in all chains."""
        log = Log(open_store(self.root, self.options), self.root)
        log.open()
        return {link.level for entry in log.manifest.entries.values() for link in entry.chain}


def local_files(query: Query) -> set[Path]:
    """Return the query's local files on the disks of all executors."""
    return {path for path in query.local.glob(f"{root_id(query.root)}-*/**/*") if path.is_file()}


def kinds(names: set[str]) -> set[str]:
    """Return the kinds of the named objects."""
    parsed = map(paths.parse_object_name, names)
    return {name.kind for name in parsed if name is not None}


def drawn_batches(ids: list[bytes]) -> list[tuple[list[bytes], int]]:
    """Return one batch with all ids, and then small random batches."""
    chance = random.Random(11)
    return [(ids, 1), *((chance.sample(ids, ROWS_PER_BATCH), number) for number in range(2, BATCHES))]


@pytest.mark.usefixtures("nothing_is_young")
@pytest.mark.parametrize("encrypted", [True, False])
def test_a_purge_removes_a_thousand_ids_everywhere(
    encrypted: bool, spark: SparkSession, object_server: ObjectServer, tmp_path: Path
) -> None:
    """A purge removes a thousand ids from snapshots, deltas, merged deltas, the objects of savepoints and local copies.

    Parts are searched as stored, and decrypted and decoded. The query continues exactly with the other ids.
    """
    ids = made_ids(ALL)
    erased = ids[:ERASED]
    query = Query(spark, tmp_path, object_server, encrypted=encrypted)
    assert len(inventory.await_executors(spark, query.settings, expected=2)) == 2
    query.run(drawn_batches(ids), savepoint_after=BATCHES // 2)
    assert query.state() == query.expected

    objects = open_store(query.root, query.options)
    (savepoint,) = Savepoints(query.root, query.options).tail.savepoints
    objects_before = query.objects_with(erased)
    assert query.levels() >= {0, 1}
    assert kinds(objects_before) >= {"snapshot", "delta", "merged"}
    only_savepoint = savepoint_objects(read_savepoint(objects, savepoint)) - query.retained_objects()
    assert objects_before & only_savepoint, "only the savepoint keeps some of them"
    before = local_files(query)
    assert before
    assert bool(find_files(query.local, erased)) is not encrypted

    pq.write_table(pa.table({"id": erased}), tmp_path / "erased.parquet")
    words: tuple[object, ...] = ("--store", "totals", "--keys", tmp_path / "erased.parquet", "--reason", "request 7")
    words = (query.root, *words, "--purge", "--execute", "--conf-file", query.conf)
    purged = run_command("state", "delete", *words)
    assert purged.exit_code == 0, purged.output
    assert "end the savepoints before" in purged.output
    assert query.objects_with(erased) == set()
    assert kinds({*objects.list("")}) == {"snapshot"}, "the purge leaves no delta that the search could not decrypt"
    remaining_rows = {id_: values for id_, values in query.expected.items() if id_ not in set(erased)}
    assert query.state() == remaining_rows

    query.expected = remaining_rows
    remaining_ids = ids[ERASED:]
    query.run([(random.Random(number).sample(remaining_ids, ROWS_PER_BATCH), number) for number in range(8)])
    assert query.state() == query.expected
    assert query.objects_with(erased) == set()
    assert find_files(query.local, erased) == set()
    assert not local_files(query) & before, "files of an encrypted query cannot be searched"
    assert query.objects_with(remaining_ids[:500])
    assert bool(find_files(query.local, remaining_ids)) is not encrypted
    assert (
        verify(query.root, str(query.checkpoint), options=query.options, encryption_keys=query.encryption_keys).findings
        == ()
    )
