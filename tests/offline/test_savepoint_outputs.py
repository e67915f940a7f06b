"""Savepoints of queries that deliver sealed output rows after the commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from riffle_spark.offline.savepoints import Savepoints
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.protocol.operator import operator_of
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.savepoints import read_savepoint
from tests.kit.simulated.world import ROWS, World, feed_six_keys

pytestmark = pytest.mark.usefixtures("short_cycles")


def shown_once_stored(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return the value of each row, and store only new keys."""
    rows = rows.select(["k", "v"])
    is_new = pc.invert(pc.is_in(rows["k"], value_set=state["k"].combine_chunks()))
    return rows, rows.filter(is_new), state.select(["k"]).slice(0, 0)


def test_a_savepoint_keeps_the_sealed_output_of_its_batch(tmp_path: Path) -> None:
    """A savepoint keeps the sealed output rows of its batch, also those in objects without state."""
    function = arrow_function(shown_once_stored, state=pa.schema([ROWS.field("v")]), output=ROWS.remove(2))
    operator = operator_of("shown", ["k"], function, (), ROWS)
    query = World(tmp_path, operators=(operator,), snapshot_chain_links=2, deliver_after_commit=True)
    feed_six_keys(query, 0, 5)
    Savepoints(query.home.root).create("a")
    query.start()
    feed_six_keys(query, 6, 30)
    tail = query.log().tail
    assert tail is not None
    savepoint = read_savepoint(query.memory, tail.savepoints[0])
    outputs = {link.object for _, link in savepoint.outputs}
    assert outputs - Manifest(savepoint.entries).object_names()
    assert outputs <= {*query.memory.list("")}
