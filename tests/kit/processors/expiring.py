"""Cases of state with a TTL, one of each kind.

They read state in its last millisecond and in the first one after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import StatefulProcessorHandle
from tests.kit.processors.both_forms import Logic, Output
from tests.kit.processors.processor_case import Case, batches_of, forms, seeded

__all__ = ["CASES"]

TTL_MS = 10_000
TIMES_MS = (100_000, 105_000, 109_999, 110_000, 115_000, 118_000, 140_000)
SIZES = (14, 10, 6, 6, 8, 6, 12)


class ExpiringValue(Logic):
    """A value whose TTL starts again with each write, and a second value without a TTL."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare both values."""
        self._token = handle.getValueState("token", "token string", TTL_MS)
        self._ever = handle.getValueState("ever", "writes int")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Write, clear or only read the value, and yield both values after each row."""
        for row in rows:
            if row.what == "write":
                self._token.update((row.token,))
                self._ever.update(((self._ever.get() or (0,))[0] + 1,))
            elif row.what == "clear":
                self._token.clear()
            yield self._answer(key, row)

    def _answer(self, key: tuple[Any, ...], row: Row) -> dict[str, Any]:
        token, ever = self._token.get(), self._ever.get()
        return {
            "key": key[0], "what": row.what, "exists": self._token.exists(), "token": token and token[0],
            "writes": ever[0] if ever else 0,
        }  # fmt: skip


class ExpiringList(Logic):
    """A list whose elements expire one by one. A replaced list gets a new TTL for all elements."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._tokens = handle.getListState("tokens", "token string", TTL_MS)

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Append to, replace, clear or only read the list, and yield its elements after each row."""
        for row in rows:
            if row.what == "write":
                self._tokens.appendValue((row.token,))
            elif row.what == "renew" and self._tokens.exists():
                self._tokens.put(list(self._tokens.get()))
            elif row.what == "clear":
                self._tokens.clear()
            tokens = ",".join(token for (token,) in self._tokens.get())
            yield {"key": key[0], "what": row.what, "exists": self._tokens.exists(), "tokens": tokens}


class ExpiringMap(Logic):
    """A map whose entries expire one by one. The TTL of an entry starts again with each write of it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._tokens = handle.getMapState("tokens", "token string", "writes int", TTL_MS)

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Write, remove, clear or only read entries, and yield the map after each row."""
        for row in rows:
            map_key = (row.token,)
            contained = self._tokens.containsKey(map_key)
            if row.what == "write":
                self._tokens.updateValue(map_key, ((self._tokens.getValue(map_key) or (0,))[0] + 1,))
            elif row.what == "renew":
                self._tokens.removeKey(map_key)
            elif row.what == "clear":
                self._tokens.clear()
            entries = " ".join(sorted(f"{token}={writes}" for (token,), (writes,) in self._tokens.iterator()))
            exists = self._tokens.exists()
            yield {"key": key[0], "what": row.what, "contained": contained, "exists": exists, "tokens": entries}


def _case(name: str, logic: Callable[[], Logic], output: str, variables: dict[str, str], kinds: int) -> Case:
    chance = seeded(name)
    doings = ["write"] * 5 + ["look"] * 5 + ["renew", "clear"]

    def row() -> dict[str, Any]:
        return {"key": chance.randint(1, 4), "what": chance.choice(doings), "token": f"t{chance.randint(1, kinds)}"}

    fields = {"key": pa.int64(), "what": pa.string(), "token": pa.string()}
    return Case(
        name, *forms(logic), key=("key",), output=output, time_mode="ProcessingTime", times_ms=TIMES_MS,
        batches=batches_of(fields, [[row() for _ in range(size)] for size in SIZES]), variables=variables,
        restart_after=3,
    )  # fmt: skip


CASES = (
    _case(
        "expiring_value", ExpiringValue, "key long, what string, exists boolean, token string, writes int",
        {"token": "value", "ever": "value"}, kinds=9,
    ),
    _case(
        "expiring_list", ExpiringList, "key long, what string, exists boolean, tokens string",
        {"tokens": "list"}, kinds=9,
    ),
    _case(
        "expiring_map", ExpiringMap, "key long, what string, contained boolean, exists boolean, tokens string",
        {"tokens": "map"}, kinds=3,
    ),
)  # fmt: skip
