"""Copies of a store of variables hold the same state whether they are followed, merged or restored, and find due
elements.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import SnapshotOrder
from riffle_spark.state.copies import reading as reading_module
from riffle_spark.state.copies.elements import element_runs, structs_of
from riffle_spark.state.copies.folder import Folder, claim_folder
from riffle_spark.state.copies.part_files import read_all_rows
from riffle_spark.state.copies.reading import CopyRuns, Reading
from riffle_spark.state.copies.run import Run
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.nested_keys import KeyEncoder
from riffle_spark.state.formats.part_codec import DELETED
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY, Entry, Head, Link
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.restore.follow import Follower
from riffle_spark.state.restore.prefetch import Budget
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.stack_keeper import OpenStack, StackKeeper
from riffle_spark.state.schemas import variable_kinds, variables
from riffle_spark.state.schemas.variable_kinds import DUE, INDEX, NO_DUE, TIMER, VARIABLE, Variable
from riffle_spark.state.schemas.variables import VariableColumns
from riffle_spark.worker.upkeep_piece import take_snapshot
from tests.kit.examples import costly
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
    """One row of a delta: the element of a variable of a key (``None``: the whole variable), its new number (``None``:
    deleted), and the time at which it is due.
    """

    key: Key
    variable: str
    element: object
    number: int | None
    due: int | None


Model = dict[tuple[Key, str, object], tuple[int | None, int | None]]
"""Maps key, variable and element to number and due time."""


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
    """Return the model after a delta, which clears variables before it writes elements."""
    cleared = {(change.key, change.variable) for change in changes if change.element is None}
    after = {place: entry for place, entry in model.items() if place[:2] not in cleared}
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
    model: Model = {}
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
        assert place not in model
        model[place] = (number, row[DUE])
    return model


class Log:
    """Sealed deltas and snapshots of a few key-groups, partly in the first format and partly packed, with the expected
    state.
    """

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.entries: dict[int, Entry] = {}
        self.models: dict[int, Model] = {}
        self.version = 0

    def seal(self, changes: dict[int, list[Change]]) -> None:
        """Commit one delta with changes of some key-groups."""
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
        """Take a snapshot of a key-group from the member with this folder, and list it."""
        order = SnapshotOrder(SCHEMA.store, key_group, self.entries[key_group])
        keeper = StackKeeper(folder, SCHEMA, Reader(self.store), 1)
        new_snapshot = take_snapshot(order, keeper, self.store, attempt(900 + self.version))
        assert new_snapshot.rows == len(self.models[key_group])
        replaced = self.entries[key_group].replace_by_snapshot(new_snapshot)
        assert replaced is not None
        self.entries[key_group] = replaced

    def brought(self, folder: Folder) -> dict[int, OpenStack]:
        """Return the copies of a member at the newest heads."""
        return StackKeeper(folder, SCHEMA, Reader(self.store), 1).advance(self.entries)[0]

    def followed(self, folder: Folder) -> dict[int, OpenStack]:
        """Return the copies of a member after upkeep has followed the log."""
        follower = Follower(
            folder, self.store, {SCHEMA.store: SCHEMA}, 1, lambda address: self.entries[address[1]],
            Budget(60, None, lambda: 0.0), lambda: True,
        )  # fmt: skip
        target_entries = {(SCHEMA.store, key_group): entry for key_group, entry in self.entries.items()}
        assert [one.error for one in follower.follow(target_entries)] == [None] * len(target_entries)
        advanced, brought = StackKeeper(folder, SCHEMA, Reader(self.store), 1).advance(self.entries)
        assert (brought.restores, brought.folds) == (0, 0)
        return advanced


def member(path: Path) -> Folder:
    """Return the folder of a new member."""
    return claim_folder(path, "app/1", ())


LONG = "u" * 300
KEYS: list[list[Key]] = [[("a", 1), ("a", None), (LONG, 1)], [(None, 0), ("a\x00", 2), (LONG + "v", 1)]]
"""Some keys of each of two key-groups."""
NUMBERS = st.none() | st.integers(0, 99)
DUES = st.none() | st.integers(-5, 20)
ELEMENTS = st.one_of(
    st.tuples(st.just("total"), st.just("")),
    st.tuples(st.just("events"), st.none() | st.integers(0, 4)),
    st.tuples(st.just("pages"), st.sampled_from([None, "", "p", "p\x00q", "w" * 300, "w" * 301])),
    st.tuples(st.just(TIMER), st.none() | st.integers(-5, 20)),
)


@pytest.fixture(autouse=True, scope="module")
def small_parts_are_packed() -> Iterator[None]:
    """Pack parts with few rows, which a batch would seal unpacked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_codec, "_PACK_FROM_BYTES", 0)  # private: small state
        patch.setattr(part_codec, "_RATIO_MAX", 1_000)  # private: small state
        yield


@st.composite
def deltas(draw: st.DrawFn) -> dict[int, list[Change]]:
    """Draw the changes of a batch, each element at most once, with only new elements in a cleared variable."""
    drawn: dict[int, list[Change]] = {}
    for key_group, keys in enumerate(KEYS):
        rows = draw(st.lists(st.tuples(st.sampled_from(keys), ELEMENTS, NUMBERS, DUES), max_size=8))
        changes = {
            (key, variable, element): Change(key, variable, element, None if element is None else number, due)
            for key, (variable, element), number, due in rows
        }
        if changes:
            drawn[key_group] = list(changes.values())
    return drawn


STEPS = st.lists(st.one_of(deltas(), deltas(), st.sampled_from(["bring", "follow", "snapshot"])), max_size=10)


@costly(2)
@given(STEPS)
def test_merged_and_restored_copies_equal_a_dictionary(steps: list[object]) -> None:
    """Copies that merge deltas, copies that upkeep brings and restored copies all equal a dictionary."""
    log = Log()
    with tempfile.TemporaryDirectory() as folder:
        folding, followed = member(Path(folder) / "1"), member(Path(folder) / "2")
        for step in steps:
            if isinstance(step, dict):
                log.seal(step)
            elif step == "snapshot":
                for key_group in [kg for kg, entry in log.entries.items() if entry.chain]:
                    log.snapshot(key_group, folding)
            else:
                check(log, log.brought(folding) if step == "bring" else log.followed(followed))
        contents = [check(log, log.brought(folding)), check(log, log.followed(followed))]
        for name, bring in (("3", log.brought), ("4", log.followed)):
            contents.append(check(log, bring(member(Path(folder) / name))))
        assert all(rows == contents[0] for rows in contents)


def check(log: Log, copies: dict[int, OpenStack]) -> list[object]:
    """Compare copies with the models and return all their rows."""
    everything: list[object] = []
    for key_group, copy in sorted(copies.items()):
        assert copy.stack.head == log.entries[key_group].head
        table, model = read_all_rows(copy.runs, SCHEMA), log.models[key_group]
        assert table.schema.equals(SCHEMA.part_schema())
        assert model_of(table) == model
        check_reading(copy.runs, model, [*KEYS[key_group], ("none", 1)])
        everything.append((key_group, table.to_pylist()))
    assert copies.keys() == log.models.keys()
    return everything


def check_reading(runs: Sequence[Run], model: Model, keys: list[Key]) -> None:
    """Compare every read with the model; all keys but the first are added after the first reads."""
    table = pa.Table.from_pylist([{"user": user, "part": part} for user, part in keys], SCHEMA.key)
    reading = CopyRuns(runs).open_reading(SCHEMA, table[:1])
    for name in ("total", "events", "pages"):
        reading.read_elements(name, 0, 1, 7, 1000)
    reading.read_entry("pages", 0, b"", 7)
    reading.add_keys(table[1:], SCHEMA.hashes(table[1:]))
    for now_ms in (-10, 7):
        for name in ("total", "events", "pages"):
            ends, rows, names = reading.read_elements(name, 0, len(keys), now_ms, 1000)
            structs = rows.take_column(structs_of) if ends[-1] else pa.array([], SCHEMA.by_name[name].type)
            values = SCHEMA.by_name[name].values(structs).column("n").to_pylist()
            ids: Sequence[object] = names.to_pylist() if names is not None else rows.ids.tolist()
            for key, (start, end) in zip(keys, pairwise([0, *ends]), strict=True):
                expected = [
                    (name_of(name, element), number)
                    for (of, variable, element), (number, due) in model.items()
                    if (of, variable) == (key, name) and (due is None or due > now_ms)
                ]
                assert sorted(expected) == list(zip(ids[start:end], values[start:end], strict=True))
    for number, key in enumerate(keys):
        for element in ("", "p", "p\x00q", LONG, "w" * 300, "w" * 301):
            held_number, due = model.get((key, "pages", element), (None, None))
            is_there = held_number is not None and (due is None or due > 7)
            stored_entry = reading.read_entry("pages", number, KeyEncoder([pa.string()])((element,)), 7)
            assert stored_entry == ((held_number,) if is_there else None)
        least = max((int(str(e)) for of, name, e in model if (of, name) == (key, "events")), default=-1)
        assert reading.next_indexes("events", np.array([number]))[0] > least
    check_dues(reading, model)


def check_dues(reading: Reading, model: Model) -> None:
    """Compare due elements with the model, as whole ranges and time by time."""
    expected = [(due, key, name) for (key, name, _), (_, due) in model.items() if due is not None]
    for first, last in ((NO_DUE + 1, 7), (0, 2**62), (3, 5)):
        due_elements = [
            (due, (row["user"], row["part"]), one.variable)
            for one in reading.find_due_elements(first, last)
            for due, row in zip(one.due_ms.tolist(), one.keys.to_pylist(), strict=True)
        ]
        assert sorted(map(repr, due_elements)) == sorted(repr(one) for one in expected if first <= one[0] <= last)
    begins, until = NO_DUE + 1, reading.find_due_time(NO_DUE + 1, 1)
    due_keys = []
    while until is not None:
        due_keys += [due for one in reading.find_due_elements(begins, until) for due in one.due_ms.tolist()]
        begins, until = until + 1, reading.find_due_time(until + 1, 2)
    assert sorted(due_keys) == sorted(due for due, _, _ in expected)


def name_of(variable: str, element: object) -> object:
    """Return the id of an element within its variable."""
    if variable == "pages":
        return KeyEncoder([pa.string()])((element,))
    return element if variable == "events" else 0


def run_of(*changes: Change, schema: VariableColumns = SCHEMA) -> tuple[Run, ...]:
    """Return the runs of a delta."""
    return element_runs(schema.sealed(table_of(schema, [row_of(change) for change in changes], delta=True)), schema)


def test_due_times_compare_as_numbers_and_rows_without_one_are_never_due() -> None:
    """Due times compare as numbers, also before 1970, and a row without a time is never due."""
    runs = run_of(*(Change((str(due), 1), "total", "", 1, due) for due in (-3, -1, 0, 1, 300, None)))
    reading = CopyRuns(runs).open_reading(SCHEMA, SCHEMA.key.empty_table())
    for until in (-4, -3, 0, 299, 2**62):
        due_times = [
            due for elements in reading.find_due_elements(NO_DUE + 1, until) for due in elements.due_ms.tolist()
        ]
        assert due_times == [due for due in (-3, -1, 0, 1, 300) if due <= until]


def test_keys_and_map_keys_that_share_a_hash_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, and keys of maps, that share a hash are distinguished after puts, clears, deletes and merges."""
    monkeypatch.setattr(variables, "key_hashes", lambda columns: np.zeros(len(columns[0]), np.uint64))
    monkeypatch.setattr(variable_kinds, "hash_bytes", lambda _data, starts, *_: np.zeros(len(starts), np.uint64))
    monkeypatch.setattr(reading_module, "id_of_key", lambda _: 0)
    log = Log()
    with tempfile.TemporaryDirectory() as path:
        folder = member(Path(path))
        for version in range(12):
            keys = KEYS[0][version % 3 :]
            log.seal({0: [
                *(Change(key, "pages", page, 10 * version + at if version % 4 else None, version)
                  for page in ("p", "", "w" * 300)[: 3 - version % 3] for at, key in enumerate(keys[::-1])),
                *(Change(key, "total", "", version, 5 - version) for key in keys),
                *([Change(keys[0], "events", None, None, None)] if version % 5 == 4 else []),
                Change(keys[-1], TIMER, version % 4, version % 3 or None, None),
                Change(keys[-1], "events", version, version, None),
            ]})  # fmt: skip
            check(log, log.brought(folder))
        log.snapshot(0, folder)
        check(log, log.brought(folder))
        check(log, log.brought(member(Path(path) / "other")))


def test_merged_deltas_are_stored_unpacked(tmp_path: Path) -> None:
    """Merged deltas are stored unpacked, so that a large one can be mapped."""
    log, folder, seen = Log(), member(tmp_path), set()
    for version in range(12):
        log.seal({0: [Change(KEYS[0][0], "events", 500 * version + at, 7, None) for at in range(500)]})
        keeper = StackKeeper(folder, SCHEMA, Reader(log.store), 1)
        keeper.merge(keeper.advance(log.entries)[0])
        parts = keeper.advance(log.entries)[0][0].stack.parts
        seen |= {(part.rows > 500, is_plain(folder, part)) for part in parts}
    assert seen == {(False, False), (False, True), (True, True)}  # deltas of some batches are plain
    assert model_of(read_all_rows(log.brought(folder)[0].runs, SCHEMA)) == log.models[0]


def is_plain(folder: Folder, part: StackedPart) -> bool:
    """Tell whether a part is as large as its rows."""
    data = (folder.path / part.file).read_bytes()[part.start : part.start + part.length]
    return len(data) > part_codec.open_part(data, part.file).nbytes


def test_a_key_group_without_a_copy_reads_as_empty() -> None:
    """A key-group without a copy reads like an empty one."""
    check_reading((), {}, [("a", 1)])
