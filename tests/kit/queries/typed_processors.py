"""A processor that keeps a value of each type in its state and returns what it reads back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle
from tests.kit.queries.typed_functions import VALUES, as_text

__all__ = ["KeepsTypes"]


class KeepsTypes(StatefulProcessor):
    """Keeps a value, a list or a map of each type, and returns its contents before each row.

    The column ``wrong`` shows contents that differ from what was written. In a map each value is also the key.
    """

    def __init__(self, way: str, names: tuple[str, ...]) -> None:
        self._way = way
        self._names = names

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a variable of each type."""
        types = {name: f"a {VALUES[name][0]}" for name in self._names}
        if self._way == "value":
            self._states: dict[str, Any] = {name: handle.getValueState(name, kind) for name, kind in types.items()}
        elif self._way == "list":
            self._states = {name: handle.getListState(name, kind) for name, kind in types.items()}
        else:
            self._states = {name: handle.getMapState(name, kind, kind) for name, kind in types.items()}
        self._number = handle.getValueState("number", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002
        """Yield one row for each input row, and then store the next value of each type."""
        frames = list(rows)
        is_pandas = isinstance(frames[0], pd.DataFrame)
        numbers = [int(n) for frame in frames for n in frame["n"]] if is_pandas else [row.n for row in frames]
        for n in sorted(numbers):
            number = (self._number.get() or (0,))[0]
            self._number.update((number + 1,))
            answer = {"k": key[0], "n": n, "read": "", "wrong": ""}
            for name, state in self._states.items():
                written = [_value(name, at) for at in range(number)]
                read = self._read(state)
                answer["read"] += f"{name}: {as_text(self._comparable(read))}\n"
                answer["wrong"] += "" if _is_equal(read, self._expected(written)) else f"{name}: {read!r}\n"
                self._write(state, _value(name, number))
            yield pd.DataFrame([answer]) if is_pandas else Row(**answer)

    def _read(self, state: Any) -> Any:
        if self._way == "value":
            return state.get()
        return list(state.get()) if self._way == "list" else sorted(state.iterator(), key=as_text)

    def _expected(self, written: list[Any]) -> Any:
        if self._way == "value":
            return (written[-1],) if written else None
        if self._way == "list":
            return [(value,) for value in written]
        values = {repr(value): value for value in written if value is not None}.values()
        return sorted((((value,), (value,)) for value in values), key=as_text)

    def _write(self, state: Any, value: Any) -> None:
        if self._way == "value":
            state.update((value,))
        elif self._way == "list":
            state.appendValue((value,))
        elif value is not None:
            state.updateValue((value,), (value,))

    def _comparable(self, read: Any) -> Any:
        return plainly(read) if self._way == "list" else read

    def close(self) -> None:
        """Do nothing."""


def _is_equal(read: Any, expected: Any) -> bool:
    """Return whether the read value equals the expected one. Lists that contain NumPy arrays never do.

    Spark 4.0 reads lists within lists as NumPy arrays.
    """
    try:
        return bool(read == expected)
    except ValueError:
        return False


def _value(name: str, number: int) -> Any:
    values = [*VALUES[name][1], None]
    return values[number % len(values)]


def plainly(value: Any) -> Any:
    """Return a value in a form that is the same whether PySpark read it through pandas or not.

    Spark 4.0 reads lists through pandas.
    """
    if isinstance(value, pd.Timestamp):
        return None if value is pd.NaT else value.tz_localize(None).to_pydatetime()
    if value is pd.NaT or value is None or (isinstance(value, float) and np.isnan(value)):
        return None
    if isinstance(value, Row):
        value = value.asDict()
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, (list, np.ndarray)):
        return [plainly(each) for each in value]
    if isinstance(value, tuple):
        return tuple(plainly(each) for each in value)
    return float(value) if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) else value
