"""A member with a folder, a store, and key-groups with sealed deltas and snapshots, for tests of local copies."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from riffle_spark.state.copies.folder import Folder, claim_folder
from riffle_spark.state.copies.run import merge_runs
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY, Entry, Head, Link, Snapshot
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.stack_keeper import AdvanceCounts, OpenStack, StackKeeper
from riffle_spark.state.schemas.plain_columns import PlainColumns
from tests.kit.state.drawn_records import attempt
from tests.kit.state.faulty_store import FaultyStore
from tests.kit.state.local_copies import local_copy

SCHEMA = PlainColumns("totals", pa.schema([("k", pa.string())]), pa.schema([("v", pa.int64())]))


def delta_table(changes: dict[str, int | None]) -> pa.Table:
    """Return the rows of a delta's part. A value of ``None`` deletes its key."""
    columns = [list(changes), list(changes.values()), [value is None for value in changes.values()]]
    return SCHEMA.sealed(pa.table(columns, schema=SCHEMA.part_schema(delta=True)))


class Place:
    """A store with its committed state: ``entries`` by key-group, and the expected rows of each in ``wanted``."""

    def __init__(self, folder: Path) -> None:
        self.store = FaultyStore(MemoryStore(), sleep=lambda _: None)
        self.folder = claim_folder(folder, "app/1", ())
        self.entries: dict[int, Entry] = {}
        self.wanted: dict[int, dict[str, int]] = {}
        self.reader = Reader(self.store)

    def seal(
        self, version: int, changes: dict[int, dict[str, int | None]], *, kept: bool = False, epoch: int = 1
    ) -> list[Link]:
        """Commit one delta of several key-groups, and return its links.

        If ``kept`` is set, this member has the sealed file.
        """
        name, data, links = attempt(version, epoch), b"", []
        for key_group, rows in sorted(changes.items()):
            part = part_codec.encode(delta_table(rows))
            links.append(Link(Head(version, name), len(data), len(part), part_codec.checksum(part), len(rows)))
            data += part
            self.entries[key_group] = self.entries.get(key_group, EMPTY).add_link(links[-1])
            holding = self.wanted.setdefault(key_group, {})
            holding.update({k: v for k, v in rows.items() if v is not None})
            for deleted_key in (k for k, v in rows.items() if v is None):
                holding.pop(deleted_key, None)
        self.store.put_if_absent(paths.delta_name(version, name), data)
        if kept:
            assert self.folder.write_sealed_file(version, name, data)
        return links

    def snapshot(self, key_group: int) -> Snapshot:
        """Take a snapshot of a key-group at its head, list it, and return it."""
        entry, rows = self.entries[key_group], self.wanted[key_group]
        schema = SCHEMA.part_schema()
        data = part_codec.encode(SCHEMA.sealed(pa.table([list(rows), list(rows.values())], schema=schema)))
        snapshot = Snapshot(paths.snapshot_id(entry.head.version, attempt(99)), entry.head, len(data), 0, len(rows))
        snapshot = Snapshot(snapshot.id, snapshot.head, snapshot.length, part_codec.checksum(data), snapshot.rows)
        self.store.put_if_absent(paths.snapshot_name(SCHEMA.store, key_group, snapshot.id), data)
        replaced = entry.replace_by_snapshot(snapshot)
        assert replaced is not None
        self.entries[key_group] = replaced
        return snapshot

    def keeper(self, epoch: int = 1, folder: Folder | None = None) -> StackKeeper:
        """Return the ``StackKeeper`` of this member's copies."""
        self.reader = Reader(self.store)
        return StackKeeper(folder or self.folder, SCHEMA, self.reader, epoch)

    def bring(self, entries: dict[int, Entry] | None = None, epoch: int = 1) -> AdvanceCounts:
        """Bring the copies up to date, check their heads and contents, and return the counts."""
        target = self.entries if entries is None else entries
        copies, brought = self.keeper(epoch).advance(target)
        if entries is None:
            assert {kg: rows_of_copy(copy) for kg, copy in copies.items()} == self.wanted
            assert {kg: copy.stack.head for kg, copy in copies.items()} == {kg: e.head for kg, e in target.items()}
        return brought

    def local(self, key_group: int, folder: Folder | None = None) -> tuple[Head, dict[str, int]] | None:
        """Return the head and the rows of a copy, or ``None`` if there is none."""
        stack = local_copy(folder or self.folder, SCHEMA, key_group)
        return stack and (stack[0], dict(zip(stack[1]["k"].to_pylist(), stack[1]["v"].to_pylist(), strict=True)))

    def files(self, key_group: int = 1) -> list[Path]:
        """Return the files of a key-group's stack."""
        stack = self.folder.stacks(SCHEMA.store).read(key_group)
        return [] if stack is None else [self.folder.path / name for name in {part.file for part in stack.parts}]

    def strays(self) -> list[Path]:
        """Return the part files in the folders of stacks that belong to no stack."""
        stacks = self.folder.stacks(SCHEMA.store)
        listed_files = {file for key_group in stacks.key_groups() for file in self.files(key_group)}
        return [path for path in self.folder.path.glob("stacks/*/*.part") if path not in listed_files]


def rows_of_copy(copy: OpenStack) -> dict[str, int]:
    """Return the rows of a copy."""
    table = merge_runs(copy.runs, SCHEMA.key.names, SCHEMA.row_schema, bottom=True)
    return dict(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))
