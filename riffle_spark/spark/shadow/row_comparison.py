"""Compare the rows that two engines returned for the same input, without regard to their order.

1. Rows that are equal are removed from both sides.
2. Of the others, two rows are paired if they only differ in floating-point numbers by less than the tolerance, or in
   the order of the elements of a list. An aggregate of Spark may return either of such values.
3. The rows that are left are the difference.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark.sql import types

Row: TypeAlias = tuple[object, ...]
"""The values of a row. A struct is a tuple, too."""
_VARIANT: Final = getattr(types, "VariantVal", None)
"""The class of variants, which have no equality. Spark 3.5 has none."""
_FLOAT: Final = "number"
"""Replaces each floating-point number in the value by which rows are paired."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The rows that only one of the engines returned. ``close`` counts rows that were paired although they differ."""

    only_spark: tuple[Row, ...]
    only_riffle: tuple[Row, ...]
    close: int

    @property
    def is_equal(self) -> bool:
        """Whether the engines returned the same rows."""
        return not self.only_spark and not self.only_riffle


def compare_rows(spark: Sequence[Row], riffle: Sequence[Row], tolerance: float) -> Difference:
    """Return the difference of the rows of both engines.

    ``tolerance`` is relative: the largest allowed difference of two floating-point numbers, divided by the larger one.

    >>> compare_rows([("a", 1), ("b", 2)], [("b", 2), ("a", 3)], 1e-9)
    Difference(only_spark=(('a', 1),), only_riffle=(('a', 3),), close=0)
    """
    spark_values = [_hashable(row) for row in spark]
    riffle_values = [_hashable(row) for row in riffle]
    spark_counts = Counter(spark_values)
    riffle_counts = Counter(riffle_values)
    spark_rest = _rest(spark, spark_values, spark_counts - riffle_counts)
    riffle_rest = _rest(riffle, riffle_values, riffle_counts - spark_counts)
    candidates: dict[object, list[Row]] = defaultdict(list)
    for row in riffle_rest:
        candidates[_without_floats(row)].append(row)
    only_spark: list[Row] = []
    close = 0
    for row in spark_rest:
        similar = candidates[_without_floats(row)]
        partner = next((other for other in similar if _are_close(row, other, tolerance)), None)
        if partner is None:
            only_spark.append(row)
        else:
            similar.remove(partner)
            close += 1
    only_riffle = [row for rows in candidates.values() for row in rows]
    return Difference(tuple(only_spark), tuple(only_riffle), close)


def _rest(rows: Sequence[Row], values: Sequence[object], counts: Counter[object]) -> list[Row]:
    """Return the rows whose value is left in ``counts``, each as often as it was counted."""
    left = Counter(counts)
    rest = []
    for row, value in zip(rows, values, strict=True):
        if left[value] > 0:
            left[value] -= 1
            rest.append(row)
    return rest


def _hashable(value: object) -> object:
    """Return a hashable value that is equal for equal values. NaN equals NaN, and 0.0 equals -0.0, as in Spark."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, Mapping):
        return frozenset((_hashable(key), _hashable(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    if _VARIANT is not None and isinstance(value, _VARIANT):
        return bytes(value.value), bytes(value.metadata)
    return bytes(value) if isinstance(value, bytearray) else value


def _without_floats(value: object) -> object:
    """Return a hashable value that is equal for rows that may be close: without floats, and with lists sorted."""
    if isinstance(value, float):
        return _FLOAT
    if isinstance(value, Mapping):
        items = ((_hashable(key), _without_floats(item)) for key, item in value.items())
        return tuple(sorted(items, key=repr))
    if isinstance(value, list):
        return tuple(sorted((_without_floats(item) for item in value), key=repr))
    return tuple(_without_floats(item) for item in value) if isinstance(value, tuple) else _hashable(value)


def _are_close(left: object, right: object, tolerance: float) -> bool:
    """Return whether two values with equal ``_without_floats`` have floats that are close."""
    return all(
        one == other or math.isclose(one, other, rel_tol=tolerance) or (math.isnan(one) and math.isnan(other))
        for one, other in zip(_floats(left), _floats(right), strict=True)
    )


def _floats(value: object) -> Iterator[float]:
    """Yield the floating-point numbers of a value, those of a list in the order of its sorted elements."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping):
        for _, item in sorted(value.items(), key=lambda entry: repr(_hashable(entry[0]))):
            yield from _floats(item)
    elif isinstance(value, list):
        for item in sorted(value, key=_place_in_list):
            yield from _floats(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _floats(item)


def _place_in_list(item: object) -> tuple[str, list[tuple[bool, float]]]:
    """Return the value by which elements of a list are sorted. NaN is last."""
    floats = [(math.isnan(number), 0.0 if math.isnan(number) else number) for number in _floats(item)]
    return repr(_without_floats(item)), floats
