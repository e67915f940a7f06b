"""The case of state with nested and rare types: structs, arrays, times, decimals and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import StatefulProcessorHandle
from tests.kit.processors.both_forms import Logic, Output, millis
from tests.kit.processors.processor_case import Case, batches_of, forms, seeded

__all__ = ["CASES"]

PROFILE = (
    "name struct<first: string, last: string>, scores array<long>, seen timestamp, worth decimal(20,4), day date, "
    "active boolean, photo binary, ratio float, level short, trail array<struct<at: int, place: string>>"
)
START = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


class Profiles(Logic):
    """Keeps a user's profile in one value of many columns, and nested visits in a map by day."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the value and the map."""
        self._profile = handle.getValueState("profile", PROFILE)
        self._visits = handle.getMapState(
            "visits", "day date", "places array<string>, last struct<at: long, worth: decimal(10,2)>"
        )

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Yield the state before each row, and then update it with the row."""
        for row in rows:
            yield self._state_row(key, row.seq)
            self._update(row)
            self._visit(row)

    def _update(self, row: Row) -> None:
        before = self._profile.get()
        scores = [*before[1], row.score][-4:] if before and before[1] is not None else [row.score]
        trail = [*(tuple(step) for step in (before[9] if before else [])), (row.seq, row.place)][-3:]
        worth = (before[3] if before else Decimal(0)) + row.worth
        self._profile.update((
            (row.first, "of " + row.place if row.place else None), None if row.score == 0 else scores,
            row.seen.replace(tzinfo=None), worth, row.day, row.score > 50, bytes(row.photo), row.score / 4, row.score,
            trail,
        ))  # fmt: skip

    def _visit(self, row: Row) -> None:
        known = self._visits.getValue((row.day,))
        places = [*(known[0] if known else []), row.place]
        self._visits.updateValue((row.day,), (places, (millis(row.seen), row.worth.quantize(Decimal("0.01")))))

    def _state_row(self, key: tuple[Any, ...], seq: int) -> dict[str, Any]:
        known = self._profile.get()
        if known is None:
            return {"key": key[0], "seq": seq, "profile": None, "visits": ""}
        name, scores, seen, worth, day, active, photo, ratio, level, trail = known
        steps = [f"{at}{place}" for at, place in map(tuple, trail)]
        texts = [*name, scores, millis(seen), worth, day.isoformat(), active, bytes(photo).hex(), ratio, level, steps]
        visits = sorted(
            f"{at.isoformat()}:{list(places)}:{last[0]}:{last[1]}" for (at,), (places, last) in self._visits.iterator()
        )
        return {"key": key[0], "seq": seq, "profile": "|".join(map(str, texts)), "visits": " ".join(visits)}


def _profiles_case() -> Case:
    chance = seeded("profiles")

    def row() -> dict[str, Any]:
        seen = START + timedelta(seconds=chance.randint(0, 10**6), milliseconds=chance.randint(0, 999))
        return {
            "key": date(2020, 2, 29) + timedelta(days=chance.randint(0, 2)),
            "first": chance.choice(["Ada", None, "Łukasz"]), "score": chance.choice([0, 0, 7, 50, 51, 100]),
            "seen": seen, "worth": Decimal(chance.randint(-(10**9), 10**9)).scaleb(-4),
            "day": date(1969, 12, 30) + timedelta(days=chance.randint(0, 3)),
            "place": chance.choice(["Rom", "Oslo", None]),
            "photo": chance.randbytes(chance.randint(0, 6)),
        }  # fmt: skip

    fields = {
        "key": pa.date32(), "first": pa.string(), "score": pa.int16(), "seen": pa.timestamp("us", tz="UTC"),
        "worth": pa.decimal128(18, 4), "day": pa.date32(), "place": pa.string(), "photo": pa.binary(),
    }  # fmt: skip
    return Case(
        "profiles", *forms(Profiles), key=("key",), output="key date, seq long, profile string, visits string",
        batches=batches_of(fields, [[row() for _ in range(size)] for size in (10, 6, 12)]),
        variables={"profile": "value", "visits": "map"},
    )  # fmt: skip


CASES = (_profiles_case(),)
