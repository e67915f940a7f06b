"""A member with a folder, a store and key-groups whose deltas and snapshots are really sealed, for tests of folding."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from riffle_spark.state.copies.copy import Copy
from riffle_spark.state.copies.folder import Folder, claim
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY, Entry, Head, Link, Snapshot
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.restore.bring import Brought, CopyKeeper
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.testing.faulty_store import FaultyStore
from tests.kit.state.drawn_records import attempt

SCHEMA = PlainColumns("totals", pa.schema([("k", pa.string())]), pa.schema([("v", pa.int64())]))


def delta_table(changes: dict[str, int | None]) -> pa.Table:
    """Return a part's rows: ``None`` deletes."""
    columns = [list(changes), list(changes.values()), [value is None for value in changes.values()]]
    return pa.table(columns, schema=SCHEMA.part_schema(delta=True))


class Place:
    """A store, and what was committed to it: ``entries`` by key-group, and what each should hold."""

    def __init__(self, folder: Path) -> None:
        self.store = FaultyStore(MemoryStore(), sleep=lambda _: None)
        self.folder = claim(folder, "app/1", ())
        self.entries: dict[int, Entry] = {}
        self.wanted: dict[int, dict[str, int]] = {}
        self.reader = Reader(self.store, self.folder)

    def seal(
        self, version: int, changes: dict[int, dict[str, int | None]], *, kept: bool = False, epoch: int = 1
    ) -> list[Link]:
        """Commit one delta of several key-groups; ``kept``: this member sealed it itself."""
        name, data, links = attempt(version, epoch), b"", []
        for key_group, rows in sorted(changes.items()):
            part = part_codec.encode(delta_table(rows))
            links.append(Link(Head(version, name), len(data), len(part), part_codec.checksum(part), len(rows)))
            data += part
            self.entries[key_group] = self.entries.get(key_group, EMPTY).extended(links[-1])
            holding = self.wanted.setdefault(key_group, {})
            holding.update({k: v for k, v in rows.items() if v is not None})
            for gone in (k for k, v in rows.items() if v is None):
                holding.pop(gone, None)
        self.store.put_if_absent(paths.delta(version, name), data)
        if kept:
            assert self.folder.keep_sealed(version, name, data)
        return links

    def snapshot(self, key_group: int) -> Snapshot:
        """Take and list a snapshot of a key-group at its head."""
        entry, rows = self.entries[key_group], self.wanted[key_group]
        schema = SCHEMA.part_schema()
        data = part_codec.encode(pa.table([sorted(rows), [rows[key] for key in sorted(rows)]], schema=schema))
        taken = Snapshot(paths.snapshot_id(entry.head.version, attempt(99)), entry.head, len(data), 0, len(rows))
        taken = Snapshot(taken.id, taken.head, taken.length, part_codec.checksum(data), taken.rows)
        self.store.put_if_absent(paths.snapshot(SCHEMA.store, key_group, taken.id), data)
        replaced = entry.replaced(taken)
        assert replaced is not None
        self.entries[key_group] = replaced
        return taken

    def keeper(self, epoch: int = 1, folder: Folder | None = None) -> CopyKeeper:
        """Return what keeps this member's copies."""
        self.reader = Reader(self.store, folder or self.folder)
        return CopyKeeper(folder or self.folder, SCHEMA, self.reader, epoch)

    def bring(self, entries: dict[int, Entry] | None = None, epoch: int = 1) -> Brought:
        """Bring copies, check what they hold and close them."""
        given = self.entries if entries is None else entries
        copies, brought = self.keeper(epoch).bring(given)
        try:
            if entries is None:
                assert {kg: held(copy) for kg, copy in copies.items()} == self.wanted
                assert {kg: copy.head() for kg, copy in copies.items()} == {kg: e.head for kg, e in given.items()}
        finally:
            for copy in copies.values():
                copy.close()
        return brought

    def strays(self) -> list[Path]:
        """Return copies that no link leads to."""
        copies = self.folder.path / "copies"
        linked = {link.resolve() for link in copies.glob("*/*") if link.is_symlink()}
        return [path for path in copies.glob("*/*") if not path.is_symlink() and path.resolve() not in linked]


def held(copy: Copy) -> dict[str, int]:
    """Return what a copy holds."""
    _, pairs, longs = copy.scan()
    table = SCHEMA.table(pairs, longs)
    return dict(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))
