"""A snapshot's file beside a copy that was begun from it. Knows the file and how its rows are found. Does not know what
the copy has changed since.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.state.copies.lmdb_file import trouble
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.key_codec import local_key
from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.plain_columns import PlainColumns

__all__ = ["FILE", "Base", "make_readable", "written_at"]

FILE = "base.arrow"


class Base:
    """The rows of a base file of so many bytes, sorted by key. Raises ``OSError`` if there is no such file."""

    def __init__(self, path: Path, size_bytes: int, schema: PlainColumns) -> None:
        found = path.stat().st_size
        if found != size_bytes:  # to touch a page beyond the end of a mapped file would kill the process
            raise EOFError(f"{path.name} has {found} bytes, not {size_bytes}")
        self.size_bytes = size_bytes
        self._schema = schema
        self._table = part_codec.fitted(_mapped(path), schema.part_schema())

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._table.num_rows)

    @cached_property
    def _keys(self) -> pa.Array:
        return local_key(self._schema.encoded(self._table))

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of those keys that are there."""
        places = pc.index_in(self._keys, value_set=pa.array(keys, self._keys.type))
        rows = pc.indices_nonzero(places.is_valid())
        values = self._schema.codec.encode(self._table.select(self._schema.state.names).take(rows))
        return dict(zip(self._keys.take(rows).to_pylist(), values.to_pylist(), strict=True))

    def rows(self, start: int, count: int) -> CopyRows:
        """Return some of the rows, as a copy takes them."""
        return self._schema.encode(self._table.slice(start, count))


@contextmanager
def written_at(path: Path, start: int) -> Iterator[Callable[[bytes], None]]:
    """Give what writes the pieces of a range of a snapshot into its file, in order.

    Raises ``LocalDiskError`` if the disk does not take them.
    """
    with _on_disk(path):
        path.touch()
        file = path.open("r+b", buffering=0)
        file.seek(start)

    def write(data: bytes) -> None:
        left = memoryview(data)
        with _on_disk(path):
            while left:
                left = left[file.write(left) :]

    with file:
        yield write


@contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise trouble(path.parent, error) from error


def make_readable(path: Path, checksum: int, name: str) -> None:
    """Check a file with the bytes of a snapshot, and make it one whose rows can be read where they lie.

    Raises ``CorruptStateError`` naming the object if the bytes are not those that were sealed, ``LocalDiskError`` if
    the disk refuses.
    """
    with _on_disk(path):
        _make_readable(path, checksum, name)


def _make_readable(path: Path, checksum: int, name: str) -> None:
    with pa.memory_map(str(path)) as file:
        data = file.read_buffer()
        table = part_codec.decode(data, checksum, name)
        if _lies_in(table, data):
            return
        plain = path.with_suffix(".plain")
        with pa.OSFile(str(plain), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    plain.replace(path)


def _mapped(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_stream(file.read_buffer()).read_all().combine_chunks()


def _lies_in(table: pa.Table, data: pa.Buffer) -> bool:
    """Tell whether a table's columns are parts of the bytes, not made from them."""
    buffers = [b for column in table.columns for chunk in column.chunks for b in chunk.buffers() if b is not None]
    return all(data.address <= buffer.address < data.address + data.size for buffer in buffers if buffer.size)
