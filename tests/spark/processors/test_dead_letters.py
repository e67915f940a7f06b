"""Dead letters: if a user's function fails on a key, its rows become dead letters and leave no other trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, get_args

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import Row

from riffle_spark import Stateful, StatefulProcessor, transform_with_state, transform_with_state_in_pandas
from riffle_spark.errors import UserFunctionError
from riffle_spark.messages.slot_orders import LETTER, LateRule
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.process.types.stage_specs import GroupsSpec
from riffle_spark.protocol.operator import operator_of, with_dead_letters
from riffle_spark.spark.processors.grouped_frames import GroupedFrames
from riffle_spark.testing import Harness
from riffle_spark.testing.simulated_work import Crashed, Step
from tests.kit.examples import costly

pytestmark = pytest.mark.newer_spark

ROWS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("offset", pa.int64())])
OUTPUT = "k string, told long"
POISON = {"at once": 101, "in the middle": 102, "in its output": 103, "in its state": 104}
"""The numbers that make a function fail, by where it fails."""
TOO_LARGE = 2**40
Event = tuple[str, int]


class PoisonError(Exception):
    """The error that poisoned rows raise."""


def checked(n: int) -> int:
    """Return ``n``, or raise an error if it is poison."""
    if n == POISON["at once"]:
        raise PoisonError(f"cannot take {n}")
    return n


class PoisonedProcessor(StatefulProcessor):
    """A processor that uses all kinds of state and timers, and fails on poisoned rows."""

    pandas = False

    def init(self, handle: Any) -> None:
        """Declare a variable of each kind, each with a time to live."""
        self.handle = handle
        self.total = handle.getValueState("total", "n long", 7_000)
        self.all = handle.getListState("all", "n int", 9_000)
        self.by_n = handle.getMapState("by_n", "n long", "count long", 5_000)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Change all state with each row. Fail before the output, after it, by an invalid output or by an invalid
        state.
        """
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            for n in row["n"].tolist() if self.pandas else [row.n]:
                self.total.update(((self.total.get() or (0,))[0] + n,))
                self.by_n.updateValue((n % 3,), ((self.by_n.getValue((n % 3,)) or (0,))[0] + 1,))
                if n % 5 == 0:
                    self.by_n.removeKey((n % 2,))
                self.all.appendValue((TOO_LARGE if n == POISON["in its state"] else n,))
                for timer in list(self.handle.listTimers())[:1]:
                    self.handle.deleteTimer(timer)
                self.handle.registerTimer(now + 1_000 * (n % 7))
                yield self.told(key[0], "poison" if n == POISON["in its output"] else checked(n))
                if n == POISON["in the middle"]:
                    raise PoisonError(f"cannot go on after {n}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: ARG002
        """Output the length of the list, and clear the total."""
        yield self.told(key[0], -len(list(self.all.get())))
        self.total.clear()

    def told(self, key: Any, what: object) -> Any:
        """Return a row of output."""
        return pd.DataFrame({"k": [key], "told": [what]}) if self.pandas else Row(k=key, told=what)

    def close(self) -> None:
        """Do nothing."""


class InPandas(PoisonedProcessor):
    """The processor with pandas frames."""

    pandas = True


def grouped(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Count with a timeout, and fail on poisoned rows."""
    if state.hasTimedOut:
        yield pd.DataFrame({"k": [key[0]], "told": [-state.get[0]]})
        state.remove()
        return
    for frame in frames:
        for n in frame["n"].tolist():
            state.update(((state.get[0] if state.exists else 0) + (TOO_LARGE if n == POISON["in its state"] else n),))
            state.setTimeoutDuration(1_000 * (1 + n % 7))
            yield pd.DataFrame({"k": [key[0]], "told": ["poison" if n == POISON["in its output"] else checked(n)]})
            if n == POISON["in the middle"]:
                raise PoisonError(f"cannot go on after {n}")


def of_groups(function: Callable[..., object] = grouped) -> Stateful:
    """Return an operator with a function of groups."""
    shown = tuple((name, name) for name in ROWS.names)
    spec = GroupsSpec("groups.k", pa.schema([ROWS.field("k")]), ROWS, shown, schema_of_ddl(OUTPUT))
    compute = GroupedFrames(spec, function, schema_of_ddl("n int"), "ProcessingTimeTimeout", {})
    return Stateful("groups.k", "k", compute)


def of_processor(processor: StatefulProcessor | None = None) -> Stateful:
    """Return an operator with a processor."""
    used_processor = processor or PoisonedProcessor()
    make = transform_with_state_in_pandas if getattr(used_processor, "pandas", False) else transform_with_state
    return make(used_processor, key="k", output=OUTPUT, time_mode="ProcessingTime", store="s")


OPERATORS: dict[str, Callable[[], Stateful]] = {
    "groups": of_groups,
    "rows": of_processor,
    "pandas": lambda: of_processor(InPandas()),
}


def harness(name: str, *, dead_letters: bool = True, executors: int = 1) -> Harness:
    """Return a harness with two key-groups, so that several keys share one."""
    return Harness(OPERATORS[name](), ROWS, executors=executors, key_groups=2, dead_letters=dead_letters)


def rows_of(events: Sequence[Event], first: int = 0) -> list[Mapping[str, object]]:
    """Return rows with increasing offsets."""
    return [{"k": k, "n": n, "offset": first + at} for at, (k, n) in enumerate(events)]


def contents(query: Harness) -> list[dict[str, object]]:
    """Return the committed state, sorted."""
    return sorted(query.table().to_pylist(), key=repr)


def poisoned(batch: Sequence[Event]) -> set[str]:
    """Return the keys of the poisoned rows in a batch."""
    return {k for k, n in batch if n in POISON.values()}


NUMBERS = st.one_of(st.integers(0, 20), st.sampled_from(list(POISON.values())))
BATCHES = st.lists(st.lists(st.tuples(st.sampled_from("abcdef"), NUMBERS), max_size=8), min_size=1, max_size=3)


@pytest.mark.parametrize("name", OPERATORS)
@given(batches=BATCHES)
@example(batches=[[("a", 1), ("b", 2)], [("a", 3), ("a", POISON["in the middle"]), ("b", 4)], [("a", 5)], []])
@example(batches=[[("a", POISON["in its state"]), ("b", POISON["in its output"]), ("c", 3), ("d", 4)]])
@costly(2)
@pytest.mark.sample("rows")
def test_rows_of_failing_keys_only_become_dead_letters(name: str, batches: list[list[Event]]) -> None:
    """State, times to live, timers and output are those of a query that never got the rows of failing keys. These rows
    are the dead letters.
    """
    with harness(name) as query, harness(name, dead_letters=False) as other:
        for batch in batches:
            rows, dead = rows_of(batch), poisoned(batch)
            output = query.feed(rows)
            assert sorted(map(repr, output)) == sorted(map(repr, other.feed([r for r in rows if r["k"] not in dead])))
            assert contents(query) == contents(other)
            letters = [letter["row"] for letter in query.letters]
            assert sorted(letters, key=repr) == sorted((r for r in rows if r["k"] in dead), key=repr)
            report, clean = query.reports[-1], other.reports[-1]
            assert (report.dead_rows, report.output_rows, report.rows) == (len(letters), clean.output_rows, len(rows))
            query.advance(2)
            other.advance(2)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_dead_letter_has_the_row_and_the_error(name: str) -> None:
    """A dead letter has the row, the error's class, message and traceback, and the store and key-group."""
    with harness(name) as query:
        query.feed(rows_of([("a", 1), ("b", 2), ("a", 101)], first=40))
        first, second = query.letters
        assert [first["row"], second["row"]] == [{"k": "a", "n": 1, "offset": 40}, {"k": "a", "n": 101, "offset": 42}]
        assert (first["error"], first["message"]) == (f"{PoisonError.__module__}.PoisonError", "cannot take 101")
        assert "in checked" in str(first["traceback"])
        assert first["store"] == ("groups.k" if name == "groups" else "s")
        assert first["key_group"] in {0, 1}
        assert {**first, "row": 0} == {**second, "row": 0}
        (warning,) = [one for one in query.reports[-1].warnings if "dead letters" in one]
        assert warning.startswith("[RIFFLE-0809] Batch 0 has 2 dead letters.")
        assert "PoisonError for the first." in warning
        assert "101" not in warning, "the log must not contain the error's message, which may have values of rows"


@pytest.mark.parametrize(("name", "poison"), list(zip(["groups", "rows", "pandas", "groups"], POISON, strict=True)))
def test_without_dead_letters_the_batch_fails(name: str, poison: str) -> None:
    """Without dead letters the batch fails with the error, and nothing is committed."""
    with harness(name, dead_letters=False) as query:
        with pytest.raises(UserFunctionError, match="RIFFLE-"):
            query.feed(rows_of([("a", 1), ("b", POISON[poison])]))
        assert contents(query) == []
        assert query.letters == []


LATIN = pa.array([b"caf\xe9", b"ok"], pa.binary()).view(pa.string())


def latin_rows(name: str, column: str) -> pa.Table:
    """Return two rows. The first has text that is not UTF-8 in ``column``."""
    values = {"k": pa.array(["a", "ok"]), "n": pa.array([1, 2]), "offset": pa.array([40, 41])}
    if name != "groups":  # a function of groups has declared its columns
        values["v"] = pa.array(["x", "y"])
    return pa.table({**values, column: LATIN})


@pytest.mark.parametrize(("name", "column"), [("groups", "k"), ("rows", "k"), ("pandas", "v")])
@pytest.mark.parametrize("dead_letters", [False, True])
def test_text_that_is_not_utf8_fails_the_batch_or_is_a_dead_letter(name: str, column: str, dead_letters: bool) -> None:
    """Text that is not UTF-8 fails the batch, and the error names the column. With dead letters its row becomes one."""
    rows = latin_rows(name, column)
    with Harness(OPERATORS[name](), rows.schema, executors=1, key_groups=2, dead_letters=dead_letters) as query:
        if not dead_letters:
            with pytest.raises(UserFunctionError, match=rf"(?s)'{column}'.*make_valid_utf8"):
                query.feed(rows)
            assert contents(query) == []
            return
        output = query.feed(rows)
        assert {str(row["k"]) for row in output} == {"ok"}
        (letter,) = query.letters
        row: Any = letter["row"]
        assert (row[column], row["offset"]) == ("caf\ufffd", 40)
        assert f"'{column}'" in str(letter["message"])


@pytest.mark.parametrize("deliver_after_commit", [False, True])
def test_a_repeated_batch_has_the_same_dead_letters(deliver_after_commit: bool) -> None:
    """A batch that crashed at any step and runs again has the same dead letters."""
    operator, batch = of_processor(), rows_of([(k, n) for k in "abcdef" for n in (1, 101 if k in "bd" else 2)])
    keys_of_calls = list[list[str]]()
    steps = [step for step in get_args(Step) if step != "after sink" or not deliver_after_commit]
    for step in steps:
        options = {"deliver_after_commit": deliver_after_commit, "key_groups": 4}
        with Harness(operator, ROWS, dead_letters=True, **options) as query:  # type: ignore[arg-type] # settings
            query.crash_at(step, lose_copies=True)
            with pytest.raises(Crashed, match=step):
                query.feed(batch)
            before = query.letters
            query.feed(batch)
            keys_of_calls.append(sorted(repr(letter) for letter in query.letters or before))
            assert sorted({str(row["k"]) for row in query.delivered()}) == ["a", "c", "e", "f"]
    assert len(keys_of_calls[0]) == 4
    assert keys_of_calls == [keys_of_calls[0]] * len(steps)


class FailsOnTimer(PoisonedProcessor):
    """A processor that fails in a timer."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: ARG002
        """Fail, or output a value of the wrong type."""
        if key["k"] == "a":
            raise PoisonError("the timer fails")
        yield self.told(key["k"], "poison")


@pytest.mark.parametrize("key", ["a", "b"])
def test_an_error_in_a_timers_call_fails_the_batch(key: str) -> None:
    """An error in a timer's call or output fails the batch. No row becomes a dead letter, and the timer stays."""
    with Harness(of_processor(FailsOnTimer()), ROWS, executors=1, key_groups=1, dead_letters=True) as query:
        query.feed(rows_of([(key, 6)]))
        query.advance(7)
        before = contents(query), query.timers()
        with pytest.raises(UserFunctionError, match="RIFFLE-0193"):
            query.feed(rows_of([("c", 1), ("d", 101)]))
        assert (contents(query), query.timers()) == before
        assert query.letters == []


class WithInitial(PoisonedProcessor):
    """A processor that stores the initial state, or fails on it."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: ARG002
        """Store the initial number."""
        self.total.update((checked(initialState.n),))


def test_a_key_whose_rows_fail_keeps_its_initial_state() -> None:
    """If rows of a key fail, the key keeps its initial state. An error on the initial state fails the batch."""
    initial = pa.table({"k": ["a", "b"], "n": pa.array([50, 60], pa.int64())})
    for first, expected in ((50, {("a",): (50,), ("b",): (62,)}), (101, None)):
        start = initial.set_column(1, "n", pa.array([first, 60], pa.int64()))
        operator = of_processor(WithInitial())
        with Harness(operator, ROWS, initial=start, executors=1, key_groups=1, dead_letters=True) as query:
            batch = rows_of([("a", 1), ("a", 101), ("b", 2)])
            if expected is None:
                with pytest.raises(UserFunctionError, match="RIFFLE-0193"):
                    query.feed(batch)
            else:
                query.feed(batch)
                assert query.state("total") == expected
                assert [letter["row"] for letter in query.letters] == batch[:2]


@pytest.mark.needs_spark4("timestamps that pandas has in nanoseconds")
def test_a_row_beyond_pandas_timestamp_range_is_a_dead_letter() -> None:
    """A row with a timestamp beyond pandas' range becomes a dead letter with its original values."""
    rows = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    shown, output = tuple((name, name) for name in rows.names), schema_of_ddl("k string, told long")

    def count(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"k": [key[0]], "told": [sum(map(len, frames))]})

    spec = GroupsSpec("groups.k", pa.schema([rows.field("k")]), rows, shown, output)
    operator = Stateful("groups.k", "k", GroupedFrames(spec, count, schema_of_ddl("n int"), "NoTimeout", {}))
    times = [datetime(2024, 1, 1, tzinfo=timezone.utc) + timedelta(days=366 * years) for years in (0, 1, 2, 1000)]
    events = [{"k": k, "at": at} for k, at in zip("abcd", times, strict=True)]
    with Harness(operator, rows, executors=1, dead_letters=True) as query:
        assert sorted(str(row["k"]) for row in query.feed(events)) == ["a", "b", "c"]
        assert [letter["row"] for letter in query.letters] == events[3:]


def test_dead_letters_keep_column_names_that_differ_only_in_case() -> None:
    """The columns of a dead letter's row keep the input's names, also if these differ only in case."""
    operator = operator_of("s", ["k"], of_processor().compute, (), ROWS)
    output = with_dead_letters(replace(operator, shown={"k": "K", "n": "k", "offset": "at"})).declared.output
    assert [field.name for field in output.field(LETTER).type.field("row").type] == ["K", "n", "at"]


REFUSALS = {"memory": MemoryError("no memory"), "disk": OSError(28, "no space left")}


@pytest.mark.parametrize(("name", "refusal"), [("groups", "memory"), ("rows", "disk"), ("pandas", "memory")])
def test_memory_errors_and_os_errors_fail_the_batch(name: str, refusal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MemoryError and OSError fail the batch, because no row causes them."""

    def refuse(n: int) -> int:
        raise REFUSALS[refusal]

    monkeypatch.setitem(globals(), "checked", refuse)
    with harness(name) as query, pytest.raises(UserFunctionError, match=r"no memory|no space left"):
        query.feed(rows_of([("a", 1)]))


def test_the_messages_of_all_errors_can_be_written() -> None:
    """The messages of all errors can be written: with a lone surrogate, with a failing ``str()``, and very
    long ones.
    """

    class WithoutText(Exception):
        def __str__(self) -> str:
            raise ValueError

    errors = {"a": ValueError("\udc80 is no letter"), "b": WithoutText(), "c": KeyError("x" * 10_000)}

    def fail(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        raise errors[key[0]]

    with Harness(of_groups(fail), ROWS, executors=1, dead_letters=True) as query:
        assert query.feed(rows_of([("a", 1), ("b", 2), ("c", 3)])) == []
        messages = {str(letter["row"]["k"]): str(letter["message"]) for letter in query.letters}  # type: ignore[index]
    assert (messages["a"], messages["b"]) == ("? is no letter", "(str() of the error failed)")
    assert len(messages["c"]) < 3_000


def test_late_rows_do_not_become_dead_letters() -> None:
    """Late rows are dropped before the function sees them and do not become dead letters."""
    rows = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    shown = tuple((name, name) for name in rows.names)
    spec = GroupsSpec("groups.k", pa.schema([rows.field("k")]), rows, shown, schema_of_ddl(OUTPUT), "at")
    operator = Stateful("groups.k", "k", GroupedFrames(spec, grouped, schema_of_ddl("n int"), "NoTimeout", {}))
    with Harness(operator, rows, executors=1, late=LateRule("at", "rows"), dead_letters=True) as query:
        query.advance_watermark(1_000_000)
        query.feed([])
        query.feed([{"k": "a", "n": 101, "at": datetime(1970, 1, 1, tzinfo=timezone.utc)}])
        assert (query.letters, query.reports[-1].late_rows, query.reports[-1].dead_rows) == ([], 1, 0)
