"""Nested keys of a map in a session: told apart by what is in them, and nobody's to change."""

from __future__ import annotations

from typing import Any

from tests.kit.process.sessions import Store, map_of

KEYS: list[Any] = [
    ((city, zone), path) for city in ("a", None) for zone in (1, None) for path in ([], ["x"], ["x", None], None)
]


def stored() -> Store:
    """Return a store with a number under each key, in a new batch."""
    store = Store(map_of("m", "place struct<city: string, zone: int>, path array<string>", "n long"))
    store.batch("k")
    for number, key in enumerate([*KEYS, (None, None)]):
        store.map("m").update(key, (number,))
    store.commit()
    store.batch("k")
    return store


def test_nested_keys_are_told_apart_in_the_batch_and_after_it() -> None:
    """By field and element, nulls included; arrays may be tuples, structs lists or dictionaries."""
    cells = stored().map("m")
    assert [cells.get(key) for key in KEYS] == [(number,) for number in range(len(KEYS))]
    assert cells.get(({"city": "a", "zone": 1}, ("x",))) == cells.get((["a", 1], ["x"])) == (1,)
    assert not cells.contains((("b", 1), ["x"]))
    cells.update((("b", 1), ["x"]), (99,))
    assert len(list(cells.keys())) == len(KEYS) + 2


def test_maps_in_keys_are_equal_whatever_the_order_of_their_entries() -> None:
    """Also where the value beside them is read from the store."""
    store = Store(map_of("m", "load map<string, int>", "n long"))
    store.batch("k")
    for number, load in enumerate([{"x": 1, "y": None}, {"y": None, "x": 1}, {"x": 1}, {}, None]):
        store.map("m").update((load,), (number,))
    for _ in range(2):
        cells = store.map("m")
        assert [key for (key,), _ in cells.items()] == [None, {}, {"x": 1}, {"x": 1, "y": None}]
        assert cells.get(({"y": None, "x": 1},)) == cells.get(({"x": 1, "y": None},)) == (1,)
        store.commit()
        store.batch("k")


def test_nested_keys_are_removed_one_by_one() -> None:
    """What is left are the others."""
    store = stored()
    for key in [(None, None), *KEYS[1:]]:
        store.map("m").remove(key)
    store.commit()
    store.batch("k")
    assert list(store.map("m").items()) == [((("a", 1), []), (0,))]


def test_who_changes_a_list_of_a_key_changes_no_key() -> None:
    """Neither that of a key that was read, nor that of one that was written."""
    store = stored()
    given = (("c", 3), ["z"])
    store.map("m").update(given, (7,))
    given[1].append("given")
    for _ in range(2):
        for _, path in [*store.map("m").keys(), *(key for key, _ in store.map("m").items())]:
            if isinstance(path, list):
                path.append("read")
        assert [store.map("m").get(key) for key in KEYS] == [(number,) for number in range(len(KEYS))]
        assert store.map("m").get((("c", 3), ["z"])) == (7,)
        assert "read" not in repr(list(store.map("m").items()))
        store.commit()
        store.batch("k")
