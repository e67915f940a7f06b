"""Tables to key-value pairs and back, for one store. Knows key and row codecs. Does not know files or logs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import one_array
from riffle_spark.state.formats.arrow_schemas import can_become, listed, packed, unpacked
from riffle_spark.state.formats.key_codec import LOCAL_KEY_BYTES_MAX, decode_keys, encode_keys, local_key
from riffle_spark.state.formats.part_codec import DELETED, copy_layout_of, fitted
from riffle_spark.state.formats.row_codec import RowCodec
from riffle_spark.state.schemas.copy_rows import CopyRows

__all__ = ["PlainColumns", "shortened"]


@dataclass(frozen=True)
class PlainColumns:
    """The key and state columns of one store (Arrow schemas)."""

    one_row_a_key: ClassVar[bool] = True

    store: str
    key: pa.Schema
    state: pa.Schema
    codec: RowCodec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", RowCodec(self.state))

    @property
    def file_columns(self) -> "PlainColumns":
        """See ``StoreSchema``."""
        return self

    @staticmethod
    def of_text(store: str, text: Mapping[str, str]) -> "PlainColumns":
        """Return the schema that ``to_text`` gave: the same each time, as a process keeps it with its codecs."""
        return _of_text(store, text["key"], text["state"])

    def to_text(self) -> dict[str, str]:
        """See ``StoreSchema``."""
        text = f"{listed(self.key)} | {listed(self.state)}"
        return {"key": packed(self.key), "state": packed(self.state), "text": text}

    def can_read(self, text: Mapping[str, str]) -> bool:
        """See ``StoreSchema``. Columns that may be null come, others go; types become wider."""
        if "state" not in text or unpacked(text["key"]) != self.key:
            return False
        return can_become(unpacked(text["state"]), self.state)

    @cached_property
    def copy_layout(self) -> bytes:
        """See ``StoreSchema``."""
        return copy_layout_of(self.key, self.state)

    def encoded(self, table: pa.Table) -> pa.Array:
        """Return the stored keys of a table's rows (binary, order-preserving)."""
        return encode_keys([one_array(table.column(name)) for name in self.key.names])

    def stored_keys(self, table: pa.Table) -> pa.Array:
        """See ``StoreSchema``."""
        return local_key(self.encoded(table))

    def earliest_ms(self, table: pa.Table) -> int | None:  # noqa: ARG002 - columns are never due
        """See ``StoreSchema``."""
        return None

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
            for index in pc.indices_nonzero(one_array(table.column(DELETED))).to_pylist():
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


@lru_cache(maxsize=64)
def _of_text(store: str, key: str, state: str) -> PlainColumns:
    return PlainColumns(store, unpacked(key), unpacked(state))


def shortened(whole: pa.Array) -> tuple[list[bytes], list[bytes | None] | None]:
    """Return keys short enough for a local copy, and the whole keys of those that were cut."""
    longest = pc.max(pc.binary_length(whole)).as_py() or 0
    if longest <= LOCAL_KEY_BYTES_MAX:
        return whole.to_pylist(), None
    cut, full = local_key(whole).to_pylist(), whole.to_pylist()
    return cut, [long if long != short else None for short, long in zip(cut, full, strict=True)]
