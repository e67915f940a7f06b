"""Aggregate functions as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa


class WeightedMean:
    """The weighted mean of values. It is null if there is no weight."""

    rows = "value double, weight double"
    state = "total double, weights double"
    result = "double"

    def init(self) -> Mapping[str, object]:
        """Return the state of a group without rows."""
        return {"total": 0.0, "weights": 0.0}

    def update(self, state: pa.Table, rows: pa.Table, groups: Any) -> pa.Table:
        """Add the weighted values and the weights of rows to their groups."""
        value, weight = (np.nan_to_num(rows[name].to_numpy()) for name in ("value", "weight"))
        weighted = pa.table({"total": value * weight, "weights": weight})
        return self.merge(state, weighted, groups)

    def merge(self, state: pa.Table, others: pa.Table, groups: Any) -> pa.Table:
        """Add the sums of other states to their groups."""
        return pa.table(
            {
                name: state[name].to_numpy() + np.bincount(groups, others[name].to_numpy(), len(state))
                for name in state.column_names
            }
        )

    def finish(self, state: pa.Table) -> pa.Array:
        """Divide the sums of values by the sums of weights."""
        totals, weights = (column.to_pylist() for column in state.columns)
        means = [total / weight if weight else None for total, weight in zip(totals, weights, strict=True)]
        return pa.array(means, pa.float64())


@dataclass(frozen=True)
class Latest:
    """The last ``most`` values of a group in their order. A null counts as a value."""

    most: int
    rows: str = "value bigint"
    state: str = "values array<bigint>"
    result: str = "array<bigint>"

    def init(self) -> Mapping[str, object]:
        """Return the state of a group without rows."""
        return {"values": []}

    def update(self, state: pa.Table, rows: pa.Table, groups: Any) -> pa.Table:
        """Append the value of each row to its group."""
        return self._appended(state, [[value] for value in rows["value"].to_pylist()], groups)

    def merge(self, state: pa.Table, others: pa.Table, groups: Any) -> pa.Table:
        """Append the values of other states to their groups."""
        return self._appended(state, others["values"].to_pylist(), groups)

    def _appended(self, state: pa.Table, lists: list[list[int | None]], groups: Any) -> pa.Table:
        values_of_groups = state["values"].to_pylist()
        for group, values in zip(groups, lists, strict=True):
            values_of_groups[group] = [*values_of_groups[group], *values][-self.most :]
        return pa.table({"values": pa.array(values_of_groups, pa.list_(pa.int64()))})

    def finish(self, state: pa.Table) -> pa.ChunkedArray:
        """Return the lists of values."""
        return state["values"]
