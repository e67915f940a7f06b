"""A case: a processor in both forms, its batches, and the configuration of its query."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from riffle_spark import StatefulProcessor
from tests.kit.processors.both_forms import InPandas, InRows, Logic

__all__ = ["Case", "batches_of", "forms", "seeded"]


@dataclass(frozen=True)
class Case:
    """A processor in both forms, its batches, and the state that it declares.

    ``batches`` have a column ``seq`` that numbers the rows. A case whose result depends on the order of rows is ordered
    by it. ``output`` is Spark DDL that begins with the columns of the key. ``times_ms`` are the times of the batches in
    ProcessingTime mode. ``variables`` has the kind of each variable by name. The query restarts after batch number
    ``restart_after``.
    """

    name: str
    in_pandas: Callable[[], StatefulProcessor]
    in_rows: Callable[[], StatefulProcessor]
    key: tuple[str, ...]
    output: str
    batches: tuple[pa.Table, ...]
    variables: Mapping[str, str]
    time_mode: str = "None"
    output_mode: str = "update"
    times_ms: tuple[int, ...] = ()
    watermark: tuple[str, str] | None = None
    initial: pa.Table | None = None
    restart_after: int = field(default=2)

    def __post_init__(self) -> None:
        assert bool(self.times_ms) == (self.time_mode == "ProcessingTime"), self.name
        assert not self.times_ms or len(self.times_ms) == len(self.batches), self.name
        assert (self.watermark is None) == (self.time_mode != "EventTime"), self.name

    @property
    def input(self) -> pa.Schema:
        """The schema of every batch."""
        return self.batches[0].schema

    def processor(self, form: str) -> StatefulProcessor:
        """Return a new processor in the form ``pandas`` or ``rows``."""
        return self.in_pandas() if form == "pandas" else self.in_rows()


def forms(logic: Callable[[], Logic]) -> tuple[Callable[[], StatefulProcessor], Callable[[], StatefulProcessor]]:
    """Return the constructors of both forms of a logic, in the order of the fields of ``Case``."""
    return lambda: InPandas(logic()), lambda: InRows(logic())


def seeded(name: str) -> random.Random:
    """Return a random number generator that always gives a case the same numbers."""
    return random.Random(f"processors/{name}")


def batches_of(
    fields: Mapping[str, pa.DataType], batches: Iterable[Sequence[Mapping[str, Any]]]
) -> tuple[pa.Table, ...]:
    """Return tables with these fields, after a column ``seq`` with the number of the row."""
    schema = pa.schema([("seq", pa.int64()), *fields.items()])
    return tuple(
        pa.Table.from_pylist([{"seq": at, **row} for at, row in enumerate(rows)], schema=schema) for rows in batches
    )
