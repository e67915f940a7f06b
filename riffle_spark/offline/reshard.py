"""One store's state on its way to other shards. Knows entries, parts and a local folder to sort in. Does not know the
log, or why a key goes where it goes.

Theory of operation. Shards are read one after the other, from the objects alone. Their rows, of which a key of state
variables has several, are kept until there are some megabytes of them; then they are sorted by their new shard and
written to the folder as a *run*, a batch of rows a shard. When all is read, each new shard is put together from its
batches in all runs. So memory holds one run and one shard, and the folder one store.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.errors import ConfigError, ConflictError, LocalDiskError
from riffle_spark.private_folders import is_private
from riffle_spark.process.blocks.folding import group_keys
from riffle_spark.state.copies.abandoned import lock_exclusively
from riffle_spark.state.copies.disk import is_refusal
from riffle_spark.state.formats.arrow_values import readable_row
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.restore.follow import restored
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["ShardsOf", "SharedKey", "resharded", "scratch", "state_of"]

ShardsOf = Callable[[int, pa.Table], npt.NDArray[np.int32]]
"""From a shard and keys of it to each key's new shard."""

_RUN_BYTES = 64 << 20
_SOURCE = "__riffle_source"
_TARGET = "__riffle_target"
_SCRATCH = "riffle-dispatch-"
_OWNER = "owner"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


class SharedKey(ConflictError):
    """A key has state in two shards that become one. ``shards`` are their numbers, ``key`` shows its columns."""

    def __init__(self, key: str, shards: tuple[int, int], store: str) -> None:
        super().__init__(
            f"key {key} has state in two shards, {shards[0]} and {shards[1]}", where=store, id="RIFFLE-0511"
        )
        self.key = key
        self.shards = shards


def resharded(
    schema: StoreSchema, entries: Mapping[int, Entry], reader: Reader, shards_of: ShardsOf, folder: Path
) -> Iterator[tuple[int, pa.Table]]:
    """Yield each new shard that has keys and its state, sorted as a snapshot is, by number.

    Raises ``SharedKey`` for a key that two shards bring to one.
    """
    runs = _Runs(folder, pa.schema([*schema.part_schema(), (_SOURCE, pa.int32()), (_TARGET, pa.int32())]))
    for source, entry in sorted(entries.items()):
        state = state_of(schema, source, entry, reader, folder)
        if state.num_rows:
            targets = _placed(schema, state, source, shards_of)
            runs.add(pa.table([*state.columns, pa.repeat(np.int32(source), len(targets)), targets], schema=runs.schema))
    runs.write()
    left = runs.rows
    for target in runs.targets():
        state = _sorted(schema, runs.rows_of(target))
        left -= state.num_rows
        yield target, state
    assert left == 0, "every row that was read went somewhere"


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder for rows, which are in the clear there. What processes that were killed have left of such goes: who
    lives has a lock, which tells that also where processes of other containers cannot be seen.

    Raises ``ConfigError`` where its disk refuses.
    """
    try:
        temporary = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise _no_room(error) from error
    try:
        with _scratch(temporary) as folder:
            yield folder
    except LocalDiskError as error:
        raise _no_room(error.problem) from error
    except OSError as error:
        if is_refusal(error) and (error.filename is None or temporary in Path(error.filename).parents):
            raise _no_room(error) from error
        raise


def _no_room(refused: object) -> ConfigError:
    remedy = "free space there, or set TMPDIR to a folder that has room, and run this again"
    return ConfigError(
        f"the folder for temporary files refuses: {refused}", remedy=remedy, where="TMPDIR", id="RIFFLE-0144"
    )


@contextmanager
def _scratch(temporary: Path) -> Iterator[Path]:
    for left in filter(is_private, temporary.glob(f"{_SCRATCH}*")):  # another user may have made any of the others
        with suppress(OSError), lock_exclusively(left / _OWNER) as is_left:  # another process may have removed it
            if is_left:
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as name:
        owner = Path(name) / "new"
        owner.touch()
        with lock_exclusively(owner):
            owner.rename(owner.with_name(_OWNER))  # only now: nobody finds it without its lock
            yield owner.parent


def _placed(schema: StoreSchema, state: pa.Table, source: int, shards_of: ShardsOf) -> npt.NDArray[np.int32]:
    """Return the new shard of each row: that of its key, which is asked for once."""
    numbers, firsts = group_keys(schema.encoded(state))
    return shards_of(source, state.select(schema.routing).take(pa.array(firsts)))[numbers]


def _sorted(schema: StoreSchema, rows: pa.Table) -> pa.Table:
    """Return the rows as a snapshot has them; all rows of a key must be of one source."""
    order = pc.sort_indices(schema.encoded(rows))
    rows, keys = rows.take(order), schema.encoded(rows).take(order)
    sources = rows.column(_SOURCE).combine_chunks()
    shared = pc.and_(pc.equal(keys[1:], keys[:-1]), pc.not_equal(sources[1:], sources[:-1]))
    twice = pc.indices_nonzero(shared)
    if len(twice):
        first = twice[0].as_py()
        key = ", ".join(
            f"{name} = {value!r}" for name, value in readable_row(rows.select(schema.key.names), first).items()
        )
        raise SharedKey(key, (sources[first].as_py(), sources[first + 1].as_py()), schema.store)
    return schema.sealed(rows.select(schema.part_schema().names).combine_chunks())


@dataclass(frozen=True, slots=True)
class _Run:
    """One file of rows in the order of ``targets``, a batch each."""

    path: Path
    targets: npt.NDArray[np.int32]


class _Runs:
    """Rows in a folder, to be had by their target."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = 0
        self._folder = folder
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._runs: list[_Run] = []

    def add(self, rows: pa.Table) -> None:
        """Take rows; write a run if there are many by now."""
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        self.rows += rows.num_rows
        if self._held_bytes >= _RUN_BYTES:
            self.write()

    def write(self) -> None:
        """Write what is held."""
        if not self._held:
            return
        rows = pa.concat_tables(self._held)
        rows = rows.take(pc.sort_indices(rows.column(_TARGET)))
        path = self._folder / f"run-{len(self._runs)}.arrow"
        self._runs.append(_Run(path, _written(path, rows)))
        self._held, self._held_bytes = [], 0

    def targets(self) -> list[int]:
        """Return the targets of all rows, ascending."""
        found = [run.targets for run in self._runs]
        return [int(target) for target in np.unique(np.concatenate(found))] if found else []

    def rows_of(self, target: int) -> pa.Table:
        """Return a target's rows out of all runs."""
        batches: list[pa.RecordBatch] = []
        for run in self._runs:
            first, end = np.searchsorted(run.targets, [target, target + 1]).tolist()
            if first < end:
                with pa.memory_map(str(run.path)) as file:
                    reader = pa.ipc.open_file(file)
                    batches += [reader.get_batch(at) for at in range(first, end)]
        return pa.Table.from_batches(batches, self.schema)


def _written(path: Path, rows: pa.Table) -> npt.NDArray[np.int32]:
    """Write rows that are sorted by target, and return the target of each batch."""
    column = rows.column(_TARGET).to_numpy()
    targets, starts = np.unique(column, return_index=True)
    ends = [*starts[1:].tolist(), rows.num_rows]
    of_batch: list[int] = []
    with pa.ipc.new_file(str(path), rows.schema, options=_COMPRESSED) as writer:
        for target, start, end in zip(targets.tolist(), starts.tolist(), ends, strict=True):
            for batch in rows.slice(start, end - start).combine_chunks().to_batches():
                writer.write_batch(batch)
                of_batch.append(target)
    return np.array(of_batch, dtype=np.int32)


def state_of(schema: StoreSchema, key_group: int, entry: Entry, reader: Reader, folder: Path) -> pa.Table:
    """Return one shard's whole state as a snapshot's table, in no particular order. ``folder`` is for files."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        found = restored(schema, {key_group: entry}, reader, Path(own))
        return found.get(key_group, schema.part_schema().empty_table())
