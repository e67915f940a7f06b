"""A processor that keeps texts in a value, a list and a map. It runs without Spark, on a root in a folder.

``tests/data/roots/0.1-bounded-text`` has its first batch, of a version that accepted ``char`` and ``varchar``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle, transform_with_state
from riffle_spark.protocol.operator import operator_of
from tests.kit.roots.folder_query import FolderQuery

__all__ = ["KEYS", "feed"]

KEYS = ("a", "b", "c")
_ROWS = pa.schema([("k", pa.string()), ("v", pa.string())])


class KeepsTexts(StatefulProcessor):
    """Returns the stored texts of a key, and stores one more text per row."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the variables with values of the type ``kind``."""
        self._value = handle.getValueState("value", f"v {self._kind}")
        self._list = handle.getListState("list", f"v {self._kind}")
        self._map = handle.getMapState("map", f"v {self._kind}", f"v {self._kind}")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Yield the value, the list and the map as one text, and then store the text of the row."""
        for row in rows:
            value = self._value.get()
            listed = [each[0] for each in self._list.get()]
            mapped = sorted((name[0], text[0]) for name, text in self._map.iterator())
            yield Row(k=key[0], kept=f"{value[0] if value else None} {listed} {mapped}")
            self._value.update((row.v,))
            self._list.appendValue((row.v,))
            self._map.updateValue((row.v,), (row.v,))

    def close(self) -> None:
        """Do nothing."""


def feed(folder: Path, kind: str) -> dict[str, str]:
    """Run a batch with one row of each key, as the first batch of a new driver on the root ``folder/state``.

    Return the texts that each key had before the batch.
    """
    declared = transform_with_state(KeepsTexts(kind), key="k", output="k string, kept string", store="texts")
    query = FolderQuery(folder, operator_of(declared.store, declared.key, declared.compute, (), _ROWS), "texts")
    output = query.feed(pa.table([[*KEYS], [f"{key}{query.version}" for key in KEYS]], schema=_ROWS))
    return dict(zip(output.column("k").to_pylist(), output.column("kept").to_pylist(), strict=True))
