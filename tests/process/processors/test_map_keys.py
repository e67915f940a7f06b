"""Nested keys of a map variable are compared by value, and users cannot modify them."""

from __future__ import annotations

from typing import Any

from tests.kit.process.sessions import Store, map_of

KEYS: list[Any] = [
    ((city, zone), path) for city in ("a", None) for zone in (1, None) for path in ([], ["x"], ["x", None], None)
]


def stored() -> Store:
    """Return a store with a number per key, in a new batch."""
    store = Store(map_of("m", "place struct<city: string, zone: int>, path array<string>", "n long"))
    store.batch("k")
    for number, key in enumerate([*KEYS, (None, None)]):
        store.map("m").update(key, (number,))
    store.commit()
    store.batch("k")
    return store


def test_nested_keys_are_compared_by_value() -> None:
    """Nested keys are compared by field and element, with nulls, in the batch and after it.

    Arrays may be tuples, and structs may be lists or dictionaries.
    """
    cells = stored().map("m")
    assert [cells.get(key) for key in KEYS] == [(number,) for number in range(len(KEYS))]
    assert cells.get(({"city": "a", "zone": 1}, ("x",))) == cells.get((["a", 1], ["x"])) == (1,)
    assert not cells.contains((("b", 1), ["x"]))
    cells.update((("b", 1), ["x"]), (99,))
    assert len(list(cells.keys())) == len(KEYS) + 2


def test_maps_in_keys_are_equal_in_any_order_of_entries() -> None:
    """Maps in a key are equal for any order of entries, in the batch and in the store."""
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


def test_modifying_a_list_in_a_key_does_not_change_the_key() -> None:
    """Modifying a list in a key that was read or written does not change the stored key."""
    store = stored()
    written_key = (("c", 3), ["z"])
    store.map("m").update(written_key, (7,))
    written_key[1].append("given")
    for _ in range(2):
        for _, path in [*store.map("m").keys(), *(key for key, _ in store.map("m").items())]:
            if isinstance(path, list):
                path.append("read")
        assert [store.map("m").get(key) for key in KEYS] == [(number,) for number in range(len(KEYS))]
        assert store.map("m").get((("c", 3), ["z"])) == (7,)
        assert "read" not in repr(list(store.map("m").items()))
        store.commit()
        store.batch("k")
