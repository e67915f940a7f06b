"""Snapshots on their way into a member's folder. Knows files that grow. Does not know stores or copies.

    incoming/<store>/<0042>.<snapshot id>

Theory of operation. Bytes are only ever added at a file's end, so whatever is there when a process dies is a beginning
of the snapshot and the next one goes on from it. Nothing is believed before all of it has the checksum that the log
lists: the file was not synced, and the disk may be anything.
"""

from pathlib import Path

import pyarrow as pa

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.copies.disk import disk_refused, incoming_files
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Snapshot

__all__ = ["IncomingSnapshots"]


class IncomingSnapshots:
    """The half-fetched snapshots of one member, for one piece of upkeep at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "incoming"
        self._files = {(*file.address, file.snapshot_id) for file in incoming_files(self._path)}

    def begun(self, address: Address, snapshot: Snapshot) -> int:
        """Return how many bytes of the snapshot are there. What came of another one of the key-group goes."""
        self.forget(address, but=snapshot.id)
        if (*address, snapshot.id) not in self._files:
            return 0
        size = self._file(address, snapshot.id).stat().st_size
        if size <= snapshot.length:
            return size
        self.forget(address)
        return 0

    def add(self, address: Address, snapshot: Snapshot, data: bytes) -> None:
        """Add the next bytes. Raises ``LocalDiskError`` if the disk does not take them."""
        file = self._file(address, snapshot.id)
        self._files.add((*address, snapshot.id))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as opened:
                opened.write(data)
        except OSError as error:
            raise disk_refused(f"a snapshot cannot be kept: {error}", file) from error

    def table(self, address: Address, snapshot: Snapshot) -> pa.Table:
        """Return the rows of a snapshot that has come whole. Raises ``CorruptStateError`` if its bytes are others than
        were sealed: then it goes, to be fetched again.
        """
        with pa.memory_map(str(self._file(address, snapshot.id))) as file:
            data = file.read_buffer()
        try:
            return part_codec.decode(data, snapshot.checksum, paths.snapshot(*address, snapshot.id))
        except CorruptStateError:
            self.forget(address)
            raise

    def move(self, address: Address, snapshot: Snapshot, path: Path) -> None:
        """Move a snapshot that has come whole, unchecked, to where a copy takes it from."""
        self._file(address, snapshot.id).replace(path)
        self._files.discard((*address, snapshot.id))

    def forget(self, address: Address, but: str = "") -> None:
        """Remove what has come of a key-group's snapshots, except of the one named."""
        for store, key_group, snapshot_id in [file for file in self._files if file[:2] == address and file[2] != but]:
            self._file(address, snapshot_id).unlink(missing_ok=True)
            self._files.discard((store, key_group, snapshot_id))

    def _file(self, address: Address, snapshot_id: str) -> Path:
        store, key_group = address
        return self._path / store / f"{key_group:04d}.{snapshot_id}"
