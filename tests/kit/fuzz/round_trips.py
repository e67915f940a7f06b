"""Seal and read generated columns without Spark, and compare the bytes of each value before and after.

Each run is a query in a harness. Its rows have a generated key column, sometimes a generated order column, and many
generated value columns. The first batch stores rows by key. All copies are lost, the query starts again, and the second
batch returns the stored rows as output and stores them once more. A third batch reads the rows of the second one.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from riffle_spark import Stateful
from riffle_spark.columns import is_text_or_bytes
from riffle_spark.errors import ConfigError
from riffle_spark.keygroups import check_key_type
from riffle_spark.process.blocks.arrow_function import ArrowFunction, arrow_function
from riffle_spark.state.formats.key_codec import encode_keys, normalise_zeros
from riffle_spark.testing import Harness
from tests.kit.fuzz.odd_values import ROWS, Example, drawn_example, raw_values

__all__ = ["RoundTrips", "round_trips"]

_VALUES_A_RUN = 48


@dataclass
class RoundTrips:
    """The result: the number of examples that were sealed and read, by variant, and the examples that changed."""

    examples: int = 0
    by_variant: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)


def round_trips(count: int, seed: int, keys: str | None = None) -> RoundTrips:
    """Seal and read ``count`` examples and return the result. If ``keys`` is set, every second run is encrypted."""
    result = RoundTrips()
    number = 0
    while result.examples < count and len(result.findings) < 8:
        chance = random.Random(f"{seed}/{number}")
        key, *values = _examples(chance, min(_VALUES_A_RUN, count - result.examples - 1))
        try:
            _run(chance, key, values, keys if number % 2 else None)
        except Exception:  # noqa: BLE001 - that is what is looked for
            result.findings.append(f"run {number} of seed {seed}: {traceback.format_exc()[-1500:]}")
        number += 1
        for example in (key, *values):
            result.examples += 1
            result.by_variant[example.variant] = result.by_variant.get(example.variant, 0) + 1
    return result


def _examples(chance: random.Random, values: int) -> Iterator[Example]:
    yield next(
        example for example in iter(lambda: drawn_example(chance, "k", nested=False), None) if _can_be_key(example)
    )
    for index in range(values):
        yield drawn_example(chance, f"v{index}")


def _can_be_key(example: Example) -> bool:
    try:
        check_key_type("k", example.field.type)
    except ConfigError:
        return False
    return True


def _run(chance: random.Random, key: Example, values: list[Example], keys: str | None) -> None:
    ids = pa.array(range(ROWS), pa.int64())
    fields = [key.field, pa.field("id", pa.int64(), nullable=False), *(value.field for value in values)]
    rows = pa.table([key.column, ids, *(value.column for value in values)], schema=pa.schema(fields))
    ordered = [value.field.name for value in values if _can_be_order(value.field.type)][:1]
    last = normalise_zeros(
        _last_of_keys(rows.sort_by([(name, "ascending") for name in ordered]) if ordered else rows), "k"
    )
    operator = Stateful("odd", "k", _latest(rows.schema), order_by=ordered)
    with Harness(operator, rows.schema, executors=1, key_groups=chance.choice([1, 4]), encryption_keys=keys) as query:
        query.feed(rows)
        _check(query.table().select(rows.column_names), last, "what a snapshot of the state holds")
        query.crash(lose_copies=True)
        for _ in range(2):
            query.feed(rows)
            _check(query.output, last, "what the function was given and returned")


def _can_be_order(kind: pa.DataType) -> bool:
    plain = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or is_text_or_bytes(kind)
    return plain and not pa.types.is_float16(kind)


def _latest(schema: pa.Schema) -> ArrowFunction:
    """Return a function that stores the last row of each key and returns the row that was stored before."""

    def latest(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        return state, _last_of_keys(rows).select(state.column_names)

    return arrow_function(latest, state=pa.schema(list(schema)[1:]), output=schema)


def _last_of_keys(rows: pa.Table) -> pa.Table:
    keys = encode_keys([rows.column("k")]).to_pylist()
    places = {key: place for place, key in enumerate(keys)}
    return rows.take(pa.array(sorted(places.values()), pa.int64()))


def _check(actual: pa.Table, expected: pa.Table, place: str) -> None:
    assert sorted(actual.column("id").to_pylist()) == sorted(expected.column("id").to_pylist()), place
    actual, expected = (table.take(pa.array(np.argsort(table.column("id").to_numpy()))) for table in (actual, expected))
    for name in expected.column_names:
        actual_values = raw_values(actual.column(name))
        expected_values = raw_values(expected.column(name))
        assert actual_values == expected_values, (
            f"{place}: column {name} of {expected.schema.field(name).type}: {actual_values} for {expected_values}"
        )
