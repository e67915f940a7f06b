"""Pieces of a table that other processes read: Spark's tasks, each with some key-groups.

A piece holds the entries of its key-groups, so that a task sends no request to the log, and all tasks read one version.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from riffle_spark.state.log.manifest import Entry, Manifest
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state_tables.change_feed import Step, Steps, collect_steps, read_steps
from riffle_spark.state_tables.read_state import read_entries, split_entries
from riffle_spark.state_tables.requested_keys import RequestedKeys
from riffle_spark.state_tables.state_view import StateRoot, StateTable, StateView
from riffle_spark.worker.member_folders import keys_in

_PIECE_BYTES = 64 << 20
"""Stored bytes of a task. It holds only some megabytes at once; smaller tasks take longer to start than to run."""


@dataclass(frozen=True)
class _TableAddress:
    """The address with which another process opens a table: places, options, the source of the keys, and the record
    without its lists of key-groups and members.
    """

    root: str
    options: StoreOptions
    encryption_keys: str | None
    record: Record
    store: str
    variable: str | None

    @staticmethod
    def of(table: StateTable, options: StoreOptions, encryption_keys: str | None) -> "_TableAddress":
        """Return the address of a table."""
        record = replace(table.view.record, entries={}, owners={}, standbys={}, members=(), weights={}, orders={})
        return _TableAddress(table.view.root.root, options, encryption_keys, record, table.store, table.variable)

    def open(self, entries: "dict[int, Entry]") -> StateTable:
        """Return the table with these key-groups. Reads the encryption keys, and sends no request to the store."""
        keys = keys_in(self.encryption_keys, self.options.s3.region)
        root = StateRoot(self.root, open_store(self.root, self.options), keys)
        manifest = Manifest({(self.store, number): entry for number, entry in entries.items()})
        return StateView(root, self.record, manifest).table(self.store, self.variable)


@dataclass(frozen=True)
class TablePiece:
    """Some key-groups of a table, and the requested keys."""

    address: _TableAddress
    entries: dict[int, Entry]
    keys: RequestedKeys | None

    def read(self) -> pa.RecordBatchReader:
        """Return the rows."""
        return read_entries(self.address.open(self.entries), self.entries, self.keys)


@dataclass(frozen=True)
class ChangesPiece:
    """The changes of some key-groups of a table."""

    address: _TableAddress
    steps: Steps

    def read(self) -> pa.RecordBatchReader:
        """Return the changes."""
        return read_steps(self.address.open({}), self.steps)


def split_table(
    table: StateTable,
    keys: RequestedKeys | None,
    key_groups: Iterable[int] | None,
    options: StoreOptions,
    encryption_keys: str | None,
) -> list[TablePiece]:
    """Return the pieces of a table with some tens of megabytes each, for these keys and key-groups only."""
    address = _TableAddress.of(table, options, encryption_keys)
    entries = table.view.entries(table.store, table.find_key_groups(keys, key_groups))
    return [TablePiece(address, piece, keys) for piece in split_entries(entries, _PIECE_BYTES)]


def split_changes(
    table: StateTable,
    first: int,
    last: int,
    key_groups: Iterable[int] | None,
    options: StoreOptions,
    encryption_keys: str | None,
) -> list[ChangesPiece]:
    """Return the pieces of the changes of batches ``first`` to ``last``, both inclusive, of a table as of ``last``."""
    address = _TableAddress.of(table, options, encryption_keys)
    return [ChangesPiece(address, steps) for steps in _split_steps(collect_steps(table, first, last, key_groups))]


def _split_steps(steps: Steps) -> Iterator[Steps]:
    """Yield the changes of key-groups in pieces of some tens of megabytes, and of at least one key-group."""
    piece: dict[int, list[Step]] = {}
    size = 0
    for number, of_key_group in steps.items():
        piece[number] = of_key_group
        size += sum(link.length for step in of_key_group for link in step.links or step.after.chain)
        if size >= _PIECE_BYTES:
            yield piece
            piece = {}
            size = 0
    if piece:
        yield piece
