"""The columns of a store that has one row a key. Knows key hashes. Does not know files or logs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.batch_times import TimeMode, parse_time_mode
from riffle_spark.columns import one_array
from riffle_spark.keygroups import key_hashes
from riffle_spark.keyhash import Words
from riffle_spark.state.formats.arrow_schemas import can_become, listed, packed, unpacked
from riffle_spark.state.formats.due_times import in_milliseconds
from riffle_spark.state.formats.key_codec import encode_keys
from riffle_spark.state.formats.part_codec import DELETED, HASH
from riffle_spark.state.schemas.history import NEVER_CHANGED, History, Name

__all__ = ["PlainColumns"]

_ROUTED_BY = "routed_by"
Result = TypeVar("Result")


@dataclass(frozen=True)
class PlainColumns:
    """The key and state columns of one store (Arrow schemas). ``due`` names the one that says when a row is due, by
    what time ``time_mode`` says; ``routed_by`` the first columns of the key, where rows go by these alone.
    """

    one_row_a_key: ClassVar[bool] = True

    store: str
    key: pa.Schema
    state: pa.Schema
    due: str | None = None
    time_mode: TimeMode = "None"
    history: History = NEVER_CHANGED
    routed_by: tuple[str, ...] = ()

    @staticmethod
    def of_text(store: str, text: Mapping[str, str]) -> "PlainColumns":
        """Return the schema that ``to_text`` gave: the same each time, as a process keeps it with its codecs."""
        times = text.get("due"), text.get("time_mode", "None")
        return _of_text(store, text["key"], text["state"], *times, text.get("history"), text.get(_ROUTED_BY))

    @property
    def routing(self) -> tuple[str, ...]:
        """See ``StoreSchema``."""
        return self.routed_by or tuple(self.key.names)

    def either(self, columns: "Callable[[PlainColumns], Result]", variables: object) -> Result:  # noqa: ARG002 - a kind
        """See ``StoreSchema``."""
        return columns(self)

    def to_text(self) -> dict[str, str]:
        """See ``StoreSchema``."""
        text = f"{listed(self.key)} | {listed(self.state)}"
        whole = {"key": packed(self.key), "state": packed(self.state), "text": text, **self._routed}
        if self.due is None:
            return whole
        return {**whole, "text": f"{text} | due: {self.due} by {self.time_mode}", **self._times}

    def can_read(self, text: Mapping[str, str]) -> bool:
        """See ``StoreSchema``. Columns that may be null come, others go; types become wider. What says when rows are
        due stays: nobody has noted it of another column, and by another time all may be due at once.
        """
        known = {name: text[name] for name in ("due", "time_mode") if name in text}
        if "state" not in text or unpacked(text.get("key", "")) != self.key or known != self._times:
            return False
        if text.get(_ROUTED_BY) != self._routed.get(_ROUTED_BY):
            return False
        return can_become(unpacked(text["state"]), self.state)

    @property
    def _times(self) -> dict[str, str]:
        return {} if self.due is None else {"due": self.due, "time_mode": self.time_mode}

    @property
    def _routed(self) -> dict[str, str]:
        return {_ROUTED_BY: str(len(self.routed_by))} if self.routed_by else {}

    @property
    def names_read(self) -> frozenset[Name]:
        """See ``StoreSchema``."""
        return frozenset((name,) for name in self.state.names)

    def without_later_names(self, table: pa.Table, epoch: int) -> pa.Table:
        """See ``StoreSchema``."""
        if not self.history.since:
            return table
        others = [column for (column,) in self.history.later_than(epoch) if column in table.column_names]
        return table.drop_columns(others) if others else table

    def encoded(self, table: pa.Table) -> pa.Array:
        """Return the stored keys of a table's rows (binary, order-preserving)."""
        return encode_keys([one_array(table.column(name)) for name in self.key.names])

    def hashes(self, table: pa.Table) -> Words:
        """Return the 64-bit hashes of a table's keys: those that rows are routed by, but for ``routed_by``."""
        return key_hashes([table.column(name) for name in self.key.names])

    def sealed(self, table: pa.Table) -> pa.Table:
        """See ``StoreSchema``: sorted by hash and, where keys share one, by stored key."""
        hashes = self.hashes(table)
        order = np.argsort(hashes, kind="stable")
        if np.any(np.diff(hashes[order]) == 0):
            ranks = pc.rank(self.encoded(table), tiebreaker="dense").to_numpy()
            order = np.lexsort((ranks, hashes))
        return table.take(pa.array(order)).add_column(0, HASH, pa.array(hashes[order]))

    def earliest_ms(self, table: pa.Table) -> int | None:
        """See ``StoreSchema``."""
        if self.due is None:
            return None
        times = table.column(self.due).drop_null()
        return int(in_milliseconds(one_array(times)).min()) if len(times) else None

    @cached_property
    def row_schema(self) -> pa.Schema:
        """The columns of a row, be it deleted or not: those of state may be null."""
        return pa.schema([*self.key, *(field.with_nullable(True) for field in self.state)])

    def part_schema(self, *, delta: bool = False) -> pa.Schema:
        """Return the schema of a snapshot, or of a delta's part."""
        if not delta:
            return pa.schema([*self.key, *self.state])
        return pa.schema([*self.row_schema, pa.field(DELETED, pa.bool_())])


@lru_cache(maxsize=64)
def _of_text(
    store: str, key: str, state: str, due: str | None, time_mode: str, history: str | None, routed_by: str | None
) -> PlainColumns:
    mode, columns = parse_time_mode(time_mode), unpacked(key)
    routed = tuple(columns.names[: int(routed_by or 0)])
    return PlainColumns(store, columns, unpacked(state), due, mode, History.of_text(history), routed)
