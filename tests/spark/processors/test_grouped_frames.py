"""``applyInPandasWithState`` on a harness: the function's frames, its state, and when keys time out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark
import pytest

from riffle_spark import Stateful
from riffle_spark.errors import UserFunctionError
from riffle_spark.messages.slot_orders import LateRule
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.process.types.stage_specs import GroupsSpec
from riffle_spark.spark.processors.grouped_frames import GroupedFrames
from riffle_spark.testing import Harness

pytestmark = [pytest.mark.newer_spark, pytest.mark.smoke]

Function = Callable[[Any, Any, Any], Any]
TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("user", pa.string()), ("part", pa.int32()), ("at", TIME), ("n", pa.int64()), ("ok", pa.bool_())])
OUTPUT = schema_of_ddl("user string, told string")
EVENT, CLOCK = "EventTimeTimeout", "ProcessingTimeTimeout"
BEGIN = datetime(2024, 5, 1, tzinfo=timezone.utc)
BEGIN_MS = int(BEGIN.timestamp()) * 1000


def groups(
    function: Function, state: str = "n long", timeout: str = "NoTimeout", keys: Sequence[str] = ("user",),
    **pandas: object,
) -> Harness:  # fmt: skip
    """Return a harness with a function of groups that gets all columns."""
    of_key = pa.schema([ROWS.field(name) for name in keys])
    shown = tuple((name, name) for name in ROWS.names)
    spec = GroupsSpec("groups.user", of_key, ROWS, shown, OUTPUT, "at")
    compute = GroupedFrames(spec, function, schema_of_ddl(state), timeout, pandas)
    return Harness(Stateful("groups.user", list(keys), compute), ROWS, late=LateRule("at", "rows"), executors=1)


def row(user: str | None, n: int | None = None, second: float = 0, **more: object) -> Mapping[str, object]:
    """Return a row with an event time."""
    return {"user": user, "n": n, "at": BEGIN + timedelta(seconds=second), **more}


def output_frame(user: object, what: object) -> pd.DataFrame:
    """Return a frame with one output row."""
    return pd.DataFrame({"user": [user], "told": [str(what)]})


def answers(rows: Sequence[Mapping[str, object]]) -> list[tuple[object, ...]]:
    """Return the delivered rows, sorted."""
    return sorted((tuple(one.values()) for one in rows), key=repr)


def counted(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """Count the rows of a key."""
    count = sum(map(len, frames)) + (state.get[0] if state.exists else 0)
    state.update((count,))
    yield output_frame(key[0], count)


def test_the_types_of_a_frame_depend_only_on_the_rows_of_its_key() -> None:
    """The types of a key's frame depend only on this key's rows, as in Spark, and its index starts at 0."""
    seen = dict[object, tuple[object, ...]]()

    def look(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        (frame,) = frames
        kinds = [str(frame[name].dtype) for name in frame.columns]
        seen[key] = list(frame.columns), kinds, list(frame.index), frame["n"].tolist()
        return iter(())

    with groups(look) as query:
        query.feed([row("a", 1, ok=True), row("b", 2, part=3), row("a", 5, ok=False), row("b", ok=True)])
    times = "datetime64[us]" if pyspark.__version__.startswith("3.") else "datetime64[ns]"
    assert seen["a",] == (ROWS.names, ["object", "float64", times, "int64", "bool"], [0, 1], [1, 5])
    kinds = ["object", "float64", times, "float64", "object"]
    assert seen["b",][:3] == (ROWS.names, kinds, [0, 1])


def test_keys_have_numpys_scalar_types() -> None:
    """Keys have NumPy's scalar types. NULL in a key is what pandas makes of it."""
    seen = list[Any]()

    def look(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        seen.append(key)
        return iter(())

    with groups(look, keys=("part", "ok")) as query:
        query.feed([row("a", part=7, ok=True), row("a")])
    (number, flag), (nothing, none) = sorted(seen, key=lambda key: key[1] is None)
    assert (type(number), number, type(flag)) == (np.int32, 7, np.bool_)
    assert np.isnan(nothing)
    assert none is None


def test_many_rows_of_a_key_come_in_several_frames() -> None:
    """A key with many rows gets them in order, in frames of at most the configured number of rows."""

    def look(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        yield output_frame(key[0], [frame["n"].tolist() for frame in frames])

    with groups(look, rows_max=2) as query:
        found = query.feed([row(user, n) for n in range(5) for user in "ab"[: 2 - n // 2]])
    assert answers(found) == [("a", "[[0, 1], [2, 3]]"), ("b", "[[0, 1]]")]


def quiet(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """Output a key that had no rows for two seconds."""
    if state.hasTimedOut:
        (frame,) = frames
        yield output_frame(key[0], (state.get[0], len(frame), list(frame.columns) == ROWS.names))
        state.remove()
        return
    rows = pd.concat(list(frames))
    state.update(((state.getOption or (0,))[0] + len(rows),))
    newest = int(rows["at"].max().timestamp() * 1000)
    state.setTimeoutTimestamp(max(newest + 2_000, state.getCurrentWatermarkMs()))


def test_a_key_times_out_once_the_watermark_is_beyond_its_timeout() -> None:
    """A key times out once the watermark is beyond its timeout, after the batch's rows were processed, and is
    removed.
    """
    with groups(quiet, timeout=EVENT) as query:
        query.feed([row("a", second=1), row("b", second=1), row("a", second=2)])
        query.advance_watermark(BEGIN_MS + 3_000)
        assert query.feed([row("b", second=9)]) == []
        query.advance_watermark(BEGIN_MS + 4_000)
        assert query.feed([]) == []
        query.advance_watermark(BEGIN_MS + 4_001)
        assert answers(query.feed([])) == [("a", "(2, 0, True)")]
        assert set(query.state()) == {("b",)}
        query.advance_watermark(BEGIN_MS + 60_000)
        assert answers(query.feed([])) == [("b", "(2, 0, True)")]
        assert query.state() == {}


def test_a_processing_timeout_is_relative_to_the_time_of_its_batch() -> None:
    """A processing-time timeout is relative to the time of the batch that sets it."""

    def wait(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            yield output_frame(key[0], state.getCurrentProcessingTimeMs())
            state.remove()
        else:
            yield from counted(key, frames, state)
            state.setTimeoutDuration(1_000)

    with groups(wait, timeout=CLOCK) as query:
        first = query.now_ms
        assert answers(query.feed([row("a")])) == [("a", "1")]
        query.advance(1)
        assert query.feed([]) == []
        query.advance(0.001)
        assert answers(query.feed([])) == [("a", str(first + 1_001))]
        assert query.state() == {}


DOES: dict[str, Callable[[Any], object]] = {
    "nothing": lambda _state: None,
    "update": lambda state: state.update((2,)),
    "remove": lambda state: state.remove(),
    "time-out": lambda state: state.setTimeoutTimestamp(BEGIN_MS + 9_000),
    "remove, time-out": lambda state: (state.remove(), state.setTimeoutTimestamp(BEGIN_MS + 9_000)),
    "update, remove": lambda state: (state.update((2,)), state.remove()),
    "remove, update": lambda state: (state.remove(), state.update((2,))),
}
"""The changes that a call makes. Before it the state is 1, with a timeout in five seconds."""
KEPT: dict[str, tuple[object, bool, int | None] | None] = {
    "nothing": (1, True, 5_001),
    "update": (2, True, None),
    "remove": None,
    "time-out": (1, True, 9_001),
    "remove, time-out": (None, False, 9_001),
    "update, remove": None,
    "remove, update": (2, True, None),
}
"""The number, whether there is a state, and the timeout (ms) after each call, as in Spark."""


@pytest.mark.parametrize("has_timed_out", [False, True])
@pytest.mark.parametrize("does", DOES)
def test_state_and_timeout_after_a_call_are_those_of_spark(does: str, *, has_timed_out: bool) -> None:
    """The state and timeout after a call are Spark's, for every combination of update, remove and setTimeout, also
    after a timeout.
    """

    def call(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        if any(frame["n"].tolist() == [1] for frame in frames):
            state.update((1,))
            state.setTimeoutTimestamp(BEGIN_MS + 5_000)
        else:
            DOES[does](state)
        yield output_frame(key[0], state.hasTimedOut)

    with groups(call, timeout=EVENT) as query:
        query.feed([row("a", 1)])
        if has_timed_out:
            query.advance_watermark(BEGIN_MS + 6_000)
        assert answers(query.feed([] if has_timed_out else [row("a", 2)])) == [("a", str(has_timed_out))]
        wanted = KEPT[does]
        state: dict[Any, Any] = dict(query.state())
        kept = {
            key: (one["n"], one["has_state"], one["due_ms"] and one["due_ms"] - BEGIN_MS) for key, one in state.items()
        }
        assert kept == ({} if wanted is None else {("a",): wanted})


def test_a_key_that_stays_due_is_called_with_each_batch() -> None:
    """A key that times out and is neither updated nor removed is called in each batch, as in Spark."""

    def stubborn(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        if not state.hasTimedOut:
            state.update((1,))
            state.setTimeoutTimestamp(BEGIN_MS)
        else:
            yield output_frame(key[0], state.get)

    with groups(stubborn, timeout=EVENT) as query:
        query.feed([row("a")])
        for second in (1, 2):
            query.advance_watermark(BEGIN_MS + second)
            assert answers(query.feed([])) == [("a", "(1,)")]


def test_state_is_read_back_as_in_spark() -> None:
    """State is read back as in Spark: timestamps without a zone in local time, structs as rows, and NumPy scalars as
    Python values.
    """
    fields = (
        "user string, due_ms int, at timestamp, day date, tags array<string>, by map<string, int>, one struct<x: int>"
    )
    state_values = ("x", np.int32(3), datetime(2024, 5, 1, 12), date(2024, 5, 1), ["p", None], {"k": 1}, (4,))
    seen = list[Any]()

    def keep(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        seen.append(state.getOption)
        state.update(state_values)
        state.setTimeoutDuration(5)
        return iter(())

    with groups(keep, state=fields, timeout=CLOCK) as query:
        query.feed([row("a")])
        query.feed([row("a")])
    assert seen == [None, state_values]
    assert type(seen[1][1]) is int
    assert seen[1][-1].x == 4


def test_nan_in_a_field_without_nan_is_stored_as_null() -> None:
    """NaN, which pandas has for a null integer key, is stored as null, as in Spark. A field that has NaN keeps it."""
    seen = list[Any]()

    def keep(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        seen.append(state.getOption)
        state.update((key[0], float("nan"), float("nan"), np.float64("nan")))
        return iter(())

    with groups(keep, state="part int, ratio double, day date, ok boolean", keys=["part"]) as query:
        query.feed([row("a")])
        query.feed([row("a")])
    (part, ratio, day, ok) = seen[1]
    assert (part, day, ok) == (None, None, None)
    assert np.isnan(ratio)


def test_a_function_may_return_several_frames() -> None:
    """A function may return several frames as a list, matched by name or by position. Empty frames are skipped."""

    def many(key: Any, frames: Any, state: Any) -> Any:
        by_name = pd.DataFrame({"told": ["x", None], "user": [key[0], "other"]})
        return [by_name, pd.DataFrame({"user": [], "told": []}), pd.DataFrame(), pd.DataFrame([["at", "place"]])]

    with groups(many) as query:
        assert answers(query.feed([row("a")])) == [("a", "x"), ("at", "place"), ("other", None)]


WRONG: dict[str, Function] = {
    "should be iterable of pandas.DataFrame, but is DataFrame": lambda key, _frames, _state: output_frame(key[0], 1),
    "should be iterable, but is int": lambda _key, _frames, _state: 1,
    "should be iterator of pandas.DataFrame, but is iterator of int": lambda _key, _frames, _state: [1],
    "Expected: 2 Actual: 1": lambda _key, _frames, _state: [pd.DataFrame({"user": ["a"]})],
    "ZeroDivisionError, key ('a',)": lambda _key, _frames, _state: 1 / 0,
    "Cannot convert the output value of the column 'user'": lambda _key, _frames, _state: [
        pd.DataFrame({"user": [BEGIN], "told": ["x"]})
    ],
    "1 fields are required while 2 values are provided": lambda _key, _frames, state: [state.update((1, 2))],
    "cannot be None": lambda _key, _frames, state: [state.update(None)],
    "without enabling processing time timeout": lambda _key, _frames, state: [state.setTimeoutDuration(1)],
    "State is either not defined or has already been removed": lambda _key, _frames, state: [state.get],
}


@pytest.mark.parametrize("words", WRONG)
def test_mistakes_in_a_function_raise_sparks_errors(words: str) -> None:
    """Mistakes in a function raise Spark's error messages, and nothing is committed."""

    def wrong(key: Any, frames: Any, state: Any) -> Any:
        found = WRONG[words](key, frames, state)
        return [one for one in found if one is not None] if isinstance(found, list) else found

    with groups(wrong) as query:
        with pytest.raises(UserFunctionError) as raised:
            query.feed([row("a")])
        assert words in str(raised.value)
        assert query.state() == {}
