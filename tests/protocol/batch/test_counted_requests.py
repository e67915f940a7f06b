"""Requests to a real store, as counted by the product: per batch, in upkeep, and for restores. Driver, upkeep and
executors count separately, as on a cluster.
"""

from __future__ import annotations

import math
import random
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark import transform_with_state
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.protocol.ownership.groups import task
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.worker.member_folders import use_store
from tests.kit.processors.visit_processors import Sums
from tests.kit.simulated.world import ROWS as SCHEMA
from tests.kit.simulated.world import World, rows_of, totals

ROWS = rows_of(*((f"key-{n:04d}", n, n) for n in range(600)))
NOTHING = rows_of()
EXECUTORS = ("1", "2", "3")
KEY_GROUPS = 32
SETTLED = 3
"""From this batch on, no one-time work is left."""


def sums() -> Operator:
    """Return an operator that sums per key with a processor."""
    compute = transform_with_state(Sums(), key="k", output="k string, total long").compute
    return operator_of("sums", ["k"], compute, (), SCHEMA)


BOTH_KINDS = pytest.mark.parametrize("operator", [totals(), sums()], ids=["columns", "variables"])


class FileQuery(World):
    """A query of one store whose objects are files."""

    def __init__(
        self, folder: Path, operator: Operator, executors: tuple[str, ...] = EXECUTORS, **settings: Any
    ) -> None:
        kept = {"retained_versions": 1000, "retained_for": 3600}
        settings = {"key_groups": KEY_GROUPS, "snapshot_chain_links": 1000, **kept, **settings}
        self.root = folder / "root"
        super().__init__(
            folder / "local", root=f"file://{self.root}", executors=executors, operators=[operator], **settings
        )
        self.slots_store = use_store(self.home, DirectoryStore(self.root))
        self.upkeep_store = DirectoryStore(self.root)
        self.start()
        self.reports: list[BatchReport] = []

    def feed(self, batches: int = 1, rows: pa.Table = ROWS) -> BatchReport:
        """Run the next batches and return the report of the last one."""
        for _ in range(batches):
            self.reports.append(self.batch(len(self.reports), rows))
        return self.reports[-1]

    def requests_sent(self) -> int:
        """Return the number of requests that driver, slots and upkeep have sent."""
        stores = (self.memory, self.slots_store, self.upkeep_store)
        return sum(sum(store.requests.values()) for store in stores if store is not None)


@BOTH_KINDS
def test_a_batch_sends_one_put_per_slot_and_one_for_the_record(tmp_path: Path, operator: Operator) -> None:
    """A batch sends one put per slot, and one put and one head for the record. The report counts every request."""
    query = FileQuery(tmp_path, operator)
    query.feed(SETTLED)
    for _ in range(3):
        before = query.requests_sent()
        report = query.feed()
        assert report.slots_that_wrote == len(EXECUTORS)
        assert report.requests == {"put": len(EXECUTORS) + 1, "head": 1}
        assert (report.upkeep_requests, query.requests_sent() - before) == ({}, sum(report.requests.values()))


@BOTH_KINDS
def test_a_batch_without_changes_only_puts_its_record(tmp_path: Path, operator: Operator) -> None:
    """A batch without changes only puts its record, whether or not slots had rows before."""
    query = FileQuery(tmp_path, operator)
    query.feed(SETTLED)
    for _ in range(2):
        report = query.feed(rows=NOTHING)
        assert (report.requests, report.upkeep_requests) == ({"put": 1, "head": 1}, {})


@pytest.mark.parametrize(
    ("headers_max", "times"), [pytest.param(1e-9, 2, id="blocks"), pytest.param(math.inf, 1, id="parts")]
)
@BOTH_KINDS
def test_a_standby_fetches_a_delta_with_one_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: Operator, headers_max: float, times: int
) -> None:
    """Each member follows each other member with one get per delta. Parts are fetched once, blocks by both other
    members.
    """
    monkeypatch.setattr(part_codec, "_HEADERS_MAX", headers_max)  # private: no setting
    query = FileQuery(tmp_path, operator, num_standbys=1)
    before = query.feed(SETTLED)
    for _ in range(3):
        report = query.feed()
        assert report.requests == {"put": len(EXECUTORS) + 1, "head": 1}
        assert report.upkeep_requests == {"get": len(EXECUTORS) * (len(EXECUTORS) - 1)}
        assert report.upkeep_fetched_bytes == times * before.sealed_bytes
        before = report


@BOTH_KINDS
def test_a_snapshot_takes_one_put_and_no_get(tmp_path: Path, operator: Operator) -> None:
    """A snapshot takes one put and no get. Upkeep sends no other request."""
    query = FileQuery(tmp_path, operator, snapshot_chain_links=4)
    query.feed(SETTLED + 6)
    later = query.reports[1:]  # the first batch checks the root
    assert [dict(report.upkeep_requests) for report in later] == [
        {"put": report.snapshots} if report.snapshots else {} for report in later
    ]
    assert sum(report.snapshots for report in later) >= KEY_GROUPS


def test_an_idle_query_sends_one_put_per_request_and_none_otherwise(tmp_path: Path) -> None:
    """An idle query sends no request. A request of an operator takes one put, which the next report counts. After an
    idle minute it also takes a get of the newest record and a list.
    """
    query = FileQuery(tmp_path, totals(), num_standbys=1, retained_for=3600)
    query.feed(SETTLED)
    query.rest(3)
    before = query.requests_sent()
    query.driver.operations.pin(0, query.driver.ownership.placement.present.owners[task(0)])
    query.rest(3)
    assert query.requests_sent() - before == 1
    query.rest(100, 60)
    assert query.requests_sent() - before == 1
    query.driver.operations.unpin(0)
    query.rest(3)
    assert query.requests_sent() - before == 4
    report = query.feed()
    assert report.requests == {"put": len(EXECUTORS) + 1, "head": 1}
    read = len(EXECUTORS) * (len(EXECUTORS) - 1) + 1
    assert report.upkeep_requests == {"put": 2, "list": 1, "get": read}


@BOTH_KINDS
def test_a_cold_restore_sends_one_get_per_snapshot_and_delta(tmp_path: Path, operator: Operator) -> None:
    """A cold restore sends one get per snapshot, one per delta, and two for records, because orders have only the
    newest links.
    """
    query = FileQuery(tmp_path, operator, ("1",), snapshot_chain_links=4)
    query.feed(SETTLED + 5)
    query.cluster.lose("1", disk=True)
    query.cluster.add("2")
    entries = query.log().manifest.entries.values()
    snapshots = [entry.snapshot for entry in entries if entry.snapshot is not None]
    deltas = {link.object for entry in entries for link in entry.chain}
    assert (len(snapshots), len(deltas) > 2) == (KEY_GROUPS, True)
    report = query.feed()
    assert report.restores == KEY_GROUPS
    assert report.requests == {"put": 2, "head": 1, "get": len(snapshots) + len(deltas) + 2}
    assert report.fetched_snapshot_bytes == sum(snapshot.length for snapshot in snapshots)
    of_deltas = report.fetched_bytes - report.fetched_snapshot_bytes
    assert of_deltas <= sum((query.root / name).stat().st_size for name in deltas)


RECORD_BYTES = {32: 1865, 64: 2206, 96: 2642, 128: 3059, 160: 3506}
"""The measured size of a record by its number of links: 13.5 bytes per link, of which 8 are a checksum, and 1,340
others. Of the others, schemas take 350, owners and members 140, and row counts 18. The first record has 160 more for
the moves of the first assignment. The digest of the previous record adds one or two bytes.
"""


def test_a_record_takes_a_few_bytes_per_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record lists every chain with a few bytes per link. Names are fixed, because random ones vary in size."""
    chance = random.Random(0)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128), version=4))
    query = FileQuery(tmp_path, totals())
    sizes: dict[int, int] = {}
    for _ in RECORD_BYTES:
        query.feed()
        log = query.log()
        links = sum(len(entry.chain) for entry in log.manifest.entries.values())
        assert log.tail is not None
        sizes[links] = (query.root / paths.record_name(log.tail.sequence)).stat().st_size
    assert sizes.keys() == RECORD_BYTES.keys()
    assert {links: size for links, size in sizes.items() if size > RECORD_BYTES[links]} == {}
