"""What the cells of all variables share: where the session is, and a piece of its delta. Knows no kind of cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.process.converters import RecordMaker
from riffle_spark.process.fields import Fields, plain_records
from riffle_spark.state.reading import Reading
from riffle_spark.state.variables import NO_DUE, Variable, VariablesSchema

__all__ = ["Declared", "Piece", "Scope", "declare_all", "last_are_deleted", "visible"]


class Declared(NamedTuple):
    """A state variable and what converts its values, and a map's keys; made once for many sessions."""

    variable: Variable
    value: Fields
    key: Fields | None


def declare_all(schema: VariablesSchema, record: RecordMaker = plain_records) -> tuple[Declared, ...]:
    """Return the variables of a schema with their converters."""
    return tuple(
        Declared(one, Fields(one.value, record), None if one.key is None else Fields(one.key, record))
        for one in schema.variables
    )


@dataclass(slots=True)
class Scope:
    """One key-group in one batch: its copy, its keys by number, the batch's time, and the key ``at`` work."""

    schema: VariablesSchema
    reading: Reading
    now_ms: int
    group_keys: list[bytes] = field(default_factory=list)
    at: int = -1

    def prefix(self, variable: str, number: int) -> bytes:
        """Return the beginning of what a variable of the key of this number holds."""
        return self.schema.prefix(self.group_keys[number], variable)

    def due_ms(self, ttl_ms: int | None) -> int | None:
        """Return when what is written now expires."""
        return None if ttl_ms is None else self.now_ms + ttl_ms

    def is_expired(self, due_ms: int) -> bool:
        """Tell whether an element's time has come. Spark: at the very time."""
        return due_ms != NO_DUE and due_ms <= self.now_ms


class Piece(NamedTuple):
    """Rows of a delta, all of one variable: the number of each one's key, which are deleted, and what they hold.

    A deleted row of no element (no index, no struct) clears the variable of its key.
    """

    variable: str
    numbers: Sequence[int]
    deleted: npt.NDArray[np.bool_]
    structs: pa.StructArray | None = None
    indexes: pa.Array | None = None
    dues: pa.Array | None = None


def last_are_deleted(count: int, deleted: int) -> npt.NDArray[np.bool_]:
    """Return a mask of ``count`` rows of which so many, the last ones, are deleted."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[count - deleted :] = True
    return mask


def visible(dues: npt.NDArray[np.int64], now_ms: int) -> npt.NDArray[np.bool_]:
    """Return which elements of these due times are not expired."""
    is_visible: npt.NDArray[np.bool_] = (dues > now_ms) | (dues == NO_DUE)
    return is_visible
