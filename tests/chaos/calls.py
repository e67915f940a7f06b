"""The rows that the sinks of a chaos run received: one folder of Parquet per call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.chaos.events import BUCKETS, WINDOW_SECONDS, Plan
from tests.chaos.ledger import Call, Delivery

__all__ = ["read_calls"]

Places = Callable[[pa.Table, Plan], pa.ChunkedArray]


def _of_users(table: pa.Table, plan: Plan) -> np.ndarray:
    return table["user"].to_numpy()


def _of_windows(table: pa.Table, plan: Plan) -> np.ndarray:
    since = (table["since"].to_numpy() - plan.first_window_seconds) // WINDOW_SECONDS
    return since * BUCKETS + table["bucket"].to_numpy()


_PLACES: Mapping[str, Callable[[pa.Table, Plan], np.ndarray]] = {"windows": _of_windows}


def read_calls(folder: Path, query: str, plan: Plan) -> list[Call]:
    """Return the completed calls of a query's sink, ordered by their start."""
    folders = [path.parent for path in folder.glob("*/_SUCCESS")]
    return [_read(path, query, plan) for path in sorted(folders, key=lambda path: path.name.rpartition("~")[2])]


def _read(path: Path, query: str, plan: Plan) -> Call:
    delivery = Delivery.parse(path.name.rpartition("~")[0], "~")
    tables = [pq.ParquetFile(file).read() for file in sorted(path.glob("*.parquet"))]
    if not tables:
        nothing = np.zeros(0, np.int64)
        return Call(delivery, nothing, nothing, nothing)
    table = pa.concat_tables(tables)
    places = _PLACES.get(query, _of_users)(table, plan)
    return Call(delivery, places.astype(np.int64), table["count"].to_numpy(), table["total"].to_numpy())
