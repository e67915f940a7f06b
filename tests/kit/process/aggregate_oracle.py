"""The functions of ``aggregate`` over the values of one key, in plain Python."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

__all__ = ["ORACLE", "comparable"]

_EXACT = Context(prec=120, rounding=ROUND_HALF_UP)


def comparable(values: object) -> object:
    """Return values in which each NaN is replaced by a text, so that it equals another NaN."""
    if isinstance(values, dict):
        return {name: comparable(value) for name, value in values.items()}
    return "NaN" if isinstance(values, float) and math.isnan(values) else values


def _present(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _rank(value: Any) -> tuple[bool, Any]:
    if isinstance(value, float) and math.isnan(value):
        return True, 0.0
    return False, value.encode() if isinstance(value, str) else value


def _sum(values: list[Any]) -> Any:
    return functools.reduce(_EXACT.add if isinstance(values[0], Decimal) else operator.add, values)


def _mean(values: list[Any]) -> Any:
    if not isinstance(values[0], Decimal):
        return functools.reduce(operator.add, map(float, values), 0.0) / len(values)
    places = min(38, -int(values[0].as_tuple().exponent) + 4)
    return _EXACT.quantize(_EXACT.divide(_sum(values), Decimal(len(values))), Decimal((0, (1,), -places)))


def _or_null(reduce: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    return lambda values: reduce(_present(values)) if _present(values) else None


ORACLE: dict[str, Callable[[list[Any]], Any]] = {
    "rows": len,
    "present": lambda values: len(_present(values)),
    "least": _or_null(lambda values: min(values, key=_rank)),
    "greatest": _or_null(lambda values: max(values, key=_rank)),
    "first": operator.itemgetter(0),
    "last": operator.itemgetter(-1),
    "first_present": _or_null(operator.itemgetter(0)),
    "last_present": _or_null(operator.itemgetter(-1)),
    "total": _or_null(_sum),
    "average": _or_null(_mean),
}
"""The functions by the names of their results. Each takes the values of a key in the order of the rows."""
