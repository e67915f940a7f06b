"""Cases of list states: the last three amounts of a key, and a journal that only grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import StatefulProcessorHandle
from tests.kit.processors.both_forms import Logic, Output
from tests.kit.processors.processor_case import Case, batches_of, forms, seeded

__all__ = ["CASES"]

KEPT = 3


class LastThree(Logic):
    """Keeps the last three amounts of a key. Each batch replaces the whole list."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._last = handle.getListState("last", "amount long")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Replace the list, and yield its length before and its amounts, oldest first."""
        stored = [int(amount) for (amount,) in self._last.get()]
        kept = [*stored, *(row.amount for row in rows)][-KEPT:]
        self._last.put([(amount,) for amount in kept])
        yield {"key": key[0], "before": len(stored), "last": ",".join(map(str, kept))}


class Journal(Logic):
    """Appends one or several entries. The list is read only if a row asks for it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._entries = handle.getListState("entries", "what string, amount long, share double")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Append, clear or read the list, as each row says."""
        for row in rows:
            if row.what == "read":
                yield self._answer(key)
            elif row.what == "clear":
                self._entries.clear()
            elif row.what == "several":
                self._entries.appendList([(row.note, row.amount + at, at / 4) for at in range(3)])
            else:
                self._entries.appendValue((row.note, row.amount, 0.5))

    def _answer(self, key: tuple[Any, ...]) -> dict[str, Any]:
        entries = [f"{what}:{int(amount)}:{share}" for what, amount, share in self._entries.get()]
        return {"key": key[0], "exists": self._entries.exists(), "size": len(entries), "entries": " ".join(entries)}


def _last_case() -> Case:
    chance = seeded("last_three")
    batches = [
        [{"key": chance.randint(-2, 5), "amount": chance.randint(-(10**15), 10**15)} for _ in range(size)]
        for size in (3, 30, 10, 12)
    ]
    return Case(
        "last_three", *forms(LastThree), key=("key",), output="key long, before int, last string",
        batches=batches_of({"key": pa.int64(), "amount": pa.int64()}, batches), variables={"last": "list"},
    )  # fmt: skip


def _journal_case() -> Case:
    chance = seeded("journal")
    doings = ["add"] * 5 + ["several"] * 3 + ["read"] * 2 + ["clear"]

    def row() -> dict[str, Any]:
        note = chance.choice(["x", "yy", None])
        return {
            "key": f"k{chance.randint(0, 4)}",
            "what": chance.choice(doings),
            "amount": chance.randint(0, 99),
            "note": note,
        }

    fields = {"key": pa.string(), "what": pa.string(), "amount": pa.int64(), "note": pa.string()}
    batches = [[row() for _ in range(size)] for size in (30, 25, 4, 40, 30)]
    return Case(
        "journal", *forms(Journal), key=("key",), output="key string, exists boolean, size int, entries string",
        batches=batches_of(fields, batches), variables={"entries": "list"},
    )  # fmt: skip


CASES = (_last_case(), _journal_case())
