"""Members that keep copies of a store of variables, and a plain dictionary of what they should hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import pyarrow as pa

from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import SnapshotOrder
from riffle_spark.state.copies.folder import Folder, claim_folder
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.part_codec import DELETED
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY, Entry, Head, Link
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.restore.follow import Follower
from riffle_spark.state.restore.prefetch import Budget
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.stack_keeper import OpenStack, StackKeeper
from riffle_spark.state.schemas.variable_kinds import DUE, INDEX, TIMER, VARIABLE, Variable
from riffle_spark.state.schemas.variables import VariableColumns
from riffle_spark.worker.upkeep_piece import take_snapshot
from tests.kit.state.drawn_records import attempt
from tests.kit.state.drawn_variables import table_of

SCHEMA = VariableColumns(
    "sessions",
    pa.schema([("user", pa.string()), ("part", pa.int32())]),
    (
        Variable("total", "value", pa.schema([("n", pa.int64())])),
        Variable("events", "list", pa.schema([("n", pa.int64()), ("text", pa.string())])),
        Variable("pages", "map", pa.schema([("n", pa.int64())]), pa.schema([("url", pa.string())])),
    ),
    indexed=True,
)
HOME = Home("memory://root", StoreOptions(), None, "app/1", frozenset())

Key = tuple[str | None, int | None]


class Change(NamedTuple):
    """One row of a delta: which element of which variable of a key (``None``: all of the variable), its new number
    (``None``: deleted), and when it is due.
    """

    key: Key
    variable: str
    element: object
    number: int | None
    due: int | None


Model = dict[tuple[Key, str, object], tuple[int | None, int | None]]
"""From key, variable and element to number and due time."""


def row_of(change: Change) -> dict[str, object]:
    """Return a change as a row of a delta."""
    (user, part), name, element, number, due = change
    row = {"user": user, "part": part, VARIABLE: name, DUE: due, DELETED: number is None}
    if name == TIMER:
        return row | {DUE: element}
    if name == "events":
        return row | {INDEX: element, "__state_events": {"n": number, "text": f"t{number}"}}
    if name == "pages":
        entry = {"key": {"url": element}, "value": {"n": number}}
        return row | {"__state_pages": entry if element is not None else None}
    return row | {"__state_total": {"n": number}}


def applied(model: Model, changes: Sequence[Change]) -> Model:
    """Return the model after a delta: what is cleared goes first."""
    cleared = {(change.key, change.variable) for change in changes if change.element is None}
    after = {place: held for place, held in model.items() if place[:2] not in cleared}
    for change in changes:
        place = change[:3]
        if change.number is None:
            after.pop(place, None)
        else:
            due = cast("int", change.element) if change.variable == TIMER else change.due
            after[place] = (None if change.variable == TIMER else change.number, due)
    return after


def model_of(table: pa.Table) -> Model:
    """Return a table of wide rows as a model."""
    found: Model = {}
    for row in table.to_pylist():
        name, element, number = row[VARIABLE], "", None
        if name == TIMER:
            element = row[DUE]
        elif name == "events":
            element, number = row[INDEX], row["__state_events"]["n"]
            assert row["__state_events"]["text"] == f"t{number}"
        elif name == "pages":
            element, number = row["__state_pages"]["key"]["url"], row["__state_pages"]["value"]["n"]
        else:
            number = row["__state_total"]["n"]
        place = ((row["user"], row["part"]), name, element)
        assert place not in found
        found[place] = (number, row[DUE])
    return found


class Log:
    """Deltas and snapshots of a few key-groups, really sealed, some as the first format has them, some packed, and what
    each key-group should hold.
    """

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.entries: dict[int, Entry] = {}
        self.models: dict[int, Model] = {}
        self.version = 0

    def seal(self, changes: dict[int, list[Change]]) -> None:
        """Commit one delta of some key-groups."""
        data, name = b"", attempt(self.version)
        for key_group, of_group in sorted(changes.items()):
            table = table_of(SCHEMA, [row_of(change) for change in of_group], delta=True)
            sealed = table if self.version % 5 == 0 else SCHEMA.sealed(table)
            part = part_codec.encode(sealed, packed=self.version % 2 == 0)
            link = Link(Head(self.version, name), len(data), len(part), part_codec.checksum(part), len(of_group))
            data += part
            self.entries[key_group] = self.entries.get(key_group, EMPTY).add_link(link)
            self.models[key_group] = applied(self.models.get(key_group, {}), of_group)
        self.store.put_if_absent(paths.delta_name(self.version, name), data)
        self.version += 1

    def snapshot(self, key_group: int, folder: Folder) -> None:
        """Take and list a snapshot of a key-group, on the member of that folder."""
        order = SnapshotOrder(SCHEMA.store, key_group, self.entries[key_group])
        keeper = StackKeeper(folder, SCHEMA, Reader(self.store), 1)
        taken = take_snapshot(order, keeper, self.store, attempt(900 + self.version))
        assert taken.rows == len(self.models[key_group])
        replaced = self.entries[key_group].replace_by_snapshot(taken)
        assert replaced is not None
        self.entries[key_group] = replaced

    def brought(self, folder: Folder) -> dict[int, OpenStack]:
        """Return copies of a member at the newest heads."""
        return StackKeeper(folder, SCHEMA, Reader(self.store), 1).advance(self.entries)[0]

    def followed(self, folder: Folder) -> dict[int, OpenStack]:
        """Return copies of a member that upkeep brought there, whatever they were."""
        follower = Follower(
            folder, self.store, {SCHEMA.store: SCHEMA}, 1, lambda address: self.entries[address[1]],
            Budget(60, None, lambda: 0.0), lambda: True,
        )  # fmt: skip
        wanted = {(SCHEMA.store, key_group): entry for key_group, entry in self.entries.items()}
        assert [one.error for one in follower.follow(wanted)] == [None] * len(wanted)
        found, brought = StackKeeper(folder, SCHEMA, Reader(self.store), 1).advance(self.entries)
        assert (brought.restores, brought.folds) == (0, 0)
        return found


def member(path: Path) -> Folder:
    """Return the folder of a new member."""
    return claim_folder(path, "app/1", ())
