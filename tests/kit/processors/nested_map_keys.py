"""The case of maps whose keys are structs, arrays and maps with nulls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import StatefulProcessorHandle
from tests.kit.processors.both_forms import Logic, Output, plain
from tests.kit.processors.processor_case import Case, batches_of, forms, seeded

__all__ = ["CASES"]

TRIP = (
    "place struct<city: string, zone: int>, path array<string>, legs array<struct<at: int, to: string>>, "
    "load map<string, int>"
)
NOWHERE, NO_ZONE = -2, -1


class Trips(Logic):
    """Counts trips. The key of a trip is its place, its path, its legs and its load."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a map with nested keys."""
        self._trips = handle.getMapState("trips", TRIP, "count int")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Add or remove the trip of each row, yield the count before it, and at the end yield all trips."""
        for row in rows:
            trip = _trip(row)
            before = self._trips.getValue(trip)
            known = self._trips.containsKey(trip)
            if row.what == "remove":
                self._trips.removeKey(trip)
            else:
                self._trips.updateValue(trip, ((before[0] if before else 0) + 1,))
            yield {"user": key[0], "seq": row.seq, "known": known, "before": before and int(before[0]), "trips": None}
        counted_trips = sorted(f"{_trip_text(trip)}={int(count)}" for trip, (count,) in self._trips.iterator())
        assert sorted(map(_trip_text, self._trips.keys())) == sorted(each.rsplit("=", 1)[0] for each in counted_trips)
        yield {"user": key[0], "seq": None, "known": None, "before": None, "trips": " ".join(counted_trips)}


def _trip(row: Row) -> tuple[Any, ...]:
    zone = None if row.zone == NO_ZONE else row.zone
    path = None if row.path is None else [part or None for part in row.path.split("/")] if row.path else []
    legs = None if path is None else [None if part is None else (at, part) for at, part in enumerate(path)]
    load = None if row.load is None else {kind: None if kind == "z" else 1 for kind in row.load}
    return None if row.zone == NOWHERE else (row.city, zone), path, legs, load


def _trip_text(trip: Any) -> str:
    *parts, load = trip
    entries = None if load is None else sorted((kind, weight) for kind, weight in dict(load).items())
    return _text_of((*parts, entries))


def _text_of(value: Any) -> str:
    """Return a text of a nested value that is the same for tuples, dicts and arrays.

    Integers are shown without fractions, because pandas turns integers with nulls into floats.
    """
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list, np.ndarray)):
        return "(" + ",".join(map(_text_of, value)) + ")"
    if isinstance(value, str):
        return repr(value)
    return "-" if plain(value) is None else str(int(value))


def _trips_case() -> Case:
    chance = seeded("nested-map-keys")

    def row() -> dict[str, Any]:
        return {
            "user": chance.randint(1, 3), "what": chance.choice(["add", "add", "add", "remove"]),
            "city": chance.choice(["Rom", None]), "zone": chance.choice([NOWHERE, NO_ZONE, 7]),
            "path": chance.choice([None, "", "a", "a/b"]), "load": chance.choice([None, "", "x", "xz", "zx"]),
        }  # fmt: skip

    fields = {"user": pa.int64(), "what": pa.string(), "city": pa.string(), "zone": pa.int32()}
    fields |= {"path": pa.string(), "load": pa.string()}
    return Case(
        "nested-map-keys", *forms(Trips), key=("user",),
        output="user long, seq long, known boolean, before int, trips string",
        batches=batches_of(fields, [[row() for _ in range(size)] for size in (30, 30, 5, 40)]),
        variables={"trips": "map"},
    )  # fmt: skip


CASES = (_trips_case(),)
