"""Values of the local key-value file: an Arrow row as bytes. Knows one schema. Does not know keys or files.

``row_layout`` says how the bytes lie.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from riffle_spark.columns import Bytes, Offsets, byte_slices, positions_of, with_long_offsets
from riffle_spark.errors import ConfigError
from riffle_spark.state.formats.row_layout import RowLayout, unreadable

__all__ = ["RowCodec"]

PIECE_BYTES_MAX = 2**30
"""Rows are decoded in pieces of about this size: Arrow's strings and lists count with 32 bits."""


class RowCodec:
    """Rows of one Arrow schema to bytes and back; immutable, safe to share.

    Equal rows give equal bytes. The schema is not in the bytes: whoever stores them stores it beside them.
    A column of a dictionary, union, run-end encoded or list-view type raises ``ConfigError``.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._layout = RowLayout(schema.types)

    @property
    def fixed_bytes(self) -> int | None:
        """The length of every value, ``None`` if they differ."""
        return self._layout.fixed_bytes

    def encode(self, rows: pa.Table | pa.RecordBatch) -> pa.LargeBinaryArray:
        """Return one value a row. The rows must have exactly this codec's columns."""
        if rows.schema.names != self.schema.names or rows.schema.types != self.schema.types:
            raise ConfigError(
                f"rows of ({_described(rows.schema)}) where ({_described(self.schema)}) is declared",
                remedy="return exactly the declared columns, in their order",
            )
        return self._layout.encode(map(with_long_offsets, rows.columns), rows.num_rows)

    def decode(self, values: Sequence[bytes] | pa.LargeBinaryArray) -> pa.Table:
        """Return the rows. Bytes that are not rows of this schema raise ``CorruptStateError``."""
        data, offsets = _as_slices(values)
        tables = [self._decode_piece(data, piece) for piece in _pieces(offsets)]
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def _decode_piece(self, data: Bytes, offsets: Offsets) -> pa.Table:
        try:
            columns = self._layout.decode(data, offsets)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise unreadable(str(error)) from error
        if columns:
            return pa.Table.from_arrays(columns, schema=self.schema)
        no_columns = pa.Array.from_buffers(pa.struct([]), len(offsets) - 1, [None])
        return pa.Table.from_struct_array(no_columns)


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _as_slices(values: Sequence[bytes] | pa.LargeBinaryArray) -> tuple[Bytes, Offsets]:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        if values.null_count:
            raise unreadable("a value is missing")
        return byte_slices(with_long_offsets(values))
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    return np.frombuffer(b"".join(values), dtype=np.uint8), positions_of(lengths)


def _pieces(offsets: Offsets) -> Iterator[Offsets]:
    """Cut the rows into pieces of about ``PIECE_BYTES_MAX``; a larger row stands alone."""
    first, last = 0, len(offsets) - 1
    while True:
        end = int(np.searchsorted(offsets, offsets[first] + PIECE_BYTES_MAX, side="right")) - 1
        end = min(max(end, first + 1), last)
        yield offsets[first : end + 1]
        first = end
        if first >= last:
            return
