"""Move a store's state to other shards.

Theory of operation:

1. The shards are read one after the other from the object store.
2. When some megabytes of rows are held, they are sorted by new shard and written to a temporary folder as a *run*, with
   one record batch per new shard.
3. When all shards are read, each new shard is assembled from its batches in all runs.

So memory holds one run and one shard, and the folder holds one store.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.errors import ConfigError, LocalDiskError
from riffle_spark.private_folders import is_private
from riffle_spark.process.blocks.folding import group_keys
from riffle_spark.state.copies.abandoned import lock_exclusively
from riffle_spark.state.copies.disk import is_disk_refusal
from riffle_spark.state.formats.arrow_values import readable_row
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.restore.follow import restore_tables
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import StoreSchema

NewShards = Callable[[int, pa.Table], npt.NDArray[np.int32]]
"""A function from a shard and keys of it to the new shard of each key."""

_RUN_BYTES = 64 << 20
_SOURCE = "__riffle_source"
_TARGET = "__riffle_target"
_SCRATCH = "riffle-dispatch-"
_OWNER = "owner"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


class SharedKey(Exception):
    """A key has state in two shards that would be merged. ``key`` shows its columns."""

    def __init__(self, key: str, shards: tuple[int, int]) -> None:
        """Create the error. ``key`` is the key as text, ``shards`` the two old shards with its state."""
        super().__init__(key, shards)
        self.key = key
        self.shards = shards


def reshard_state(
    schema: StoreSchema, entries: Mapping[int, Entry], reader: Reader, new_shards: NewShards, folder: Path
) -> Iterator[tuple[int, pa.Table]]:
    """Yield each new shard that has keys and its state, sorted like a snapshot, by number.

    Raises ``SharedKey`` if a key has state in two of the old shards.
    """
    states = ((source, read_state(schema, source, entry, reader, folder)) for source, entry in sorted(entries.items()))
    return shard_rows(schema, states, new_shards, folder)


def shard_rows(
    schema: StoreSchema, states: Iterable[tuple[int, pa.Table]], new_shards: NewShards, folder: Path
) -> Iterator[tuple[int, pa.Table]]:
    """Yield each new shard that has keys and its state, sorted like a snapshot, by number.

    ``states`` are rows with a snapshot's columns and their old shard. Raises ``SharedKey`` if a key has state in two of
    the old shards.
    """
    runs = _Runs(folder, pa.schema([*schema.part_schema(), (_SOURCE, pa.int32()), (_TARGET, pa.int32())]))
    for source, state in states:
        if state.num_rows:
            targets = _targets_of(schema, state, source, new_shards)
            runs.add(pa.table([*state.columns, pa.repeat(np.int32(source), len(targets)), targets], schema=runs.schema))
    runs.write()
    written_rows = 0
    for target in runs.targets():
        state = _sorted_state(schema, runs.rows_of(target))
        written_rows += state.num_rows
        yield target, state
    assert written_rows == runs.row_count, "every row that was read has a new shard"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Create a private temporary folder, for rows that are not encrypted in it. Remove it and abandoned folders.

    A folder's owner holds a lock, so folders of killed processes are recognised, also across containers. Raises
    ``ConfigError`` if the disk refuses.
    """
    temporary: Path | None = None
    try:
        temporary = Path(tempfile.gettempdir())
        with _locked_folder(temporary) as folder:
            yield folder
    except LocalDiskError as error:
        raise _disk_refused(error.problem) from error
    except OSError as error:
        is_in_folder = error.filename is None or (temporary and temporary in Path(error.filename).parents)
        if temporary is None or (is_disk_refusal(error) and is_in_folder):
            raise _disk_refused(error) from error
        raise


def _disk_refused(cause: object) -> ConfigError:
    """Return the error for a disk that refuses temporary files."""
    return ConfigError(
        f"Cannot write to the folder for temporary files: {cause}",
        remedy="Free space there, or set TMPDIR to a folder that has room, and run the command again.",
        where="TMPDIR",
        id="RIFFLE-0144",
    )


@contextmanager
def _locked_folder(temporary: Path) -> Iterator[Path]:
    """Create a temporary folder with a lock, and remove it at the end. Remove abandoned folders first."""
    for folder in filter(is_private, temporary.glob(f"{_SCRATCH}*")):  # ignores folders of other users
        with (
            suppress(OSError),
            lock_exclusively(folder / _OWNER) as is_abandoned,
        ):  # another process may have removed it
            if is_abandoned:
                shutil.rmtree(folder)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as name:
        owner = Path(name) / "new"
        owner.touch()
        with lock_exclusively(owner):
            owner.rename(owner.with_name(_OWNER))  # after locking, so that no process finds it unlocked
            yield owner.parent


def _targets_of(schema: StoreSchema, state: pa.Table, source: int, new_shards: NewShards) -> npt.NDArray[np.int32]:
    """Return the new shard of each row. ``new_shards`` gets each key of shard ``source`` once."""
    numbers, firsts = group_keys(schema.encoded(state))
    return new_shards(source, state.select(schema.routing).take(pa.array(firsts)))[numbers]


def _sorted_state(schema: StoreSchema, rows: pa.Table) -> pa.Table:
    """Return the rows in a snapshot's order. Raises ``SharedKey`` if rows of one key have two sources."""
    order = pc.sort_indices(schema.encoded(rows))
    rows = rows.take(order)
    keys = schema.encoded(rows)
    sources = rows.column(_SOURCE).combine_chunks()
    is_shared = pc.and_(pc.equal(keys[1:], keys[:-1]), pc.not_equal(sources[1:], sources[:-1]))
    places = pc.indices_nonzero(is_shared)
    if len(places):
        first = places[0].as_py()
        columns = readable_row(rows.select(schema.key.names), first)
        key = ", ".join(f"{name} = {value!r}" for name, value in columns.items())
        raise SharedKey(key, (sources[first].as_py(), sources[first + 1].as_py()))
    return schema.sealed(rows.select(schema.part_schema().names).combine_chunks())


@dataclass(frozen=True, slots=True)
class _Run:
    """A file of rows sorted by target. ``targets`` holds the target of each record batch."""

    path: Path
    targets: npt.NDArray[np.int32]


class _Runs:
    """Rows of a store in a temporary folder, written in files that are sorted by new shard."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        """Create runs without rows in a folder.

        ``schema`` is that of the rows, with the columns of source and target.
        """
        self.schema = schema
        self.row_count = 0
        self._folder = folder
        self._buffer: list[pa.Table] = []
        self._buffer_bytes = 0
        self._runs: list[_Run] = []

    def add(self, rows: pa.Table) -> None:
        """Buffer rows. Write a run if the buffer is full."""
        self._buffer.append(rows)
        self._buffer_bytes += rows.nbytes
        self.row_count += rows.num_rows
        if self._buffer_bytes >= _RUN_BYTES:
            self.write()

    def write(self) -> None:
        """Write the buffered rows as one run, if there are any."""
        if not self._buffer:
            return
        rows = pa.concat_tables(self._buffer)
        rows = rows.take(pc.sort_indices(rows.column(_TARGET)))
        path = self._folder / f"run-{len(self._runs)}.arrow"
        self._runs.append(_Run(path, _write_run(path, rows)))
        self._buffer = []
        self._buffer_bytes = 0

    def targets(self) -> list[int]:
        """Return the targets of all rows, ascending."""
        targets = [run.targets for run in self._runs]
        return [int(target) for target in np.unique(np.concatenate(targets))] if targets else []

    def rows_of(self, target: int) -> pa.Table:
        """Return all rows of a new shard."""
        batches: list[pa.RecordBatch] = []
        for run in self._runs:
            first, end = np.searchsorted(run.targets, [target, target + 1]).tolist()
            if first < end:
                with pa.memory_map(str(run.path)) as file:
                    reader = pa.ipc.open_file(file)
                    batches += [reader.get_batch(index) for index in range(first, end)]
        return pa.Table.from_batches(batches, self.schema)


def _write_run(path: Path, rows: pa.Table) -> npt.NDArray[np.int32]:
    """Write rows that are sorted by new shard to a file. Return the new shard of each record batch in it."""
    targets, starts = np.unique(rows.column(_TARGET).to_numpy(), return_index=True)
    ends = [*starts[1:].tolist(), rows.num_rows]
    batch_targets: list[int] = []
    with pa.ipc.new_file(str(path), rows.schema, options=_COMPRESSED) as writer:
        for target, start, end in zip(targets.tolist(), starts.tolist(), ends, strict=True):
            for batch in rows.slice(start, end - start).combine_chunks().to_batches():
                writer.write_batch(batch)
                batch_targets.append(target)
    return np.array(batch_targets, dtype=np.int32)


def read_state(schema: StoreSchema, key_group: int, entry: Entry, reader: Reader, folder: Path) -> pa.Table:
    """Return all rows of a key-group's state with a snapshot's columns, in no particular order.

    ``folder`` is used for temporary files.
    """
    with tempfile.TemporaryDirectory(dir=folder) as copy_folder:
        states = restore_tables(schema, {key_group: entry}, reader, Path(copy_folder))
        return states.get(key_group, schema.part_schema().empty_table())
