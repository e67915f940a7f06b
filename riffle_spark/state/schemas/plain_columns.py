"""The columns of a store with one row per key."""

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
from riffle_spark.state.formats.arrow_schemas import can_become, describe_schema, schema_from_text, schema_to_text
from riffle_spark.state.formats.due_times import in_milliseconds
from riffle_spark.state.formats.key_codec import encode_keys
from riffle_spark.state.formats.part_codec import DELETED, HASH
from riffle_spark.state.schemas.history import NEVER_CHANGED, History, Name

_ROUTED_BY = "routed_by"
Result = TypeVar("Result")


@dataclass(frozen=True)
class PlainColumns:
    """The key and state columns of a store.

    ``due`` names the column with a row's due time, by the clock of ``time_mode``. ``routed_by`` are the first key
    columns, if rows are routed by these only.
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
        """Return the schema that ``to_text`` wrote. Equal texts give the same object, because it caches codecs."""
        times = text.get("due"), text.get("time_mode", "None")
        return _of_text(store, text["key"], text["state"], *times, text.get("history"), text.get(_ROUTED_BY))

    @property
    def routing(self) -> tuple[str, ...]:
        """The key columns that rows are routed by."""
        return self.routed_by or tuple(self.key.names)

    def either(self, columns: "Callable[[PlainColumns], Result]", variables: object) -> Result:  # noqa: ARG002 - a StoreSchema
        """Return the result of ``columns``, the function for schemas of this kind. ``variables`` is ignored."""
        return columns(self)

    def to_text(self) -> dict[str, str]:
        """Return the schema as a record stores it."""
        text = f"{describe_schema(self.key)} | {describe_schema(self.state)}"
        if self.due is not None:
            text += f" | due: {self.due} by {self.time_mode}"
        return {
            "key": schema_to_text(self.key),
            "state": schema_to_text(self.state),
            "text": text,
            **self._routed,
            **self._times,
        }

    def can_read(self, text: Mapping[str, str]) -> bool:
        """Return whether state with the schema of this text can be read with this schema.

        Nullable columns may be added, columns removed, and types widened. The due column and its clock must not
        change: other columns have no index of due times, and by another clock all rows may be due at once.
        """
        stored_times = {name: text[name] for name in ("due", "time_mode") if name in text}
        if "state" not in text or schema_from_text(text.get("key", "")) != self.key or stored_times != self._times:
            return False
        if text.get(_ROUTED_BY) != self._routed.get(_ROUTED_BY):
            return False
        return can_become(schema_from_text(text["state"]), self.state)

    @property
    def _times(self) -> dict[str, str]:
        """Return the stored text of the due column and its clock; empty without one."""
        return {} if self.due is None else {"due": self.due, "time_mode": self.time_mode}

    @property
    def _routed(self) -> dict[str, str]:
        """Return the stored text of the number of routing columns; empty if rows are routed by the whole key."""
        return {_ROUTED_BY: str(len(self.routed_by))} if self.routed_by else {}

    @property
    def column_and_field_names(self) -> frozenset[Name]:
        """The names of the state columns, as (column,)."""
        return frozenset((name,) for name in self.state.names)

    def without_later_names(self, table: pa.Table, epoch: int) -> pa.Table:
        """Return a part's rows without values under names that were declared after ``epoch``."""
        if not self.history.since:
            return table
        later = [column for (column,) in self.history.names_declared_after(epoch) if column in table.column_names]
        return table.drop_columns(later) if later else table

    def encoded(self, table: pa.Table) -> pa.Array:
        """Return the stored keys of a table's rows (binary, order-preserving)."""
        return encode_keys([one_array(table.column(name)) for name in self.key.names])

    def hashes(self, table: pa.Table) -> Words:
        """Return the 64-bit hashes of a table's whole keys. Rows are routed by them unless ``routed_by`` is set."""
        return key_hashes([table.column(name) for name in self.key.names])

    def sealed(self, table: pa.Table) -> pa.Table:
        """Return a snapshot's rows sorted by hash, and by stored key if keys share a hash."""
        hashes = self.hashes(table)
        order = np.argsort(hashes, kind="stable")
        if np.any(np.diff(hashes[order]) == 0):
            ranks = pc.rank(self.encoded(table), tiebreaker="dense").to_numpy()
            order = np.lexsort((ranks, hashes))
        return table.take(pa.array(order)).add_column(0, HASH, pa.array(hashes[order]))

    def earliest_ms(self, table: pa.Table) -> int | None:
        """Return the earliest due time in a snapshot's rows (ms), or ``None`` if no row is due."""
        if self.due is None:
            return None
        times = table.column(self.due).drop_null()
        return int(in_milliseconds(one_array(times)).min()) if len(times) else None

    @cached_property
    def row_schema(self) -> pa.Schema:
        """The columns of a row that may be deleted: state columns are nullable."""
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
    """Return the schema of its stored texts. Raises ``CorruptStateError`` for a schema that cannot be read."""
    columns = schema_from_text(key)
    routed = tuple(columns.names[: int(routed_by or 0)])
    mode = parse_time_mode(time_mode)
    return PlainColumns(store, columns, schema_from_text(state), due, mode, History.of_text(history), routed)
