"""The processor of a slot: order of calls, timers and errors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from riffle_spark.batch_times import TimeMode, Times
from riffle_spark.errors import ConfigError, CorruptStateError, UserFunctionError
from riffle_spark.garbage import collect_garbage_rarely
from riffle_spark.process.processors.cells import declare_variables
from riffle_spark.process.processors.processing import Processing
from riffle_spark.process.processors.processor import InputByKey, Key, split_into_windows
from riffle_spark.process.processors.session import Session
from riffle_spark.process.processors.value_cells import ValueCells
from riffle_spark.state.schemas.variables import VariableColumns
from tests.kit.process.memory_reading import MemoryReading
from tests.kit.process.sessions import KEY, value

ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])


class TupleForm:
    """A form of keys, rows and output as tuples."""

    def __init__(self) -> None:
        self.taken: list[tuple[object, ...]] = []

    def keys(self, keys: pa.Table) -> Iterable[Key]:
        """See ``Form``."""
        return zip(*(column.to_pylist() for column in keys.columns), strict=True)

    def rows(self, rows: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """See ``Form``."""
        numbers = rows.column("n").to_pylist()
        return (iter(numbers[start:end]) for start, end in pairwise(positions))

    states = rows

    def collect(self, output: Iterable[object]) -> None:
        """See ``Form``."""
        self.taken.extend(output)  # type: ignore[arg-type]

    def output(self) -> pa.Table:
        """See ``Form``."""
        sorted_input, self.taken = self.taken, []
        return pa.table({"out": [repr(recorder) for recorder in sorted_input]})


class Recorder:
    """A processor that records its calls."""

    def __init__(self, on_rows: Callable[[Recorder, Key], None] = lambda _, __: None) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.on_rows = on_rows
        self.on_timer: Callable[[Recorder, Key, int], None] = lambda _, __, ___: None
        self.session: Session
        self.watermark_ms: int | None = None

    @property
    def count(self) -> ValueCells:
        """Return the cells of the variable ``n``."""
        cells = self.session.cells["n"]
        assert isinstance(cells, ValueCells)
        return cells

    def begin(self) -> None:
        """See ``Processor``."""
        self.calls.append(("begin",))

    def set_session(self, session: Session) -> None:
        """See ``Processor``."""
        self.session = session

    def initial(self, key: Key, state: object) -> None:
        """See ``Processor``."""
        self.calls.append(("initial", *key, state))

    def rows(self, key: Key, rows: Iterator[object]) -> Iterable[object]:
        """See ``Processor``."""
        self.on_rows(self, key)
        for row in rows:
            self.calls.append(("row", *key, row))
            yield (*key, row)

    def set_watermark(self, watermark_ms: int | None) -> None:
        """See ``Processor``."""
        self.watermark_ms = watermark_ms

    def expired(self, key: Key, due_ms: int) -> Iterable[object]:
        """See ``Processor``."""
        self.on_timer(self, key, due_ms)
        self.calls.append(("timer", *key, due_ms, self.watermark_ms))
        return [(*key, due_ms)]

    def end(self) -> None:
        """See ``Processor``."""
        self.calls.append(("end",))


class Slot:
    """A slot with its local copies by key-group, over several batches."""

    def __init__(self, processor: Recorder, mode: TimeMode = "ProcessingTime") -> None:
        self.schema = VariableColumns("s", KEY, (value("n", "n long"),), indexed=mode != "None")
        self.copies = [MemoryReading(self.schema) for _ in range(3)]
        self.processor, self.mode = processor, mode
        self.outcomes: list[tuple[int, int, int | None]] = []

    def batch(
        self, *key_groups: dict[str, list[int]], now_ms: int = 0, watermark_ms: int | None = None,
        last_pass_ms: int | None = None, states: dict[str, list[int]] | None = None,
    ) -> list[object]:  # fmt: skip
        """Run a batch with the keys and rows of each key-group. Return the output."""
        times = Times(self.mode, now_ms, watermark_ms, last_pass_ms)
        form = TupleForm()
        processing = Processing(
            self.schema, declare_variables(self.schema), self.processor, form, times, where="slot 1"
        )
        keys = [key for group in key_groups for key in group]
        rows = [(index, n) for index, n in enumerate(n for group in key_groups for n in group.values())]
        processing.begin(grouped(keys, rows, states or {}))
        self.outcomes = []
        for copy, group in zip(self.copies, key_groups, strict=False):
            outcome = processing.process_key_group(len(group), copy.held)
            copy.fold(outcome.changes)
            self.outcomes.append((outcome.timers_fired, outcome.expired, outcome.timer_ms))
        output = processing.output()
        processing.end()
        return output.column("out").to_pylist()


def grouped(keys: list[str], rows: list[tuple[int, list[int]]], states: dict[str, list[int]]) -> InputByKey:
    """Return the input with the rows of all keys alternating."""
    turns = [(n[turn], index) for turn in range(4) for index, n in rows if turn < len(n)]
    table = pa.table({"k": [keys[index] for _, index in turns], "n": [n for n, _ in turns]}, schema=ROWS)
    codes = np.array([index for _, index in turns], dtype=np.int64)
    grouped_rows = InputByKey.of(pa.table({"k": pa.array(keys, pa.string())}), table, codes)
    if not states:
        return grouped_rows
    initial_rows = [(key, n) for key, numbers in states.items() for n in numbers]
    initial = pa.table({"k": [key for key, _ in initial_rows], "n": [n for _, n in initial_rows]}, schema=ROWS)
    return grouped_rows.with_states(initial, np.array([keys.index(key) for key, _ in initial_rows]))


def test_calls_have_sparks_order() -> None:
    """Per key, initial states precede rows. Per key-group, timers follow in order of time."""
    processor = Recorder(lambda recorder, key: recorder.session.timers.register(10 - len(str(key[0]))))
    slot = Slot(processor)
    output = slot.batch(
        {"a": [1, 2], "bb": [3]}, {"c": [4], "d": []}, now_ms=10, states={"bb": [7, 8], "c": [9], "d": [5]}
    )
    assert processor.calls == [
        ("begin",),
        ("row", "a", 1), ("row", "a", 2), ("initial", "bb", 7), ("initial", "bb", 8), ("row", "bb", 3),
        ("timer", "bb", 8, None), ("timer", "a", 9, None),
        ("initial", "c", 9), ("row", "c", 4), ("initial", "d", 5), ("timer", "c", 9, None),
        ("end",),
    ]  # fmt: skip
    assert output == [
        repr(recorder) for recorder in [("a", 1), ("a", 2), ("bb", 3), ("bb", 8), ("a", 9), ("c", 4), ("c", 9)]
    ]
    assert slot.outcomes == [(2, 0, None), (1, 0, None)]


def test_the_output_of_a_key_is_consumed_before_the_next_key() -> None:
    """The output of a key is consumed before the next key, so state that a generator writes at its end has that key."""

    class LateProcessor(Recorder):
        def rows(self, key: Key, rows: Iterator[object]) -> Iterable[object]:
            yield from rows
            self.count.update((len(str(key[0])),))

    slot = Slot(LateProcessor(), "None")
    slot.batch({"a": [1], "bb": [2], "ccc": [3]})
    observed: list[object] = []
    slot.processor = Recorder(lambda recorder, key: observed.append((*key, recorder.count.get())))
    slot.batch({"a": [1], "bb": [2], "ccc": [3]})
    assert observed == [("a", (1,)), ("bb", (2,)), ("ccc", (3,))]


def test_a_key_group_without_rows_fires_its_due_timers() -> None:
    """A key-group without rows fires the due timers of its stored keys."""
    processor = Recorder(lambda recorder, _: recorder.session.timers.register(5))
    slot = Slot(processor)
    slot.batch({"a": [1]}, {"b": [1]}, now_ms=0)
    assert slot.outcomes == [(0, 0, 5), (0, 0, 5)]
    assert slot.batch({}, {"c": [2]}, now_ms=5) == [
        repr(recorder) for recorder in [("a", 5), ("c", 2), ("b", 5), ("c", 5)]
    ]
    assert slot.outcomes == [(1, 0, None), (2, 0, None)]


def registering(*times: int) -> Callable[[Recorder, Key], None]:
    """Return a function that registers timers at these times."""

    def register(recorder: Recorder, _: Key) -> None:
        for index in times:
            recorder.session.timers.register(index)

    return register


def test_event_time_timers_fire_at_the_watermark() -> None:
    """Event-time timers fire once the watermark reaches their time. Without a watermark only 0 is due."""
    processor = Recorder(registering(0, 5, 9))
    slot = Slot(processor, "EventTime")
    assert slot.batch({"a": [1]}, now_ms=100) == ["('a', 1)", "('a', 0)"]
    assert slot.batch({}, now_ms=200, watermark_ms=4) == []
    assert slot.batch({}, now_ms=300, watermark_ms=5) == ["('a', 5)"]
    assert processor.calls[-2] == ("timer", "a", 5, 5)


def test_the_last_pass_fires_timers_that_the_newer_watermark_makes_due() -> None:
    """The last pass fires the timers that the newer watermark makes due, also those of the first pass."""
    processor = Recorder(registering(3, 8, 20))
    processor.on_timer = lambda recorder, _, due: recorder.session.timers.register(due + 4) if due == 3 else None
    slot = Slot(processor, "EventTime")
    slot.batch({"a": [1]}, watermark_ms=5, last_pass_ms=10)
    assert [call for call in processor.calls if call[0] == "timer"] == [
        ("timer", "a", 3, 5), ("timer", "a", 7, 10), ("timer", "a", 8, 10),
    ]  # fmt: skip
    assert slot.outcomes == [(3, 0, 20)]


def test_each_key_group_begins_with_the_batchs_watermark() -> None:
    """Each key-group starts with the watermark of the batch. Only the last pass has the newer one."""
    observed: list[object] = []

    def look(recorder: Recorder, key: Key) -> None:
        observed.append((*key, recorder.watermark_ms))
        recorder.session.timers.register(7)

    Slot(Recorder(look), "EventTime").batch({"a": [1]}, {"b": [1]}, watermark_ms=5, last_pass_ms=10)
    assert observed == [("a", 5), ("b", 5)]


def test_no_timer_fires_with_the_time_mode_none() -> None:
    """With the time mode None, no timer fires, and the copy is not searched for timers."""
    processor = Recorder()
    slot = Slot(processor, "None")
    slot.batch({"a": [1]}, now_ms=100, watermark_ms=100)
    assert slot.outcomes == [(0, 0, None)]
    assert "find_due_elements" not in slot.copies[0].calls


@pytest.mark.parametrize("when", ["rows", "timer", "begin", "end", "initial"])
def test_an_exception_of_a_processor_has_its_line_key_and_slot(when: str) -> None:
    """An exception of a processor is shown with the user's line, the key, and the slot."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("of the user")

    processor = Recorder(fail if when == "rows" else lambda recorder, _: recorder.session.timers.register(0))
    processor.on_timer = fail if when == "timer" else processor.on_timer
    if when in ("begin", "end", "initial"):
        setattr(processor, when, fail)
    with pytest.raises(UserFunctionError, match="RIFFLE-0193") as caught:
        Slot(processor).batch({"kate": [1]}, states={"kate": [2]})
    assert "raise ZeroDivisionError" in caught.value.problem
    assert caught.value.where == "slot 1"
    assert ("'kate'" in caught.value.problem) is (when in ("rows", "timer", "initial"))


@pytest.mark.parametrize("error", [ConfigError("declare it"), CorruptStateError("torn")], ids=repr)
def test_errors_of_the_product_pass_unchanged(error: Exception) -> None:
    """Errors of the product pass unchanged: a corrupt copy is not an error of the processor."""

    def fail(*_: object) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        Slot(Recorder(fail)).batch({"a": [1]})
    assert caught.value is error


def test_a_number_out_of_range_names_its_field() -> None:
    """A number out of range raises an error when the columns are built."""
    schema = VariableColumns("s", KEY, (value("n", "small byte"),))
    processor = Recorder(lambda recorder, key: recorder.count.update((1000 if key == ("b",) else 1,)))
    processing = Processing(schema, declare_variables(schema), processor, TupleForm(), Times("None", 0))
    processing.begin(grouped(["a", "a2", "b"], [(0, [1]), (1, [1]), (2, [1])], {}))
    with pytest.raises(UserFunctionError, match="RIFFLE-0193"):
        processing.process_key_group(3)


@pytest.mark.parametrize("fails", [False, True])
def test_garbage_collection_thresholds_are_restored_after_a_batch(fails: bool) -> None:
    """The thresholds of garbage collection are restored after a batch, also if the processor raises."""
    thresholds, during = gc.get_threshold(), []

    def look(*_: object) -> None:
        during.append(gc.get_threshold())
        if fails:
            raise ZeroDivisionError

    with pytest.raises(UserFunctionError) if fails else nullcontext(), collect_garbage_rarely():
        Slot(Recorder(look)).batch({"a": [1]})
    assert during[0] > thresholds
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([30], [(0, 1)]),
        ([5, 5, 1], [(0, 2), (2, 3)]),
        ([5, 0, 5, 0, 1], [(0, 4), (4, 5)]),
        ([1, 30, 1, 0], [(0, 1), (1, 2), (2, 4)]),
        ([0, 0], [(0, 2)]),
    ],
)
def test_keys_are_split_into_windows_of_bounded_rows(sizes: list[int], expected: list[tuple[int, int]]) -> None:
    """Keys are split into windows of bounded rows. Only a single larger key exceeds the bound."""
    assert list(split_into_windows([0, *np.cumsum(sizes).tolist()], 10)) == expected


def test_rows_of_a_key_keep_their_order() -> None:
    """Rows of a key keep their order. Rows that are already sorted are not copied."""
    keys = pa.table({"k": ["a", "b"]})
    rows = pa.table({"k": ["b", "a", "b", "a"], "n": [1, 2, 3, 4]})
    sorted_input = InputByKey.of(keys, rows, np.array([1, 0, 1, 0]))
    assert sorted_input.rows.column("n").to_pylist() == [2, 4, 1, 3]
    assert list(sorted_input.positions) == [0, 2, 4]
    assert InputByKey.of(keys, sorted_input.rows, np.array([0, 0, 1, 1])).rows is sorted_input.rows
    assert list(InputByKey.of(keys, rows.slice(0, 0), np.array([], dtype=np.int64)).positions) == [0, 0, 0]
