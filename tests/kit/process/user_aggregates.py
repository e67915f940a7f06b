"""Aggregate functions as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa


class WeightedMean:
    """A mean of values by weights; null without any weight."""

    rows = "value double, weight double"
    state = "total double, weights double"
    result = "double"

    def init(self) -> Mapping[str, object]:
        """Begin with nothing."""
        return {"total": 0.0, "weights": 0.0}

    def update(self, state: pa.Table, rows: pa.Table, groups: Any) -> pa.Table:
        """Add up."""
        value, weight = (np.nan_to_num(rows[name].to_numpy()) for name in ("value", "weight"))
        weighted = pa.table({"total": value * weight, "weights": weight})
        return self.merge(state, weighted, groups)

    def merge(self, state: pa.Table, others: pa.Table, groups: Any) -> pa.Table:
        """Add up."""
        return pa.table(
            {
                name: state[name].to_numpy() + np.bincount(groups, others[name].to_numpy(), len(state))
                for name in state.column_names
            }
        )

    def finish(self, state: pa.Table) -> pa.Array:
        """Divide."""
        totals, weights = (column.to_pylist() for column in state.columns)
        means = [total / weight if weight else None for total, weight in zip(totals, weights, strict=True)]
        return pa.array(means, pa.float64())


@dataclass(frozen=True)
class Latest:
    """The last values of a group, so many of them, in their order; a null is one."""

    most: int
    rows: str = "value bigint"
    state: str = "values array<bigint>"
    result: str = "array<bigint>"

    def init(self) -> Mapping[str, object]:
        """Begin with no value."""
        return {"values": []}

    def update(self, state: pa.Table, rows: pa.Table, groups: Any) -> pa.Table:
        """Append each row's."""
        return self._appended(state, [[value] for value in rows["value"].to_pylist()], groups)

    def merge(self, state: pa.Table, others: pa.Table, groups: Any) -> pa.Table:
        """Append those of the others."""
        return self._appended(state, others["values"].to_pylist(), groups)

    def _appended(self, state: pa.Table, lists: list[list[int | None]], groups: Any) -> pa.Table:
        found = state["values"].to_pylist()
        for group, values in zip(groups, lists, strict=True):
            found[group] = [*found[group], *values][-self.most :]
        return pa.table({"values": pa.array(found, pa.list_(pa.int64()))})

    def finish(self, state: pa.Table) -> pa.ChunkedArray:
        """Return them."""
        return state["values"]
