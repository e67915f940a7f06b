"""Values of every kind are stored in state of every type as Spark stores them, or refused if Spark loses them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle
from tests.kit.folders import DATA
from tests.kit.streams.processor_runs import Run

pytestmark = pytest.mark.newer_spark

TYPES = (
    "boolean", "byte", "short", "int", "long", "float", "double", "decimal(5,2)", "string", "binary", "date",
    "timestamp", "timestamp_ntz", "array<int>", "array<date>", "map<string,int>",
    "struct<x:int,y:string>", "struct<x:int,d:date>",
)  # fmt: skip
AT = datetime(2024, 1, 2, 3, 4, 5, 6)
VALUES: dict[str, Any] = {
    "None": None, "True": True, "5": 5, "300": 300, "2**31": 2**31, "2**63": 2**63, "2**53+1": 2**53 + 1, "1.5": 1.5,
    "-0.0": -0.0, "nan": float("nan"), "1e300": 1e300, "'a'": "a", "'2024-01-02'": "2024-01-02", "b'ab'": b"ab",
    "bytearray": bytearray(b"ab"), "Decimal 1.5": Decimal("1.5"), "Decimal 1.005": Decimal("1.005"),
    "Decimal 12345": Decimal(12345), "Decimal NaN": Decimal("NaN"), "date": AT.date(), "datetime": AT,
    "datetime at 0": datetime(2024, 1, 2), "datetime UTC+5": AT.replace(tzinfo=timezone(timedelta(hours=5))),
    "timedelta": timedelta(seconds=2, microseconds=3), "timedelta<0": timedelta(microseconds=-1), "[1, 2]": [1, 2],
    "(1, 'a')": (1, "a"), "(1,)": (1,), "()": (), "[date]": [AT.date()], "[datetime]": [AT], "(1, datetime)": (1, AT),
    "{'a': 1}": {"a": 1}, "{'x': 1, 'y': 'a'}": {"x": 1, "y": "a"}, "{'x': 1}": {"x": 1}, "{1: 'a'}": {1: "a"},
    "Row(x, y)": Row(x=1, y="a"), "{1, 2}": {1, 2}, "range(2)": range(2),
    "np.int64": np.int64(5), "np.float32": np.float32(0.5), "np.bool": np.bool_(True), "np.str": np.str_("x"),
    "np.array": np.array([1, 2]), "np.datetime64": np.datetime64(AT), "np.timedelta64": np.timedelta64(2, "s"),
    "pd.Timestamp": pd.Timestamp(AT), "pd.Timedelta": pd.Timedelta(seconds=2), "pd.NaT": pd.NaT,
    "pd.Series": pd.Series([1, 2]), "3+4j": 3 + 4j,
}  # fmt: skip
TUPLES: dict[str, Callable[[], Any]] = {
    "tuple": lambda: ("a", "b"),
    "list": lambda: ["a", "b"],
    "Row": lambda: Row(k="a", s="b"),
    "Row of others": lambda: Row(s="a", k="b"),
    "string": lambda: "ab",
    "Series": lambda: pd.Series(["a", "b"]),
    "array": lambda: np.array(["a", "b"]),
    "keys": {"a": 1, "b": 2}.keys,
    "values": {1: "a", 2: "b"}.values,
    "dict": lambda: {"a": 1, "b": 2},
    "dict of fields": lambda: {"k": "a", "s": "b"},
    "generator": lambda: (each for each in "ab"),
    "map": lambda: map(str, "ab"),
    "bytes": lambda: b"ab",
    "range": lambda: range(2),
    "DataFrame": lambda: pd.DataFrame({"a": [1], "b": [2]}),
    "5": lambda: 5,
    "None": lambda: None,
    "too long": lambda: ("a", "b", "c"),
    "too short": lambda: ("a",),
}
ROWS: dict[str, Callable[[], Any]] = {
    "list": lambda: [("a", "b"), ("c", "d")],
    "strings": lambda: ["ab", "cd"],
    "string": lambda: "ab",
    "tuple": lambda: (("a", "b"),),
    "array": lambda: np.array([["a", "b"], ["c", "d"]]),
    "generator": lambda: (each for each in ["ab", "cd"]),
    "dict": lambda: {"ab": 1, "cd": 2},
    "DataFrame": lambda: pd.DataFrame({"ab": ["x"], "cd": ["y"]}),
    "5": lambda: 5,
    "None": lambda: None,
    "of too short": lambda: [("a",)],
}
WAYS = ("update", "appendValue", "appendList of one", "map key", "map value")
FATAL = {"datetime UTC+5", "Row(x, y)", "range(2)", "np.array", "pd.NaT", "pd.Series", "3+4j"}
"""Values that Spark can unpickle only for the types in ``BEARABLE``. For all others its server dies."""
BEARABLE = {
    "timestamp/datetime UTC+5", "timestamp_ntz/datetime UTC+5", "date/datetime UTC+5", "array<date>/np.array",
    "struct<x:int,y:string>/Row(x, y)",
}  # fmt: skip
NAMES = (
    *(f"{kind}/{name}" for kind in TYPES for name in VALUES if name not in FATAL or f"{kind}/{name}" in BEARABLE),
    *(f"{way}/{name}" for way in WAYS for name in TUPLES),
    *(f"{way}/{name}" for way in ("put", "appendList") for name in ROWS),
)


class Trials(StatefulProcessor):
    """A processor that runs the trials that are not in ``done``. It writes a line to a file before and after each
    trial.
    """

    def __init__(self, path: Path, done: frozenset[str] = frozenset()) -> None:
        self.path, self._done = path, done

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a value of each type, and a variable of each kind for tuples of two strings."""
        self._values = {kind: handle.getValueState(f"v{at}", f"a {kind}") for at, kind in enumerate(TYPES)}
        self._value = handle.getValueState("value", "k string, s string")
        self._list = handle.getListState("list", "k string, s string")
        self._map = handle.getMapState("map", "k string, s string", "k string, s string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002
        """Run the trials."""
        with self.path.open("a") as file:
            for name in NAMES:
                if name not in self._done:
                    print(json.dumps([name]), file=file, flush=True)
                    print(json.dumps([name, self._result_of(name)]), file=file, flush=True)
        return iter(())

    def _result_of(self, name: str) -> list[str]:
        kind, _, value_name = name.partition("/")
        try:
            value = self._tried(kind, value_name)
        except (EOFError, OSError):
            raise  # the process at the other end has died, and only its log says why
        except Exception as error:  # noqa: BLE001 - the test compares any error
            return ["!", type(error).__name__, str(error)[:200]]
        return [type(value).__name__, repr(value)]

    def _tried(self, kind: str, value_name: str) -> Any:
        if kind in self._values:
            state = self._values[kind]
            state.clear()
            state.update((VALUES[value_name],))
            return (state.get() or ("nothing",))[0]
        for each in (self._value, self._list, self._map):
            each.clear()
        return self._of_two(kind, value_name)

    def _of_two(self, way: str, value_name: str) -> Any:
        if way == "update":
            self._value.update(TUPLES[value_name]())
            return self._value.get()
        if way == "map key":
            self._map.updateValue(TUPLES[value_name](), ("x", "y"))
            return [
                *self._map.keys(),
                self._map.containsKey(TUPLES[value_name]()),
                self._map.getValue(TUPLES[value_name]()),
            ]
        if way == "map value":
            self._map.updateValue(("x", "y"), TUPLES[value_name]())
            return list(self._map.values())
        if way in ("put", "appendList"):
            (self._list.put if way == "put" else self._list.appendList)(ROWS[value_name]())
        elif way == "appendValue":
            self._list.appendValue(TUPLES[value_name]())
        else:
            self._list.appendList([TUPLES[value_name]()])
        return list(self._list.get())


def results_in(path: Path) -> dict[str, list[str]]:
    """Return the result of each trial from the file. A trial that broke off has an empty error."""
    notes = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {name: results[0] if results else ["!", "", ""] for name, *results in notes}


RECORDED = DATA / "native" / "conversions.json"
"""The results of Spark 4.3.0. Spark 4.0.5 has the same, except that it cannot pickle a ``Row(x, y)`` for a struct, and
cuts a tuple that is too long for ``update`` and ``appendValue``.
"""
NULL = ["NoneType", "None"]
NUMBERS = {"5", "300", "2**31", "2**63", "np.int64"}
KEPT_WHERE_SPARK_HAS_NULL = {f"{kind}/{name}" for kind in ("float", "double") for name in NUMBERS} | {
    f"decimal(5,2)/{name}" for name in ("5", "300", "np.int64")
}
"""Whole numbers for types with a fraction: riffle stores them, and Spark stores NULL."""
REFUSED_WHERE_SPARK_KEEPS = {
    "wraps": {"byte/300", "byte/2**31", "byte/2**53+1", "short/2**31", "short/2**53+1", "int/2**31", "int/2**53+1"},
    "loses an element": {f"array<int>/{name}" for name in ("(1, 'a')", "[date]", "[datetime]", "(1, datetime)")},
    "loses a map's value": {"map<string,int>/{'x': 1, 'y': 'a'}", "map<string,int>/{1: 'a'}"},
    "takes for no number": {"float/Decimal NaN", "double/Decimal NaN"},
    "keeps the names of fields": {f"{way}/dict of fields" for way in ("update", "appendValue", "appendList of one",
                                  "map key", "map value")},
}  # fmt: skip
"""Values for which Spark stores something else, by what it does. riffle refuses them."""
OUT_OF_RANGE = REFUSED_WHERE_SPARK_KEEPS["wraps"] | {f"{kind}/2**63" for kind in ("byte", "short", "int", "long")}


@pytest.fixture
def utc() -> Iterator[None]:
    """Set the time zone of this process to UTC, as when the recordings were made."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


def recorded() -> dict[str, list[str]]:
    """Return Spark's result of each trial."""
    results: dict[str, list[str]] = json.loads(RECORDED.read_text())
    return results


@pytest.fixture
def ours(utc: None, tmp_path: Path) -> dict[str, list[str]]:
    """Return riffle's result of each trial. Trials out of range run alone, because their numbers are checked at the end
    of a batch.
    """
    for done in (OUT_OF_RANGE, *({*NAMES} - {one} for one in OUT_OF_RANGE)):
        Run(Trials(tmp_path / "told", frozenset(done)), output="id string").batch({"a": [1]})
    return results_in(tmp_path / "told")


def test_values_are_converted_as_in_spark(ours: dict[str, list[str]]) -> None:
    """Every value has Spark's result in every type and call, except for the listed differences and texts that Java
    makes of objects.
    """
    differing: dict[str, object] = {}
    refused: set[str] = set()
    kept: set[str] = set()
    taken: set[str] = set()
    for name, sparks in recorded().items():
        riffles = ours[name]
        if (riffles[0] == "!" and sparks[0] == "!") or riffles == sparks:
            continue
        if sparks == NULL:
            (refused if riffles[0] == "!" else kept).add(name)
        elif riffles[0] == "!":
            if sparks != ["java"]:
                taken.add(name)
        else:
            differing[name] = (sparks, riffles)
    assert differing == {}
    assert kept <= KEPT_WHERE_SPARK_HAS_NULL
    assert taken <= set().union(*REFUSED_WHERE_SPARK_KEEPS.values())
    assert {name.split("/")[0] for name in refused} <= set(TYPES)


def test_each_listed_difference_is_a_difference_from_spark(ours: dict[str, list[str]]) -> None:
    """Each listed difference is a difference from Spark."""
    known = recorded()
    for name in KEPT_WHERE_SPARK_HAS_NULL:
        assert (known[name], ours[name][0]) in ((NULL, "float"), (NULL, "Decimal")), name
    for name in set().union(*REFUSED_WHERE_SPARK_KEEPS.values()):
        assert known[name][0] != "!", name
        assert ours[name][0] == "!", name
