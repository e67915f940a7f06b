"""Reads and writes of sessions: their requests, and cases that the model in test_session_model.py does not cover."""

from __future__ import annotations

import pyarrow as pa
import pytest

from riffle_spark.process.processors import cells
from riffle_spark.process.processors.cells import ReadAhead, Scope
from riffle_spark.process.types.simple_converters import Misfit
from riffle_spark.state.copies.elements import ElementRows
from tests.kit.process.sessions import Store, list_of, map_of, value

COUNT = value("n", "count long, name string")
VISITS = list_of("l", "at long")
PAGES = map_of("m", "page string", "hits long")


def test_values_of_all_keys_are_read_at_once() -> None:
    """One request reads the values of all keys of the batch. Writes need none."""
    store = Store(COUNT)
    store.batch(*map(str, range(100)))
    for number in range(100):
        store.session.select_key(number)
        store.value("n").update((number, "x"))
    assert store.reading.calls == []
    store.commit()
    store.batch(*map(str, range(100)))
    for number in range(100):
        store.session.select_key(number)
        assert store.value("n").get() == (number, "x")
    assert store.reading.calls == ["read_elements"]


def test_a_batch_that_writes_nothing_changes_nothing() -> None:
    """A batch that only reads has an empty delta with the delta's schema."""
    store = Store(COUNT, VISITS, PAGES, indexed=True)
    store.batch("a")
    assert (store.value("n").get(), list(store.list("l").get()), list(store.map("m").items())) == (None, [], [])
    changes = store.session.changes()
    assert changes.num_rows == 0
    assert changes.schema.equals(store.schema.part_schema(delta=True))


def test_an_append_never_reads_the_list() -> None:
    """An append looks up the next index, and does not read the list."""
    store = Store(VISITS)
    for _ in range(2):
        store.batch("a")
        store.list("l").append((1,))
        store.commit()
    assert set(store.reading.calls) == {"next_indexes"}


def test_an_iterator_is_a_snapshot() -> None:
    """An iterator is a snapshot, as in Spark: it does not show later changes."""
    store = Store(VISITS, PAGES)
    store.batch("a")
    store.list("l").extend([(1,), (2,)])
    store.map("m").update(("b",), (1,))
    elements, items = store.list("l").get(), store.map("m").items()
    store.list("l").append((3,))
    store.map("m").update(("a",), (2,))
    store.map("m").remove(("b",))
    assert list(elements) == [(1,), (2,)]
    assert list(items) == [(("b",), (1,))]
    assert list(store.map("m").items()) == [(("a",), (2,))]
    store.commit()
    store.batch("a")
    store.map("m").update(("b",), (3,))
    items = store.map("m").items()
    store.map("m").remove(("a",))
    assert list(items) == [(("a",), (2,)), (("b",), (3,))]


def test_a_list_longer_than_one_piece_is_read_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that is longer than one piece is read completely and in order."""
    monkeypatch.setattr(cells, "ELEMENTS_MAX", 7)
    store = Store(VISITS, PAGES)
    sizes = [3, 0, 20, 7, 8, 1, 2]
    store.batch(*"abcdefg")
    for number, size in enumerate(sizes):
        store.session.select_key(number)
        store.list("l").extend([(index,) for index in range(size)])
        for index in range(size):
            store.map("m").update((f"{index:03}",), (index,))
    store.commit()
    store.batch(*"abcdefg")
    for number, size in [*enumerate(sizes), (2, 20), (0, 3)]:
        store.session.select_key(number)
        assert [index for (index,) in store.list("l").get()] == list(range(size))
        assert [hits for (hits,) in store.map("m").values()] == list(range(size))


def test_keys_that_are_read_in_order_are_read_ahead() -> None:
    """Reading keys in order doubles the number of keys that are read ahead."""
    store = Store(VISITS)
    keys = [f"{index:04}" for index in range(1000)]
    store.batch(*keys)
    for number in range(1000):
        store.session.select_key(number)
        store.list("l").append((number,))
    store.commit()
    window_sizes: list[int] = []

    def decode(rows: ElementRows, _: object) -> list[int]:
        window_sizes.append(len(rows.ids))
        return rows.ids.tolist()

    table = pa.table({"k": keys})
    scope = Scope(store.schema, store.reading.held.open_reading(store.schema, table), 0, 1000)
    ahead = ReadAhead(scope, "l", decode)
    assert [len(list(ahead.of(number))) for number in range(1000)] == [1] * 1000
    assert window_sizes == [2, 4, 8, 16, 32, 64, 128, 256, 490]


def test_one_key_of_a_map_costs_one_lookup() -> None:
    """Reading and writing one key of a map needs one lookup, and writes one row."""
    store = Store(PAGES)
    store.batch("a")
    for index in range(50):
        store.map("m").update((f"{index}",), (index,))
    store.commit()
    store.reading.calls.clear()
    store.batch("a")
    assert store.map("m").get(("7",)) == (7,)
    store.map("m").update(("7",), (8,))
    assert store.commit().num_rows == 1
    assert store.reading.calls == ["read_entry"]


def test_nested_values_and_composite_keys_are_read_back_unchanged() -> None:
    """Nested values and keys of several columns are stored and read unchanged."""
    key = pa.schema([("k", pa.int64()), ("j", pa.string())])
    store = Store(value("v", "s struct<x:int,l:array<string>>, m map<string,int>"), PAGES, key=key)
    rows = [((1, ["a", None]), {"k": 1}), (None, None)]
    store.batch((1, "a"), (None, "b"))
    for number, row in enumerate(rows):
        store.session.select_key(number)
        store.value("v").update(row)
    store.commit()
    store.batch((None, "b"), (1, "a"))
    for number, row in enumerate(reversed(rows)):
        store.session.select_key(number)
        assert store.value("v").get() == row


def test_users_may_modify_what_they_read_and_wrote() -> None:
    """Users may modify values that they read or wrote, because each read and each write copies, as in Spark."""
    fields = "l array<int>, m map<string,array<int>>, s struct<l:array<int>>"
    store = Store(value("v", fields), list_of("l", fields), map_of("m", "k string", fields))

    def row() -> tuple[list[int], dict[str, list[int]], tuple[list[int]]]:
        return [1], {"a": [2]}, ([3],)

    def spoil(window_sizes: object) -> None:
        assert isinstance(window_sizes, tuple)
        assert window_sizes == row()
        window_sizes[0].append(9)
        window_sizes[1]["a"].append(9)
        window_sizes[1]["b"] = []
        window_sizes[2][0].append(9)

    store.batch("a")
    for write in (
        store.value("v").update,
        store.list("l").append,
        lambda fields: store.map("m").update(("k",), fields),
    ):
        written = row()
        write(written)
        spoil(written)
    for _ in range(2):
        for _ in range(2):
            spoil(store.value("v").get())
            spoil(*store.list("l").get())
            spoil(store.map("m").get(("k",)))
            spoil(*store.map("m").values())
            spoil(*(value for _, value in store.map("m").items()))
        store.commit()
        store.batch("a")


def test_a_value_that_does_not_fit_changes_nothing() -> None:
    """A refused write leaves the state unchanged."""
    store = Store(COUNT, VISITS, PAGES)
    store.batch("a")
    store.list("l").append((1,))
    refused = [
        lambda: store.value("n").update((1,)),
        lambda: store.list("l").append(("x",)),
        lambda: store.list("l").extend([(2,), ("x",)]),
        lambda: store.list("l").put([(2,), ("x",)]),
        lambda: store.map("m").update((object(),), (1,)),
        lambda: store.map("m").update(("a",), ("x",)),
        lambda: store.map("m").get(("a", "b")),
    ]
    for write in refused:
        with pytest.raises(Misfit):
            write()
    assert (store.value("n").get(), list(store.list("l").get()), store.map("m").exists()) == (None, [(1,)], False)
