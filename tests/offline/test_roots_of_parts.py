"""A root whose deltas and merged deltas are stored in parts is read, continued with blocks, and rolled back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.offline.recovery import rollback
from riffle_spark.offline.verify import verify
from riffle_spark.state.log import paths
from tests.kit.folders import DATA
from tests.kit.roots.encrypted_root import EncryptedRoot, oracle_of
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.simulated.world import Oracle, World, two_stores

ARCHIVE = DATA / "roots" / "0.1-records8"
SETTINGS: dict[str, Any] = {"num_standbys": 1, "snapshot_chain_links": 16, "retained_versions": 20}


class Query(EncryptedRoot):
    """The query that wrote the old root, started again with the present code."""

    def __init__(self, folder: Path, *, copies: bool) -> None:
        super().__init__(ARCHIVE, folder, copies=copies)
        self.oracle = self.oracle_at(self.version - 1)
        self.start()

    def oracle_at(self, version: int) -> Oracle:
        """Return the oracle after a batch of the old version."""
        return oracle_of(self.expected["states"][str(version)])

    def start(self) -> None:
        """Start a driver of this version."""
        self.world = World(self.local, operators=two_stores(), root=self.root, encryption_keys=self.keys, **SETTINGS)

    def count_links(self) -> tuple[int, int]:
        """Return the number of listed links of parts, and of links in blocks."""
        links = [link for entry in self.world.log().manifest.entries.values() for link in entry.chain]
        in_blocks = sum(link.block is not None for link in links)
        return len(links) - in_blocks, in_blocks

    def format(self) -> int:
        """Return the format of the newest record."""
        tail = self.world.log().tail
        assert tail is not None
        line = (self.world.memory.get(paths.record_name(tail.sequence)) or b"").partition(b"\n")[0]
        return int(json.loads(line)["format"])


@pytest.mark.parametrize("copies", [True, False])
def test_a_query_continues_with_blocks_and_old_parts(tmp_path: Path, *, copies: bool) -> None:
    """A query continues with blocks beside old parts, with correct state after restarts and with or without local
    copies.
    """
    query = Query(tmp_path, copies=copies)
    query.check()
    parts, in_blocks = query.count_links()
    assert (parts > 0, in_blocks, query.format()) == (True, 0, 8)
    query.run(6)
    query.check()
    parts, in_blocks = query.count_links()
    assert (parts > 0, in_blocks > 0, query.format()) == (True, True, 10)
    query.world.cluster.lose("2", disk=True)
    query.world.cluster.add("4")
    query.run(10)
    query.check()
    query.start()
    query.run(2)
    query.check()
    assert not verify(query.root, encryption_keys=query.keys).findings


@pytest.mark.parametrize("batches", [0, 6])
def test_a_root_of_parts_is_rolled_back_and_continued(tmp_path: Path, batches: int) -> None:
    """The root is rolled back to a batch before the upgrade and continued, also after this version has written."""
    query = Query(tmp_path, copies=True)
    query.run(batches)
    checkpoint = str(written_checkpoint(tmp_path / "checkpoint", query.version))
    rollback(query.root, 38, checkpoint, execute=True)
    query.oracle, query.version = query.oracle_at(38), 39
    query.start()
    query.check()
    query.run(8)
    query.check()
    verified = verify(query.root, encryption_keys=query.keys)
    assert not verified.findings
