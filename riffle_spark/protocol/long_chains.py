"""Chains that nobody cuts. Knows since when. Does not know why: upkeep may hang, fail or have no time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from riffle_spark.state.manifest import Address
from riffle_spark.state.record import Record

__all__ = ["TIMES", "LongChains"]

TIMES = 4
"""A chain so many times longer than its rule allows is told of."""
_TELL_AGAIN_MS = 600_000
_NAMED = 8


class LongChains:
    """Since which record each chain has been too long; tells of them when they are twice as many, and now and then."""

    def __init__(self) -> None:
        self._since: dict[Address, Record] = {}
        self._told = 0
        self._next_ms = 0

    def forget(self) -> None:
        """Forget all: another driver may have been at work."""
        self._since.clear()
        self._told = self._next_ms = 0

    def seen(self, addresses: Iterable[Address], record: Record) -> list[str]:
        """Take those that are too long at a record; return what is to be said of them now."""
        self._since = {address: self._since.get(address, record) for address in sorted(addresses)}
        if not self._since:
            self._told = self._next_ms = 0
        elif len(self._since) >= 2 * self._told + 1 or record.written_ms >= self._next_ms:
            self._told, self._next_ms = len(self._since), record.written_ms + _TELL_AGAIN_MS
            return [self._warning()]
        return []

    def _warning(self) -> str:
        first = min(self._since.values(), key=lambda record: record.sequence)
        named = ", ".join(f"{store} {key_group}" for store, key_group in list(self._since)[:_NAMED])
        more = f" and {len(self._since) - _NAMED} more" if len(self._since) > _NAMED else ""
        at = datetime.fromtimestamp(first.written_ms / 1000, timezone.utc).isoformat(" ", "seconds")
        return (
            f"the chains of {len(self._since)} key-groups ({named}{more}) are {TIMES} times longer than they should "
            f"be, the first since batch {first.version} ({at}): no snapshots of them are taken\n"
            "  What to do: look at earlier warnings of upkeep and at the executors; a restore of them takes long"
        )
