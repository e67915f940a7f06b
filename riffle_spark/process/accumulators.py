"""One running aggregate of one column. Knows what each kind must tell and do. Does not know any kind, or any schema.

An accumulator holds no state: ``state`` names the state columns that a column of some type needs, ``fold`` merges the
values of a batch into them, ``finish`` turns them into the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from riffle_spark.process.compute import BoolArray, IndexArray

__all__ = ["Accumulator", "Groups"]


@dataclass(frozen=True, slots=True)
class Groups:
    """Whose values are folded: per row the index of its key; the keys; which of them have state."""

    codes: IndexArray
    keys: pa.Table
    found: BoolArray
    store: str

    def present(self, values: pa.Array) -> tuple[IndexArray, pa.Array]:
        """Return the codes and the values of the rows that are not null."""
        if values.null_count == 0:
            return self.codes, values
        return self.codes[values.is_valid().to_numpy(zero_copy_only=False)], values.drop_null()


@dataclass(frozen=True, slots=True)
class Accumulator(ABC):
    """One aggregate of one input column; ``None`` stands for the row itself."""

    column: str | None

    function: ClassVar[str]
    supported: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.function}({'' if self.column is None else repr(self.column)})"

    @abstractmethod
    def state(self, type: pa.DataType) -> Mapping[str, pa.DataType]:
        """Return the state columns' types by the suffix of their names; nothing if the type is not supported."""

    def result(self, type: pa.DataType) -> pa.DataType:
        """Return the result's type."""
        return self.state(type)[""]

    @abstractmethod
    def fold(self, values: pa.Array, old: Sequence[pa.Array], groups: Groups) -> list[pa.Array]:
        """Merge a batch's values into the old state, one row a key."""

    def finish(self, state: Sequence[pa.Array], type: pa.DataType, groups: Groups) -> pa.Array:  # noqa: ARG002
        """Turn the state into the result for a column of this type."""
        return state[0]
