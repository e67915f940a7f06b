"""Rows as PySpark's ``Row`` objects, made fast. Knows ``Row``. Does not know what rows are for."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

from pyspark.sql import Row

__all__ = ["RowMaker", "row_maker"]

RowMaker: TypeAlias = Callable[[Iterable[object]], Row]


def row_maker(names: Sequence[str]) -> RowMaker:
    """Return what makes rows of these fields out of their values.

    The rows are of a class of their own below ``Row``: the names are the class's, so that they need not be put into
    every row, and fields that a ``Row`` does not hide behind methods of its own are found without a search.
    """
    return _maker(tuple(names))


@cache
def _maker(names: tuple[str, ...]) -> RowMaker:
    found = _getters(names, namedtuple("Fields", [f"field{at}" for at in range(len(names))]))
    own = {name: getter for name, getter in found.items() if not hasattr(Row, name) and not name.startswith("__")}
    row = type("Row", (Row,), {"__fields__": list(names), "__module__": Row.__module__, **own})
    return partial(tuple.__new__, row)


def _getters(names: tuple[str, ...], fields: type) -> dict[str, Any]:
    """Return the getter of each name, the first of equal ones. The class is held meanwhile: collected as garbage, it is
    emptied, even under those who hold its ``vars``.
    """
    return {name: getattr(fields, f"field{at}") for at, name in reversed(list(enumerate(names)))}
