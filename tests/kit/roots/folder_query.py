"""A query of one store on a root in a folder, run without Spark, and roots of old versions."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pyarrow as pa

from riffle_spark.protocol.operator import Operator
from riffle_spark.state.objects.open import root_id
from tests.kit.simulated.world import World

__all__ = ["FolderQuery", "unpack_root"]

_NOW_MS = 1_767_225_600_000


def unpack_root(archive: Path, folder: Path, *, copies: bool) -> None:
    """Unpack an archive below ``folder``, so that a new query finds the local copies.

    Without ``copies`` delete them.
    """
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (local,) = (folder / "local").iterdir()
    local.rename(local.with_name(f"{root_id(f'file://{folder}/state')}-{local.name.partition('-')[2]}"))
    if not copies:
        shutil.rmtree(folder / "local")


class FolderQuery:
    """The query on the root ``folder/state``, with local copies in ``folder/local``. ``version`` is its next batch."""

    def __init__(self, folder: Path, operator: Operator, query_id: str) -> None:
        root = f"file://{folder}/state"
        self._world = World(folder / "local", executors=["1"], operators=[operator], root=root, key_groups=4)
        self._world.query_id = query_id
        tail = self._world.log().tail
        self.version = 0 if tail is None else tail.version + 1
        self._sink = self._world.sinks[operator.store]

    def feed(self, rows: pa.Table) -> pa.Table:
        """Run the next batch and return its output."""
        self._world.batch(self.version, rows, time_ms=_NOW_MS)
        self.version += 1
        return list(self._sink.by_id.values())[-1]
