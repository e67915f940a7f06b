"""State that is switched to another dispatch, and read from the objects alone."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark import keygroups
from riffle_spark.offline.reshard import read_state
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import schema_of_text
from tests.kit.simulated.world import Oracle, World, drawn_batch, rows_of, two_stores

PARTITIONS = 5
BATCHES = 7
Contents = dict[str, dict[object, tuple[object, ...]]]


def partition_of(keys: pa.Table) -> pa.Table:
    """Return the topic and partition of each key, which are a hash of its bytes over two topics."""
    hashes = keygroups.key_hashes(keys.columns).view(np.int64) % (2 * PARTITIONS)
    topics = pa.array(hashes % 2).cast(pa.string())
    return pa.table({"topic": pc.binary_join_element_wise("topic", topics, "-"), "partition": pa.array(hashes // 2)})


def filled(folder: Path) -> tuple[World, Oracle]:
    """Return a query of two stores and an oracle. Its state has snapshots, chains and deleted keys."""
    world = World(folder, operators=two_stores(), key_groups=16)
    oracle = Oracle()
    chance = random.Random(3)
    for version in range(BATCHES):
        rows = drawn_batch(chance, version) if version < BATCHES - 1 else rows_of(("key-1", -1, 99_999))
        oracle.feed(rows)
        world.batch(version, rows)
    return world, oracle


def tail_of(root: str) -> Record:
    """Return the newest record."""
    tail = Log(open_store(root), root).open()
    assert tail is not None
    return tail


def shards_of(root: str) -> Iterator[tuple[str, int, pa.Table]]:
    """Yield the state of every store and shard, as its objects hold it."""
    objects = open_store(root)
    log = Log(objects, root)
    tail = log.open()
    assert tail is not None
    with tempfile.TemporaryDirectory() as folder:
        for (store, shard), entry in sorted(log.manifest.entries.items()):
            schema = schema_of_text(store, tail.schemas[store])
            yield store, shard, read_state(schema, shard, entry, Reader(objects), Path(folder))


def contents(root: str) -> Contents:
    """Return the state of every store by key. Fail if a key is in two shards."""
    contents: Contents = {}
    for store, _, rows in shards_of(root):
        state = contents.setdefault(store, {})
        for key, *values in zip(*rows.to_pydict().values(), strict=True):
            assert key not in state, f"{key} is in two shards of {store}"
            state[key] = tuple(values)
    return contents


def expected(oracle: Oracle) -> Contents:
    """Return the state that an oracle expects."""
    return {"totals": dict(oracle.totals.items()), "tails": {k: (v,) for k, v in oracle.tails.items()}}
