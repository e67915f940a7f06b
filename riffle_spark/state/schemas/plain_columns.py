"""Tables to key-value pairs and back, for one store. Knows key and row codecs. Does not know files or logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.state.formats.key_codec import LOCAL_KEY_BYTES_MAX, decode_keys, encode_keys, local_key
from riffle_spark.state.formats.part_codec import DELETED, fitted, layout_of
from riffle_spark.state.formats.row_codec import RowCodec
from riffle_spark.state.schemas.copy_rows import CopyRows

__all__ = ["PlainColumns", "StoreSchema", "shortened"]


class StoreSchema(Protocol):
    """What is known of any store's columns: enough to keep its copies and to take its snapshots."""

    @property
    def store(self) -> str:
        """The store's name."""
        ...

    @property
    def key(self) -> pa.Schema:
        """The key's columns."""
        ...

    @property
    def layout(self) -> bytes:
        """What names the layout of its rows in a local copy: copies of another one are of no use."""
        ...

    def encoded(self, table: pa.Table) -> pa.Array:
        """Return the whole keys of a table's rows (binary, order-preserving)."""
        ...

    def fit(self, table: pa.Table) -> pa.Table:
        """Return a part or snapshot that may be of earlier columns as one of today's."""
        ...

    def encode(self, table: pa.Table) -> CopyRows:
        """Return a part's or snapshot's rows, which may be of earlier columns, as a local copy takes them."""
        ...

    def table(self, pairs: Sequence[tuple[bytes, bytes]], longs: dict[bytes, bytes]) -> pa.Table:
        """Return pairs of a local copy as a snapshot's table."""
        ...

    def part_schema(self, *, delta: bool = False) -> pa.Schema:
        """Return the schema of a snapshot, or of a delta's part."""
        ...


@dataclass(frozen=True)
class PlainColumns:
    """The key and state columns of one store (Arrow schemas)."""

    store: str
    key: pa.Schema
    state: pa.Schema
    codec: RowCodec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", RowCodec(self.state))

    @cached_property
    def layout(self) -> bytes:
        """See ``StoreSchema``."""
        return layout_of(self.key, self.state)

    def encoded(self, table: pa.Table) -> pa.Array:
        """Return the stored keys of a table's rows (binary, order-preserving)."""
        return encode_keys([_flat(table.column(name)) for name in self.key.names])

    def fit(self, table: pa.Table) -> pa.Table:
        """See ``StoreSchema``."""
        return fitted(table, self.part_schema(delta=DELETED in table.column_names))

    def encode(self, table: pa.Table) -> CopyRows:
        """See ``StoreSchema``."""
        table = self.fit(table)
        stored, encoded = self.encoded(table), self.codec.encode(table.select(self.state.names))
        keys, longs = shortened(stored)
        values: list[bytes | None] = encoded.to_pylist()
        if DELETED in table.column_names:
            for index in pc.indices_nonzero(_flat(table.column(DELETED))).to_pylist():
                values[index] = None
        return CopyRows(keys, values, longs, stored.nbytes + encoded.nbytes)

    def table(self, pairs: Sequence[tuple[bytes, bytes]], longs: dict[bytes, bytes]) -> pa.Table:
        """Return pairs of a local copy as a table of key and state columns."""
        whole = pa.array([longs.get(key, key) for key, _ in pairs] if longs else [key for key, _ in pairs], pa.binary())
        keys = decode_keys(whole, list(self.key.types))
        state = self.codec.decode([value for _, value in pairs])
        return pa.table([*keys, *state.columns], schema=self.part_schema())

    def part_schema(self, *, delta: bool = False) -> pa.Schema:
        """Return the schema of a snapshot, or of a delta's part."""
        if not delta:
            return pa.schema([*self.key, *self.state])
        state = [field.with_nullable(True) for field in self.state]  # a deleted key's are null
        return pa.schema([*self.key, *state, pa.field(DELETED, pa.bool_())])


def shortened(whole: pa.Array) -> tuple[list[bytes], list[bytes | None] | None]:
    """Return keys short enough for a local copy, and the whole keys of those that were cut."""
    longest = pc.max(pc.binary_length(whole)).as_py() or 0
    if longest <= LOCAL_KEY_BYTES_MAX:
        return whole.to_pylist(), None
    cut, full = local_key(whole).to_pylist(), whole.to_pylist()
    return cut, [long if long != short else None for short, long in zip(cut, full, strict=True)]


def _flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
