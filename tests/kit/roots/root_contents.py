"""What a root of the diary query holds, read from its objects alone, as the oracle writes it."""

from __future__ import annotations

from pathlib import Path

from riffle_spark.protocol.operator import Operator, operator_of, with_watermark
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.testing.harness import Contents
from tests.kit.roots.diary_query import ROWS, State, operators

__all__ = ["built", "held"]


def built() -> list[Operator]:
    """Return the query's operators as a driver takes them."""
    return [with_watermark(operator_of(o.store, o.key, o.compute, o.order_by, ROWS), o.watermark) for o in operators()]


def held(objects: ObjectStore, root: str, folder: Path) -> State:
    """Return the committed state; what is put together meanwhile lies below ``folder``."""
    totals, tails, diary = (Contents(operator, objects, root, folder) for operator in built())
    sums, values = diary.variable("sums"), diary.variable("values")
    counts, timers = diary.variable("counts"), diary.dues()
    return {
        "totals": {str(key): [row["rows"], row["total"]] for (key,), row in totals.columns().items()},
        "tails": {str(key): row["last"] for (key,), row in tails.columns().items()},
        "diary": {
            str(key[0]): {
                "rows": found[0], "total": found[1], "fired": found[2],  # type: ignore[index]
                "values": [v for (v,) in values.get(key, [])],  # type: ignore[attr-defined]
                "counts": {str(v): n for (v,), (n,) in counts.get(key, {}).items()},  # type: ignore[attr-defined]
                "timer": timers.get(key, [None])[0],
            }
            for key, found in sums.items()
        },
    }  # fmt: skip
