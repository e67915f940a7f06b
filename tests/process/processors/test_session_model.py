"""Property: a session returns what a model of plain dictionaries returns, for any batches of calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.process.processors.cells import declare_variables
from riffle_spark.process.processors.list_cells import ListCells
from riffle_spark.process.processors.map_cells import MapCells
from riffle_spark.process.processors.session import Session
from riffle_spark.process.processors.value_cells import ValueCells
from riffle_spark.state.copies.reading import CopyRuns
from riffle_spark.state.schemas.variables import VariableColumns
from tests.kit.process.memory_reading import MemoryReading
from tests.kit.process.sessions import list_of, map_of, value

TTL = 30
SCHEMA = VariableColumns(
    "s",
    pa.schema([("k", pa.string())]),
    (
        value("v", "n long, s string"),
        list_of("l", "n long"),
        map_of("m", "k string", "n long"),
        value("tv", "n long", TTL),
        list_of("tl", "n long", TTL),
        map_of("tm", "k string", "n long", TTL),
    ),
    indexed=True,
)
DECLARED = declare_variables(SCHEMA)
KEYS = ["a", "b", "", "k" * 300]
PAGES = ["x", "y", "\x00", "p" * 260]

numbers = st.integers(0, 9)
calls = st.one_of(
    st.tuples(st.just("update"), st.sampled_from(["v", "tv"]), numbers),
    st.tuples(st.just("append"), st.sampled_from(["l", "tl"]), st.lists(numbers, min_size=1, max_size=3)),
    st.tuples(st.just("put"), st.sampled_from(["l", "tl"]), st.lists(numbers, min_size=1, max_size=3)),
    st.tuples(st.just("set"), st.sampled_from(["m", "tm"]), st.tuples(st.sampled_from(PAGES), numbers)),
    st.tuples(st.just("remove"), st.sampled_from(["m", "tm"]), st.sampled_from(PAGES)),
    st.tuples(st.just("clear"), st.sampled_from(["v", "l", "m", "tv", "tl", "tm"]), st.none()),
    st.tuples(st.sampled_from(["register", "delete"]), st.just(""), st.sampled_from(range(0, 100, 10))),
)
batches = st.lists(
    st.tuples(
        st.lists(st.sampled_from(KEYS), unique=True),
        st.lists(st.tuples(st.integers(0, 3), calls), max_size=12),
        st.integers(0, 20),
    ),
    max_size=6,
)
Call = tuple[str, str, Any]
Batch = tuple[list[str], list[tuple[int, Call]], int]


@dataclass
class Model:
    """The state as dictionaries: each element with the time when it expires."""

    elements: dict[tuple[str, str], dict[object, tuple[object, int | None]]] = field(default_factory=dict)
    timers: set[tuple[int, str]] = field(default_factory=set)
    places: Iterator[int] = field(default_factory=count)

    def of(self, name: str, key: str, now_ms: int) -> list[tuple[object, object]]:
        """Return the elements of a variable that have not expired."""
        visible = self.elements.get((name, key), {})
        return [(element, action) for element, (action, due) in visible.items() if due is None or due > now_ms]

    def call(self, key: str, call: Call, now_ms: int) -> None:
        """Apply a call to the model."""
        action, name, argument = call
        due = now_ms + TTL if name.startswith("t") else None
        elements = self.elements.setdefault((name, key), {})
        if action in ("clear", "put"):
            elements.clear()
        if action == "update":
            elements[None] = (argument, due)
        elif action in ("append", "put"):
            elements.update({next(self.places): (number, due) for number in argument})
        elif action == "set":
            elements[argument[0]] = (argument[1], due)
        elif action == "remove":
            elements.pop(argument, None)
        elif action == "register":
            self.timers.add((argument, key))
        elif action == "delete":
            self.timers.discard((argument, key))

    def expire(self, now_ms: int) -> int:
        """Remove the expired elements. Return how many they were."""
        expired = [(elements, element) for elements in self.elements.values() for element, (_, due) in elements.items()
                if due is not None and due <= now_ms]  # fmt: skip
        for elements, element in expired:
            del elements[element]
        return len(expired)

    def count(self) -> int:
        """Return the number of elements, including expired ones that are not removed yet."""
        return sum(map(len, self.elements.values()))

    def next_ms(self) -> int | None:
        """Return the earliest due time of all elements and timers."""
        dues = [due for elements in self.elements.values() for _, due in elements.values() if due is not None]
        return min([*dues, *(due for due, _ in self.timers)], default=None)


def tell(session: Session, call: Call) -> None:
    """Apply a call to a session."""
    action, name, argument = call
    cells = session.cells.get(name)
    if action == "update" and isinstance(cells, ValueCells):
        cells.update((argument, "z") if name == "v" else (argument,))
    elif action in ("append", "put") and isinstance(cells, ListCells):
        (cells.extend if action == "append" else cells.put)([(number,) for number in argument])
    elif action == "set" and isinstance(cells, MapCells):
        cells.update((argument[0],), (argument[1],))
    elif action == "remove" and isinstance(cells, MapCells):
        cells.remove((argument,))
    elif action == "clear" and cells is not None:
        cells.clear()
    else:
        (session.timers.register if action == "register" else session.timers.delete)(argument)


def compare(session: Session, model: Model, key: str, now_ms: int) -> None:
    """Compare all variables and timers of the session's selected key with the model."""
    for name, cells in session.cells.items():
        visible = model.of(name, key, now_ms)
        assert cells.exists() is bool(visible), (name, key)
        if isinstance(cells, ValueCells):
            values = cells.get()
            assert (None if values is None else values[0]) == (visible[0][1] if visible else None), (name, key)
        elif isinstance(cells, ListCells):
            assert [number for (number,) in cells.get()] == [element for _, element in visible], (name, key)
        else:
            assert dict(cells.items()) == {(page,): (action,) for page, action in visible}, (name, key)
            assert [cells.get((page,)) for page in PAGES] == [
                (dict(visible)[page],) if page in dict(visible) else None for page in PAGES
            ]
    assert list(session.timers.list()) == sorted(due for due, timer_key in model.timers if timer_key == key)


def run_batch(elements: CopyRuns, model: Model, batch: Batch, now_ms: int) -> pa.Table:
    """Run one batch on the session and on the model, and compare them. Return the delta."""
    keys, calls_of_batch, _ = batch
    count_before = model.count()
    session = Session(SCHEMA, DECLARED, elements, pa.table({"k": pa.array(keys, pa.string())}), now_ms)
    for place, call in calls_of_batch if keys else []:
        session.select_key(place % len(keys))
        tell(session, call)
        model.call(keys[place % len(keys)], call, now_ms)
        if place == 0:
            compare(session, model, keys[0], now_ms)
    for number, key in enumerate(keys):
        session.select_key(number)
        compare(session, model, key, now_ms)
    due = session.fire(now_ms)
    of_key = session.keys(0).column("k").to_pylist()
    fired = [(due_ms, of_key[number]) for due_ms, number in due]
    assert fired == sorted(timer for timer in model.timers if timer[0] <= now_ms)
    for due_ms, number in due:
        session.select_key(number)
        session.timers.delete(due_ms)
    model.timers -= set(fired)
    stored = model.expire(now_ms)
    assert session.expire() <= stored
    assert session.next_due_ms() == model.next_ms()
    rows = session.count_rows()
    assert count_before + rows.added - rows.removed == model.count()
    return session.changes()


def run_all(drawn: list[Batch], copy: MemoryReading) -> None:
    """Run all batches with time passing between them. At the end compare every key."""
    model, now_ms = Model(), 0
    for batch in [*drawn, (KEYS, [], 0)]:
        now_ms += batch[2]
        copy.fold(run_batch(copy.held, model, batch, now_ms))


@given(batches, st.integers(1, 4))
def test_state_equals_a_model_of_dictionaries(drawn: list[Batch], run_count_max: int) -> None:
    """Property: values, lists, maps, timers and TTLs equal the model's, within a batch and after it."""
    run_all(drawn, MemoryReading(SCHEMA, run_count_max))
