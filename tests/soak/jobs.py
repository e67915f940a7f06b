"""Kinds of queries, each with its batches and what plain Python computes of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from riffle_spark.process.blocks.aggregates import aggregate, count
from riffle_spark.protocol.operator import Operator, operator_of
from tests.kit.simulated.world import Oracle, drawn_batch, tails, totals

__all__ = ["JOBS", "Job"]

Rows = list[dict[str, object]]
State = Mapping[object, tuple[object, ...]]


@dataclass(frozen=True)
class Job:
    """One query. ``contents`` has each durable store's state after each batch, ``outputs`` what its sink should get of
    it. The last of the ``batches`` is for the end, when nothing is disturbed any more.
    """

    operators: Sequence[Operator]
    batches: Sequence[pa.Table]
    contents: Sequence[Mapping[str, State]]
    outputs: Sequence[Mapping[str, Rows]]
    settings: Mapping[str, object] = field(default_factory=dict)


def columns_of_keys(chance: random.Random, batches: int) -> Job:
    """Draw running totals, a function for which order matters, and sometimes a cache beside them."""
    operators = [totals(), tails()]
    if chance.random() < 0.3:
        operators.append(
            replace(operator_of("seen", ["k"], aggregate(count=count()), (), totals().rows), durable=False)
        )
    rows = [drawn_batch(chance, version) for version in range(batches)]
    oracle, contents, outputs = Oracle(), list[Mapping[str, State]](), list[Mapping[str, Rows]]()
    for batch in rows:
        oracle.feed(batch)
        now: dict[str, State] = {
            "totals": dict(oracle.totals.items()), "tails": {key: (list(last),) for key, last in oracle.tails.items()},
        }  # fmt: skip
        touched = set(batch["k"].to_pylist())
        columns = {"totals": ("k", "count", "total"), "tails": ("k", "last")}
        outputs.append(
            {
                store: [dict(zip(names, (key, *now[store][key]), strict=True)) for key in touched if key in now[store]]
                for store, names in columns.items()
            }
        )
        contents.append(now)
    return Job(operators, rows, contents, outputs)


def sealed_columns(chance: random.Random, batches: int) -> Job:
    """Draw the same, delivered after the commit."""
    return replace(columns_of_keys(chance, batches), settings={"deliver_after_commit": True})


JOBS: Mapping[str, Callable[[random.Random, int], Job]] = {"columns": columns_of_keys, "sealed": sealed_columns}
