"""Which key-groups a slot visits though no row is theirs: those with something due. Pure; knows orders only.

Due is what Spark calls so: a timer, or an element's end, at or before the time that the mode goes by.
"""

from __future__ import annotations

from riffle_spark.state.manifest import EMPTY
from riffle_spark.worker.order import Order

__all__ = ["due_key_groups", "now_ms"]


def now_ms(order: Order) -> int | None:
    """Return the time that timers go by, ``None`` where there are none: the batch's time or the watermark."""
    if order.time_mode == "EventTime":
        return order.watermark_ms or 0
    return order.time_ms if order.time_mode == "ProcessingTime" else None


def due_key_groups(order: Order, slot: int) -> tuple[int, ...]:
    """Return the slot's key-groups whose earliest timer is due, ascending; those of a last pass too."""
    now = now_ms(order)
    if now is None:
        return ()
    until = now if order.last_pass_ms is None else max(now, order.last_pass_ms)
    timers = ((key_group, order.entries.get(key_group, EMPTY).timer_ms) for key_group in sorted(order.slots[slot]))
    return tuple(key_group for key_group, timer in timers if timer is not None and timer <= until)
