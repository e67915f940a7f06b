"""Functions of users that keep a value of each type in their state, and return the values that they read back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pandas as pd

from riffle_spark import StatefulProcessor, StatefulProcessorHandle

__all__ = ["ANSWER", "STATE", "STATE_CELLS", "IdentityProcessor", "gives_back", "keeps_types"]

VALUES: dict[str, tuple[str, list[Any]]] = {
    "s_boolean": ("boolean", [True, False]),
    "s_byte": ("tinyint", [127, -128]),
    "s_short": ("smallint", [32767, -32768]),
    "s_int": ("int", [2**31 - 1, -(2**31)]),
    "s_long": ("bigint", [2**63 - 1, -(2**63)]),
    "s_float": ("float", [1.5, float("inf")]),
    "s_double": ("double", [1.5, float("-inf"), 5e-324]),
    "s_decimal": ("decimal(38,18)", [Decimal("1.5"), Decimal("9" * 20 + "." + "9" * 18)]),
    "s_whole": ("decimal(38,0)", [Decimal("9" * 38), Decimal(0)]),
    "s_string": ("string", ["a", "", "é𝄞"]),
    "s_binary": ("binary", [b"\x00\xff", b""]),
    "s_date": ("date", [date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)]),
    "s_timestamp": ("timestamp", [datetime(2024, 2, 29, 12, 0, 0, 123456), datetime(1969, 12, 31, 23, 59, 59)]),
    "s_ntz": ("timestamp_ntz", [datetime(2024, 2, 29, 12, 0, 0, 123456), datetime(1969, 12, 31, 23, 59, 59)]),
    "s_array": ("array<string>", [["a", None], []]),
    "s_map": ("map<string, bigint>", [{"a": 1}, {}]),
    "s_struct": ("struct<a: bigint, b: string>", [(1, "x"), (None, None)]),
    "s_nested": ("array<struct<m: map<string, array<int>>, s: string>>", [[({"k": [1, None]}, "y")], []]),
    "s_interval": ("interval day to second", [timedelta(days=1, microseconds=5), timedelta(days=-9)]),
}
"""The type in DDL and the values of each field, by name. The values are read back as they were written."""
STATE = ", ".join(f"{name} {kind}" for name, (kind, _) in VALUES.items())
"""The schema of the state in DDL."""
STATE_CELLS = sum(len(values) + 1 for _, values in VALUES.values())
"""The number of stored values, including NULL of each type."""
ANSWER = "k string, n long, read string"


def _kept(number: int) -> tuple[Any, ...]:
    """Return the values of all types for a number, some of them ``None``."""
    return tuple([*values, None][number % (len(values) + 1)] for _, values in VALUES.values())


def _numbers(frames: Iterable[pd.DataFrame]) -> list[int]:
    return sorted(int(n) for frame in frames for n in frame["n"])


def as_text(value: object) -> str:
    """Return values as text, which is the same for ``bytes`` and ``bytearray``. PySpark reads binary as either."""
    return re.sub(r"bytearray\((b'[^']*')\)", r"\1", repr(value))


def keeps_types(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Return for each row the state before it, for ``applyInPandasWithState``."""
    for n in _numbers(frames):
        read = as_text(state.get) if state.exists else ""
        state.update(_kept(n // 2))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "read": [read]})


def gives_back(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Return the rows unchanged, for ``applyInPandasWithState``."""
    del key, state
    yield from frames


class IdentityProcessor(StatefulProcessor):
    """Returns the rows unchanged, in both forms of processors."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare no state."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002
        """Yield the rows."""
        yield from rows

    def close(self) -> None:
        """Do nothing."""
