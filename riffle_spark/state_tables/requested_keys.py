"""Keys that a caller asks for, in the columns of a store's key.

As Python values a key is a value, or for several columns a sequence in their order or a mapping by column. Keys in JSON
are first converted to a table (``json_keys``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import Column, one_array
from riffle_spark.errors import ConfigError
from riffle_spark.keygroups import key_column, key_groups, key_hashes
from riffle_spark.keyhash import Words
from riffle_spark.state.formats.arrow_casts import cast_column
from riffle_spark.state.formats.key_codec import encode_keys
from riffle_spark.state.schemas.store_schema import StoreSchema

Keys: TypeAlias = pa.Table | pa.RecordBatch | Iterable[object]
"""Keys as a table with the key's columns, or as Python values: a value, a sequence of the columns' values, or a mapping
by column."""


@dataclass(frozen=True)
class RequestedKeys:
    """Requested keys: a table with the key's columns, their hashes (ascending) and their stored keys."""

    table: pa.Table
    hashes: Words
    stored: pa.Array

    def mask_rows(self, columns: Sequence[Column]) -> pa.Array:
        """Return a mask of the rows whose key was requested. ``columns`` are the key's columns of the rows."""
        return pc.is_in(encode_keys(columns), value_set=self.stored)

    def mask_hashes(self, hashes: Words) -> npt.NDArray[np.bool_]:
        """Return a mask of the hashes that a requested key has."""
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.asarray(self.hashes[places] == hashes)

    def find_key_groups(self, routing: Sequence[str], total: int) -> list[int]:
        """Return the key-groups of the keys out of ``total``, ascending. ``routing`` are the columns that decide it."""
        numbers: list[int] = np.unique(key_groups(self.table.select(list(routing)).columns, total)).tolist()
        return numbers


def requested_keys(keys: Keys, schema: StoreSchema) -> RequestedKeys:
    """Return the keys in the columns of a store's key. Raises ``ConfigError`` if a key does not fit them."""
    kinds = schema.key
    if isinstance(keys, str | bytes | Mapping):
        raise ConfigError(
            f"keys = {str(keys)[:80]!r} is one key, not a list of keys.",
            remedy="Put the key into a list: keys=['ann'].",
            where="keys",
            id="RIFFLE-1781",
        )
    try:
        if isinstance(keys, pa.Table | pa.RecordBatch):
            columns = [cast_column(keys.column(field.name), field.type) for field in kinds]
        else:
            values = [_split_key(key, kinds.names) for key in keys]
            columns = [_make_column([row[place] for row in values], field.type) for place, field in enumerate(kinds)]
    except (LookupError, ValueError, TypeError, OverflowError, NotImplementedError) as error:
        raise _misfit_error(keys, schema, error) from error
    table = pa.table([one_array(column) for column in columns], names=kinds.names)
    return RequestedKeys(table, np.sort(key_hashes(table.columns)), encode_keys(table.columns))


def _split_key(key: object, names: Sequence[str]) -> list[object]:
    """Return the value of each column of a key. Raises ``KeyError`` or ``ValueError`` if the columns differ."""
    if isinstance(key, Mapping):
        unknown = sorted(set(map(str, key)) - set(names))
        if unknown:
            raise ValueError(f"unknown column {unknown[0]!r}")
        return [key[name] for name in names]
    if isinstance(key, list | tuple):
        if len(key) != len(names):
            raise ValueError(f"{len(key)} values for {len(names)} columns")
        return list(key)
    if len(names) > 1:
        raise ValueError(f"one value for {len(names)} columns")
    return [key]


def _make_column(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Return a key column of these values. Text of a date, time or decimal is parsed."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text or not any(isinstance(value, str) for value in values):
        if pa.types.is_decimal(kind):
            values = [None if value is None else str(value) for value in values]
            return pa.array(values, pa.string()).cast(kind)
        return pa.concat_arrays([key_column(value, kind) for value in values]) if values else pa.array([], kind)
    texts = [value if value is None or isinstance(value, str) else str(value) for value in values]
    return pa.array(texts, pa.string()).cast(kind)


def _misfit_error(key: object, schema: StoreSchema, error: Exception) -> ConfigError:
    """Return the error for a key that does not fit a store's key columns."""
    key_columns = ", ".join(f"{field.name} ({field.type})" for field in schema.key)
    key_text = str(key)[:80]
    return ConfigError(
        f"{key_text!r} is not a key of store {schema.store!r}: {error}",
        remedy=f"Give {key_columns}: a value for one column, a tuple or a dictionary for several.",
        where=schema.store,
        id="RIFFLE-1556",
    )
