"""What is known of any store's columns, whatever kind of store it is."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.plain_columns import PlainColumns

__all__ = ["StoreSchema"]


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
    def copy_layout(self) -> bytes:
        """What names the layout of its rows in a local copy: copies of another one are of no use."""
        ...

    @property
    def one_row_a_key(self) -> bool:
        """Whether a key's state is one row, so that its newest row in a chain is all of it."""
        ...

    @property
    def file_columns(self) -> PlainColumns | None:
        """The columns of a large snapshot that stays a file beside its copy; ``None`` where it cannot."""
        ...

    def to_text(self) -> dict[str, str]:
        """Return the schema as a record keeps it; ``schema_of_text`` reads it. ``text`` is for a person."""
        ...

    def can_read(self, text: Mapping[str, str]) -> bool:
        """Tell whether state that was written with the schema of this text can be read with this one."""
        ...

    def encoded(self, table: pa.Table) -> pa.Array:
        """Return the whole keys of a table's rows (binary, order-preserving)."""
        ...

    def stored_keys(self, table: pa.Table) -> pa.Array:
        """Return the keys of a snapshot's rows as a local copy has them: in their order a copy lists the rows."""
        ...

    def earliest_ms(self, table: pa.Table) -> int | None:
        """Return when the first of a snapshot's rows is due (ms), ``None`` if none is."""
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
