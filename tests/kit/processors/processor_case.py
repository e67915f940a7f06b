"""A processor with all that it takes to run it, and its batches."""

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

    Every input has a column ``seq`` that numbers the rows of a batch: declare that order where order matters.
    ``output`` is Spark DDL, the key's columns first. ``times_ms`` are the batch times, in ProcessingTime
    mode. ``variables`` name each variable's kind. ``restart_after`` so many batches the query is stopped and started
    again.
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
        """Make one, in the form ``pandas`` or ``rows``."""
        return self.in_pandas() if form == "pandas" else self.in_rows()


def forms(logic: Callable[[], Logic]) -> tuple[Callable[[], StatefulProcessor], Callable[[], StatefulProcessor]]:
    """Return both forms of a logic, in the order of ``Case``'s fields."""
    return lambda: InPandas(logic()), lambda: InRows(logic())


def seeded(name: str) -> random.Random:
    """Return a source of chance that is a case's own and the same every time."""
    return random.Random(f"processors/{name}")


def batches_of(
    fields: Mapping[str, pa.DataType], batches: Iterable[Sequence[Mapping[str, Any]]]
) -> tuple[pa.Table, ...]:
    """Return tables of these fields, each with ``seq`` before them."""
    schema = pa.schema([("seq", pa.int64()), *fields.items()])
    return tuple(
        pa.Table.from_pylist([{"seq": at, **row} for at, row in enumerate(rows)], schema=schema) for rows in batches
    )
