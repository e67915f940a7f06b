"""The mapping from a key to its key-group.

``key_group = pmod(xxhash64(column, column, ...), total)``. Spark computes it when it routes rows, and Python when they
arrive. Both must always agree, so ``docs/key-groups.md`` specifies the hashed bytes of each type.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.columns import Column, byte_slices, fixed_values, is_text_or_bytes, valid_mask, with_long_offsets
from riffle_spark.errors import ConfigError
from riffle_spark.keyhash import Words, hash_bytes, hash_ints, hash_longs, murmur3_int

__all__ = [
    "check_key_type",
    "check_total",
    "few_key_groups_warning",
    "key_column",
    "key_groups",
    "key_hashes",
    "murmur3_int",
    "slot_numbers",
    "spark_expression",
    "spark_hash",
]

SEED = 42
TOTAL_MAX = 32_768
LONG_DECIMAL_DIGITS = 18

_AS_INT = (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.date32())
_AS_LONG = (pa.int64(), pa.duration("us"), pa.time64("ns"))
_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def key_column(value: object, kind: pa.DataType) -> pa.Array:
    """Return a column of type ``kind`` with one value of a key.

    Raises ``ValueError`` for a float in a column of integers, which pyarrow would round, and pyarrow's errors for other
    values that do not fit.
    """
    if isinstance(value, float) and pa.types.is_integer(kind):
        raise ValueError(f"{value!r} is not an integer")
    return pa.array([value], type=kind)


def key_groups(columns: Sequence[Column], total: int) -> npt.NDArray[np.int32]:
    """Return the key-group of every row, equal to Spark's ``pmod(xxhash64(columns), total)``."""
    check_total(total)
    return (key_hashes(columns).view(np.int64) % total).astype(np.int32)


def key_hashes(columns: Sequence[Column]) -> Words:
    """Return Spark's ``xxhash64(columns)`` of every row as unsigned bits. A null value leaves the hash unchanged."""
    hashes = np.full(len(columns[0]), SEED, dtype=np.uint64)
    for position, column in enumerate(columns):
        check_key_type(f"key column {position}", column.type)
        array = with_long_offsets(column)
        valid = valid_mask(array)
        hashed = _hash_column(array, column.type, hashes)
        hashes = hashed if valid is None else np.where(valid, hashed, hashes)
    return hashes


def _hash_column(array: pa.Array, kind: pa.DataType, seeds: Words) -> Words:
    """Return the hashes of a column's values. ``seeds`` are the hashes of the columns before it."""
    if is_text_or_bytes(kind):
        data, offsets = byte_slices(array)
        return hash_bytes(data, offsets[:-1], np.diff(offsets), seeds)
    values = fixed_values(array)
    if pa.types.is_floating(kind):
        return _hash_floats(values, seeds)
    if pa.types.is_decimal(kind):
        return _hash_decimals(values, kind.precision, seeds)
    if kind in _AS_INT:
        return hash_ints(values.view(_SIGNED[values.dtype.itemsize]).astype(np.int32).view(np.uint32), seeds)
    return hash_longs(values.astype(np.uint64), seeds)


def _hash_floats(values: npt.NDArray[np.generic], seeds: Words) -> Words:
    """Return the hashes of floats, with -0.0 as 0.0 and every NaN as Java's canonical NaN."""
    if values.dtype.itemsize == 4:
        return hash_ints(canonical_floats(values.view(np.float32)).view(np.uint32), seeds)
    return hash_longs(canonical_floats(values.view(np.float64)).view(np.uint64), seeds)


def canonical_floats(values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Return the values with 0.0 for -0.0, and the positive quiet NaN for every NaN."""
    one_zero = values + values.dtype.type(0)
    return np.where(np.isnan(one_zero), values.dtype.type(np.nan), one_zero)


def _hash_decimals(values: npt.NDArray[np.generic], precision: int, seeds: Words) -> Words:
    """Return the hashes of unscaled decimals: as a long up to 18 digits, else as the shortest big-endian two's
    complement.
    """
    halves = np.ascontiguousarray(values).view(np.uint64).reshape(-1, 2)
    if precision <= LONG_DECIMAL_DIGITS:
        return hash_longs(halves[:, 0].copy(), seeds)
    digits = np.ascontiguousarray(np.ascontiguousarray(values).view(np.uint8).reshape(-1, 16)[:, ::-1])
    sign = np.where(digits[:, :1] >= 128, np.uint8(255), np.uint8(0))
    spare = (digits[:, :-1] == sign) & ((digits[:, 1:] ^ sign) < 128)
    lead = np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    return hash_bytes(digits.reshape(-1), np.arange(len(digits)) * 16 + lead, 16 - lead, seeds)


def spark_hash(columns: Sequence[str]) -> str:
    """Return the SQL expression with which Spark computes ``key_hashes`` of these columns, of type long."""
    return "xxhash64(" + ", ".join("`" + name.replace("`", "``") + "`" for name in columns) + ")"


def spark_expression(columns: Sequence[str], total: int) -> str:
    """Return the SQL expression with which Spark computes the key-group out of ``total``, of type int."""
    check_total(total)
    return f"cast(pmod({spark_hash(columns)}, {total}L) as int)"


def check_total(total: int) -> None:
    """Raise ``ConfigError`` if ``total`` is not a valid number of key-groups."""
    if isinstance(total, bool) or not isinstance(total, int) or not 1 <= total <= TOTAL_MAX:
        raise ConfigError(
            f"Invalid number of key-groups: {total!r}.",
            remedy=f"Use an integer from 1 to {TOTAL_MAX}.",
            where="key_groups",
            id="RIFFLE-0118",
        )


def check_key_type(name: str, kind: pa.DataType) -> None:
    """Raise ``ConfigError`` if the key column ``name`` cannot have this type.

    A collated string column looks like any other string column in Arrow. Spark hashes its collation key and Python its
    bytes, so the Spark side must refuse it.
    """
    plain = kind in _AS_INT or kind in _AS_LONG or is_text_or_bytes(kind)
    timestamp = pa.types.is_timestamp(kind) and kind.unit == "us"
    decimal = pa.types.is_decimal128(kind) and kind.scale >= 0
    if not (plain or timestamp or decimal or pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        raise ConfigError(
            f"A key column cannot have type {kind}.",
            remedy="Use boolean, byte, short, int, long, float, double, decimal, string, binary, date, timestamp or "
            "day-time interval. Extract the needed fields of a map, array, struct or variant.",
            where=name,
            id="RIFFLE-0119",
        )


@lru_cache(maxsize=64)
def slot_numbers(count: int) -> tuple[int, ...]:
    """Return for each of ``count`` partitions the smallest integer that Spark's hash partitioning maps to it."""
    candidates = 16 * count
    while True:
        partitions, first = np.unique(murmur3_int(np.arange(candidates)) % count, return_index=True)
        if len(partitions) == count:
            return tuple(first.tolist())
        candidates *= 2


def few_key_groups_warning(total: int, slots: int) -> str | None:
    """Return a warning if there are fewer than four key-groups per slot, else ``None``."""
    enough = 4 * slots
    if total >= enough:
        return None
    # Cause: The query has more executors or cores than its key-groups were planned for.
    return (
        f"[RIFFLE-0951] {total} key-groups cannot be balanced over {slots} slots. What to do: Use fewer slots, or stop "
        f"the query and change their number with riffle dispatch --key-groups {enough} --execute."
    )
