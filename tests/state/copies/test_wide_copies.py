"""Copies of a store of variables: folded or restored, they hold the same, and list it in order of time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import OutOfDate
from riffle_spark.state.copies.copy import Copy, DamagedCopy
from riffle_spark.state.copies.reading import EMPTY_READING, Reading
from riffle_spark.state.log.manifest import EMPTY_HEAD, Head
from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.variable_keys import NO_DUE
from riffle_spark.state.schemas.variable_kinds import TIMER, Variable
from riffle_spark.state.schemas.variables import VariableColumns
from tests.kit.state.drawn_records import attempt
from tests.kit.state.drawn_tables import some
from tests.kit.state.drawn_variables import table_of
from tests.kit.state.wide_members import SCHEMA, Change, Key, Log, Model, member, model_of, row_of

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


@st.composite
def deltas(draw: st.DrawFn) -> dict[int, list[Change]]:
    """Draw the changes of a batch: each element at most once, and nothing put where all is cleared but new elements."""
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


@some
@given(STEPS)
def test_copies_hold_what_a_dictionary_does(steps: list[object]) -> None:
    """Whatever is put, cleared, deleted and due: a copy that folds, one that upkeep brings, and one restored from a
    snapshot and the chain after it are alike, byte for byte, and equal a plain dictionary.
    """
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
        found = [check(log, log.brought(folding)), check(log, log.followed(followed))]
        for name, bring in (("3", log.brought), ("4", log.followed)):
            found.append(check(log, bring(member(Path(folder) / name))))
        assert all(held == found[0] for held in found)


def check(log: Log, copies: dict[int, Copy]) -> list[object]:
    """Compare open copies with the models, close them, and return all that is in them."""
    everything: list[object] = []
    for key_group, copy in sorted(copies.items()):
        with copy:
            head = log.entries[key_group].head
            assert copy.head() == head
            found, pairs, longs = copy.scan()
            assert found == head
            assert model_of(SCHEMA.table(pairs, longs)) == log.models[key_group]
            with copy.reading(head) as reading:
                check_reading(reading, log.models[key_group], dict(pairs), longs)
                everything.append((key_group, pairs, longs, list(reading.due_until(2**62))))
    assert copies.keys() == log.models.keys()
    return everything


def check_reading(reading: Reading, model: Model, held: dict[bytes, bytes], longs: dict[bytes, bytes]) -> None:
    """Compare every way to read with the model."""
    dues = list(reading.due_until(7))
    assert dues == sorted(dues)
    assert [due for due, _ in reading.due_until(2**62)] == sorted(due for _, due in model.values() if due is not None)
    places = SCHEMA.places([key for _, key in dues], reading.longs([key for _, key in dues]))
    keys = [(row["user"], row["part"]) for row in places.keys.to_pylist()]
    named = zip(dues, keys, places.variables, strict=True)
    wanted = [(due, key, name) for (key, name, _), (_, due) in model.items() if due is not None and due <= 7]
    assert sorted(map(repr, wanted)) == sorted(repr((due, key, name)) for (due, _), key, name in named)
    for key in {key for key, _, _ in model}:
        group = SCHEMA.group_key(key)
        for name in ("total", "events", "pages", TIMER):
            prefix = SCHEMA.prefix(group, name)
            under = [pair for pair in sorted(held.items()) if pair[0].startswith(prefix)]
            assert list(reading.under(prefix)) == under
            assert len(under) == sum(place[:2] == (key, name) for place in model)
            assert reading.last_under(prefix) == (under[-1][0] if under else None)
    some_keys = [*reversed(held), b"\x01none"]
    assert reading.many(some_keys) == sorted(held.items())
    assert [reading.one(key) for key in some_keys] == [held.get(key) for key in some_keys]
    assert reading.longs(some_keys) == longs


def at(version: int) -> Head:
    """Return the head of a version."""
    return Head(version, attempt(version))


def encoded(*changes: Change) -> CopyRows:
    """Return rows of a delta."""
    return SCHEMA.encode(table_of(SCHEMA, [row_of(change) for change in changes], delta=True))


def test_a_reading_is_of_one_moment(tmp_path: Path) -> None:
    """It sees the head it was asked for while another process folds on, and is refused for any other."""
    with Copy(tmp_path / "c", new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), encoded(Change(("a", 1), "total", "", 1, 5)))
        with pytest.raises(OutOfDate), copy.reading(at(2)):
            pass
        with copy.reading(at(1)) as reading:
            key = SCHEMA.prefix(SCHEMA.group_key(("a", 1)), "total")
            copy.fold(at(1), at(2), encoded(Change(("a", 1), "total", "", None, None)))
            assert SCHEMA.value("total", reading.one(key) or b"") == (5, (1,))
            assert list(reading.due_until(5)) == [(5, key)]
        with copy.reading(at(2)) as reading:
            assert reading.one(key) is None
            assert list(reading.due_until(5)) == []


def test_what_is_due_later_or_never_is_not_due(tmp_path: Path) -> None:
    """Times compare as numbers, those before 1970 too; a row without a time is never due."""
    changes = [Change((str(due), 1), "total", "", 1, due) for due in (-3, -1, 0, 1, 300, None)]
    with Copy(tmp_path / "c", new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), encoded(*changes))
        with copy.reading(at(1)) as reading:
            for until in (-4, -3, 0, 299, 2**62):
                dues = [due for due in (-3, -1, 0, 1, 300) if due <= until]
                assert [due for due, _ in reading.due_until(until)] == dues


def test_a_store_that_is_not_indexed_keeps_no_times(tmp_path: Path) -> None:
    """Its values are the rows' bytes alone, and nothing is ever due."""
    schema = VariableColumns("s", SCHEMA.key, (Variable("total", "value", SCHEMA.variables[0].value),))
    row = row_of(Change(("a", 1), "total", "", 4, None))
    rows = schema.encode(table_of(schema, [row], delta=True))
    with Copy(tmp_path / "c", new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), rows)
        with copy.reading(at(1)) as reading:
            assert [schema.value("total", value) for _, value in reading.under(b"")] == [(NO_DUE, (4,))]
            assert list(reading.due_until(2**62)) == []


def test_damage_that_is_met_while_reading_is_told_as_damage(tmp_path: Path) -> None:
    """What LMDB raises becomes what makes the copy be rebuilt; what the reader raises stays what it is."""
    with Copy(tmp_path / "c", new=True) as copy:
        with pytest.raises(DamagedCopy), copy.reading(EMPTY_HEAD):
            raise lmdb.CorruptedError("a page is of no kind")
        with pytest.raises(KeyError), copy.reading(EMPTY_HEAD):
            raise KeyError


READS: list[Callable[[Reading], object]] = [
    lambda reading: reading.one(b"k"),
    lambda reading: reading.many([b"k"]) or None,
    lambda reading: reading.last_under(b""),
    lambda reading: next(reading.under(b""), None),
    lambda reading: next(reading.due_until(2**62), None),
    lambda reading: reading.longs([b"k"]) or None,
]


@pytest.mark.parametrize("read", READS)
def test_nothing_is_in_an_empty_reading_or_an_empty_copy(read: Callable[[Reading], object], tmp_path: Path) -> None:
    """A key-group without a copy reads as one whose copy is empty."""
    assert read(EMPTY_READING) is None
    with Copy(tmp_path / "c", new=True) as copy, copy.reading(EMPTY_HEAD) as reading:
        assert read(reading) is None
