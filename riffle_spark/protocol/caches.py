"""Stores that are not durable: where their copies should be, for one run of the query. Knows receipts. Does not know
the log.

Theory of operation. A cache's delta is kept as a file by the member that made it and put nowhere. Its head and its last
link are remembered here only, so an uncommitted attempt never shows, and a batch that runs again reads what it read. A
member whose copy is neither at the head nor at the link's base begins empty: its rows build it up again.
"""

from __future__ import annotations

from collections.abc import Iterable

from riffle_spark.state.manifest import EMPTY, Address, Entry
from riffle_spark.worker.order import Receipt

__all__ = ["Caches"]


class Caches:
    """The entries of all caches, each cut to its last link."""

    def __init__(self) -> None:
        self.entries: dict[Address, Entry] = {}

    def forget(self) -> None:
        """Begin all caches anew: what they hold may be of a line that was given up, or lack a batch."""
        self.entries.clear()

    def committed(self, receipts: Iterable[Receipt]) -> None:
        """Take the receipts of a committed batch."""
        for receipt in receipts:
            for part in receipt.parts:
                address = (receipt.store, part.key_group)
                before = self.entries.get(address, EMPTY)
                self.entries[address] = Entry(None, (receipt.link(part),), part.timer_ms, cut=before.head)
