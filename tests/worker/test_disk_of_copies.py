"""Disk, files and descriptors that local copies use.

The tests look only at the folders of members and at ``/proc/self``, whatever the format of the files.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from riffle_spark.messages.upkeep_orders import CensusOrder, SnapshotOrder, UpkeepOrder
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.protocol.operator import Operator, operator_of
from tests.kit.simulated.world import World

ROWS = pa.schema([("k", pa.int64()), ("v", pa.binary())])
DISK_BOUND = 2.2
VALUE_BYTES = 600
STORE = "disk"


class Disk(NamedTuple):
    """Disk use of the folders of members: bytes of blocks, number of files, and how many this process has open or
    mapped.
    """

    bytes: int
    files: int
    opened: int
    mapped: int


def disk_of(base: Path) -> Disk:
    """Return the disk use of a folder."""
    bytes_by_inode = {}
    for path, folders, names in os.walk(base):
        for name in (*folders, *names):
            stat = (Path(path) / name).lstat()
            bytes_by_inode[stat.st_ino] = stat.st_blocks * 512
    files = sum(len(names) for _, _, names in os.walk(base))
    targets = [descriptor.readlink() for descriptor in Path("/proc/self/fd").iterdir() if descriptor.is_symlink()]
    maps = {line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if str(base) in line}
    return Disk(sum(bytes_by_inode.values()), files, sum(target.is_relative_to(base) for target in targets), len(maps))


def last_kept() -> Operator:
    """Return an operator that keeps the last value of each key."""

    def keep(rows: pa.Table, _state: pa.Table) -> tuple[pa.Table, pa.Table]:
        last = dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
        kept = pa.table([list(last), list(last.values())], schema=ROWS)
        return kept.slice(0, 0), kept

    return operator_of(STORE, ["k"], arrow_function(keep, state=ROWS.remove(0), output=ROWS), (), ROWS)


class StoreQuery:
    """A query of one store whose values do not compress."""

    def __init__(self, folder: Path, executors: int, **settings: object) -> None:
        names, settings = [str(number) for number in range(executors)], {"num_standbys": executors - 1, **settings}
        self.world = World(folder, executors=names, operators=[last_kept()], **settings)  # type: ignore[arg-type]
        self.chance, self.version = random.Random(1), 0

    def feed(self, keys: range, count: int) -> None:
        """Run a batch of ``count`` of these keys."""
        drawn = self.chance.sample(keys, count)
        values = [self.chance.randbytes(VALUE_BYTES) for _ in drawn]
        self.world.batch(self.version, pa.table([drawn, values], schema=ROWS))
        self.version += 1

    def snapshot_bytes(self) -> int:
        """Return the bytes of a new snapshot of every key-group that each member holds."""
        world, log = self.world, self.world.log()
        assert log.tail is not None
        cluster, schemas = world.cluster, {STORE: world.operators[0].schema.to_text()}
        home = replace(world.home, log_id=log.tail.log_id)
        total = 0
        for census in cluster.census(cluster.executors(), CensusOrder(home)):
            due = [
                SnapshotOrder(STORE, key_group, log.manifest.entry(STORE, key_group))
                for _, key_group, *_ in census.copies
            ]
            order = UpkeepOrder(
                home, "", log.tail.epoch, log.tail.sequence, schemas, snapshots=tuple(due), seconds=1000.0
            )
            (receipt,) = cluster.upkeep({census.executor: order})
            assert (receipt.errors, len(receipt.snapshots)) == ((), len(due))
            total += sum(snapshot.length for _, _, snapshot in receipt.snapshots)
        return total


@pytest.mark.long
def test_copies_take_at_most_2_2_times_their_snapshots_on_disk(tmp_path: Path) -> None:
    """After batches and upkeep, copies take at most 2.2 times the bytes of their snapshots on disk."""
    query = StoreQuery(tmp_path / "local", 2, key_groups=128)
    query.feed(range(5120), 5120)
    for _ in range(8):
        query.feed(range(5120), 1000)
    at_rest = disk_of(tmp_path / "local")
    needed = query.snapshot_bytes()
    print(f"{at_rest}, snapshots of all that is held {needed}: {at_rest.bytes / needed:.2f}")
    assert at_rest.bytes <= DISK_BOUND * needed
    assert at_rest.opened <= 16


@pytest.mark.long
def test_32_768_key_groups_take_bounded_files_and_descriptors(tmp_path: Path) -> None:
    """The number of open files does not grow with the number of key-groups."""
    query = StoreQuery(tmp_path / "local", 1, key_groups=32_768)
    for batch in range(16):
        query.feed(range(2048 * batch, 2048 * (batch + 1)), 2048)
        if batch % 5 == 0:
            print(batch, disk_of(tmp_path / "local"))
    query.feed(range(32_768), 300)
    at_rest = disk_of(tmp_path / "local")
    print(at_rest)
    assert at_rest.opened + at_rest.mapped <= 512


@pytest.mark.long
def test_a_chain_of_1_000_parts_takes_bounded_files_and_descriptors(tmp_path: Path) -> None:
    """Without a snapshot for a thousand versions, open files and descriptors stay bounded."""
    query = StoreQuery(tmp_path / "local", 2, key_groups=8, snapshot_chain_links=5000, retained_versions=5000)
    seconds = []
    for batch in range(1000):
        began = time.process_time()
        query.feed(range(400), 40)
        seconds.append(time.process_time() - began)
        if batch % 200 == 0:
            print(batch, disk_of(tmp_path / "local"))
    entries = query.world.log().manifest.entries.values()
    assert min(len(entry.chain) for entry in entries) >= 900
    at_rest = disk_of(tmp_path / "local")
    first, last = (sorted(part)[len(part) // 2] for part in (seconds[10:60], seconds[-50:]))
    print(f"{at_rest}, a batch took {first:.3f} s of CPU time at first and {last:.3f} s at last")
    assert at_rest.opened + at_rest.mapped <= 512
