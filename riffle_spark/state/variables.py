"""Several state variables of one key as one store. Knows their columns and where each lies. Does not know a processor.

A part or snapshot is a table of *wide rows*: the key's columns, which variable the row is of, which element of it, when
it is due, and one struct column a variable, null in rows of the others. A local copy keeps each row under the key, the
variable's number and the element, so that a key's state and each variable of it are ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.state.rows import Rows

__all__ = ["DUE", "INDEX", "NO_DUE", "TIMER", "VARIABLE", "Kind", "Places", "Variable", "VariablesSchema"]

Kind: TypeAlias = Literal["value", "list", "map"]
Dues: TypeAlias = npt.NDArray[np.int64]

VARIABLE = "__variable"
INDEX = "__index"
DUE = "__due"
TIMER = "__timer"
"""The variable that every key's timers are rows of."""
NO_DUE = -(2**63)
"""The due time of what is never due."""


@dataclass(frozen=True)
class Variable:
    """One declared state variable: the fields of its value, of a map's key, and how long an element lives.

    ``value`` and ``key`` are the fields of the structs, as Arrow schemas; ``key`` is a map's alone.
    """

    name: str
    kind: Kind
    value: pa.Schema
    key: pa.Schema | None = None
    ttl_ms: int | None = None

    @property
    def column(self) -> str:
        """The name of its struct column: of the value's fields, or of ``key`` and ``value`` for a map."""
        return f"__state_{self.name}"


class Places(NamedTuple):
    """What stored keys are of: row i of ``keys`` (the key's columns) and the rest belong to stored key i.

    ``groups`` are the stored key's beginnings as ``group_keys`` gives them, ``variables`` names, ``elements`` what
    follows: nothing, ``index_key``, ``map_key`` or ``due_key``.
    """

    keys: pa.Table
    groups: list[bytes]
    variables: list[str]
    elements: list[bytes]


@dataclass(frozen=True)
class VariablesSchema:
    """The key and the variables of one store. ``indexed``: elements may be due, and are kept in order of time too.

    Order of ``variables`` is their order on disk: it is part of what is stored.
    """

    store: str
    key: pa.Schema
    variables: tuple[Variable, ...]
    indexed: bool = False

    def variable(self, name: str) -> Variable:
        """Return the variable of this name."""
        raise NotImplementedError

    def encoded(self, table: pa.Table) -> pa.Array:
        """Return the keys of a table's rows (binary, order-preserving, whole), of key columns alone."""
        raise NotImplementedError

    def encode(self, table: pa.Table) -> Rows:
        """Return a part's or snapshot's rows as a local copy takes them."""
        raise NotImplementedError

    def table(self, pairs: Sequence[tuple[bytes, bytes]], longs: dict[bytes, bytes]) -> pa.Table:
        """Return pairs of a local copy as a table of ``part_schema()``."""
        raise NotImplementedError

    def part_schema(self, *, delta: bool = False) -> pa.Schema:
        """Return the schema of a snapshot, or of a delta's part."""
        raise NotImplementedError

    def group_keys(self, encoded: pa.Array) -> list[bytes]:
        """Return the beginning of everything a key holds, for keys as ``encoded`` gives them; long ones are cut."""
        raise NotImplementedError

    def group_key(self, values: tuple[object, ...]) -> bytes:
        """Return the same for one key, given as the Python values of its columns (``to_pylist``)."""
        raise NotImplementedError

    def prefix(self, group_key: bytes, variable: str) -> bytes:
        """Return the beginning of all that one variable (or ``TIMER``) of a key holds; a value's whole stored key."""
        raise NotImplementedError

    def map_key(self, variable: str, values: tuple[object, ...]) -> bytes:
        """Return what follows the prefix for one key of a map, given as Python values."""
        raise NotImplementedError

    def map_keys(self, variable: str, keys: Sequence[bytes], longs: dict[bytes, bytes]) -> pa.Table:
        """Return the map's keys, as columns of ``Variable.key``, out of stored keys of that variable."""
        raise NotImplementedError

    def places(self, keys: Sequence[bytes], longs: dict[bytes, bytes]) -> Places:
        """Return what stored keys are of. ``longs`` are the whole keys of cut ones (``Reading.longs``)."""
        raise NotImplementedError

    def values(self, variable: str, stored: Sequence[bytes]) -> tuple[Dues, pa.Table]:
        """Return stored values as due times (``NO_DUE`` for none) and a table of ``Variable.value``."""
        raise NotImplementedError

    def value(self, variable: str, stored: bytes) -> tuple[int, tuple[object, ...]]:
        """Return the same of one stored value: its due time and the Python values of its fields."""
        raise NotImplementedError
