"""Read a version of a store's state as record batches.

Theory of operation.

1. The newest record is read, and the record of the requested version. It lists the parts of every key-group.
2. Key-groups are read in pieces of some megabytes. Threads fetch and compute the next pieces while the caller uses
   the first one. So memory holds some pieces, whatever the size of the state. A key-group is not split.
3. A piece's adjacent parts in one object are fetched with one GET.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime

import pyarrow as pa

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.restore.prefetch import run_ahead
from riffle_spark.state_tables.fetched_parts import fetch_parts
from riffle_spark.state_tables.requested_keys import Keys, RequestedKeys, requested_keys
from riffle_spark.state_tables.state_view import StateTable, open_root

_PIECE_BYTES = 8 << 20
_AHEAD_BYTES = 64 << 20
_THREADS = 4


def read_state(  # noqa: PLR0913 - one argument for each thing that may be chosen
    root: str,
    store: str | None = None,
    *,
    variable: str | None = None,
    version: int | str | None = None,
    time: datetime | str | None = None,
    keys: Keys | None = None,
    key_groups: Iterable[int] | None = None,
    options: StoreOptions | None = None,
    encryption_keys: str | None = None,
) -> pa.RecordBatchReader:
    """Read the state of a store as Arrow record batches, in pieces, while the query runs or is stopped.

    All batches have the state of one version. The columns are those of the key and of the state, then ``key_group``,
    ``version`` and ``due_ms`` (docs/read-state.md). ``version`` is the batch since which the row has not changed.
    Only objects are read, never a member's local copies.

    Args:
        root: where the state is stored.
        store: the name of the store. It may be left out if the query has only one.
        variable: the variable of a processor, the side of a join (``left``, ``right``), or ``__timer`` for timers. It
            may be left out if the store has only one.
        version: the batch whose state is read, which must be retained, or ``savepoint:NAME``. By default the newest.
        time: the newest state that was committed at this time or before. A datetime with a zone, or text of ISO 8601.
        keys: only the rows of these keys: values, or for several columns tuples or dictionaries, or a table.
        key_groups: only the rows of these key-groups.
        options: how to reach the object store.
        encryption_keys: the setting of the same name. Encrypted state needs it.

    Returns:
        A reader of record batches. It raises ``UnavailableError`` if the query's retention deletes the version during
        the read, and ``CorruptStateError`` if an object is missing or damaged.

    Raises:
        ConfigError: the root has no state, a name is unknown or missing, the version is not retained, or a key does not
            fit the key's columns.
        RefusedError: the state is encrypted and ``encryption_keys`` is not set.

    Example:
        >>> read_state("s3://bucket/state/visits", "visits", keys=["ann"]).read_all()  # doctest: +SKIP
    """
    table = open_root(root, options, encryption_keys).view(version, time).table(store, variable)
    return read_table(table, None if keys is None else requested_keys(keys, table.store_schema), key_groups)


def read_table(
    table: StateTable, keys: RequestedKeys | None = None, key_groups: Iterable[int] | None = None
) -> pa.RecordBatchReader:
    """Return the rows of a table as record batches, as ``read_state`` does, of these keys and key-groups only."""
    return read_entries(table, table.view.entries(table.store, table.find_key_groups(keys, key_groups)), keys)


def read_entries(
    table: StateTable, entries: Mapping[int, Entry], keys: RequestedKeys | None = None
) -> pa.RecordBatchReader:
    """Return the rows of the key-groups with these entries, as ``read_table`` does."""
    batches = _iterate_batches(table, entries, keys)
    return pa.RecordBatchReader.from_batches(table.schema, batches)


def _iterate_batches(
    table: StateTable, entries: Mapping[int, Entry], keys: RequestedKeys | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of key-groups. Threads fetch the next key-groups at the same time."""
    reader = table.view.new_reader()
    rows_of = table.rows_of(keys)

    def read_piece(piece: Mapping[int, Entry]) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = []
        for key_group, parts in fetch_parts(reader, table.store, piece, table.store_schema, keys).items():
            rows = rows_of(key_group, parts, piece[key_group].timer_ms)
            batches += [batch for batch in rows.to_batches() if len(batch)]
        return batches

    pieces = run_ahead(read_piece, split_entries(entries, _PIECE_BYTES), _count_bytes, _AHEAD_BYTES, _THREADS)
    with closing(pieces):
        for _, batches in pieces:
            try:
                yield from batches.result()
            except CorruptStateError as error:
                raise table.view.root.explain(error, table.view.record) from error


def split_entries(entries: Mapping[int, Entry], piece_bytes: int) -> Iterator[dict[int, Entry]]:
    """Yield consecutive key-groups that have about ``piece_bytes`` together, and at least one."""
    piece: dict[int, Entry] = {}
    size = 0
    for key_group, entry in entries.items():
        piece[key_group] = entry
        size += entry.measure().bytes
        if size >= piece_bytes:
            yield piece
            piece = {}
            size = 0
    if piece:
        yield piece


def _count_bytes(entries: Mapping[int, Entry]) -> int:
    """Return the bytes of the parts of key-groups."""
    return sum(entry.measure().bytes for entry in entries.values())
