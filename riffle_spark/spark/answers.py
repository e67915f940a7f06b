"""What executors answer, as a line of JSON in one column. Knows how the answers are built. Does not know who asked."""

from __future__ import annotations

import json
from dataclasses import asdict

from riffle_spark.state.manifest import Head, Snapshot
from riffle_spark.worker.census import Census
from riffle_spark.worker.upkeep import UpkeepReceipt

__all__ = ["census", "text", "upkeep"]


def text(answer: Census | UpkeepReceipt) -> str:
    """Return an answer as one line of JSON."""
    return json.dumps(asdict(answer), separators=(",", ":"))


def census(line: str) -> Census:
    """Return the census that ``text`` wrote."""
    body = json.loads(line)
    return Census(**{**body, "copies": _tuples(body["copies"]), "sealed": tuple(body["sealed"])})


def upkeep(line: str) -> UpkeepReceipt:
    """Return the receipt that ``text`` wrote."""
    body = json.loads(line)
    rows = {name: _tuples(body[name]) for name in ("copies", "gone", "unfinished", "failed", "failed_snapshots")}
    taken = ((store, kg, Snapshot(snap[0], Head(*snap[1]), *snap[2:])) for store, kg, snap in body["taken"])
    return UpkeepReceipt(**{**body, **rows, "taken": tuple(taken), "errors": tuple(body["errors"])})


def _tuples(rows: list[list[object]]) -> tuple[tuple[object, ...], ...]:
    return tuple(tuple(row) for row in rows)
