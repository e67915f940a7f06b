"""Key-groups in Python match the published test vectors, and slots get the slot numbers of their partitions."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError
from riffle_spark.keygroups import (
    check_key_type,
    check_total,
    few_key_groups_warning,
    key_column,
    key_groups,
    key_hashes,
    murmur3_int,
    slot_numbers,
    spark_expression,
)
from tests.kit.folders import CHECKOUT, DATA

VECTORS = json.loads((DATA / "key_group_vectors.json").read_text())["vectors"]
DOCUMENT = CHECKOUT / "docs" / "key-groups.md"

ARROW_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "interval day to second": pa.duration("us"),
    "time(6)": pa.time64("ns"),
}
REFUSED = [
    pa.map_(pa.string(), pa.int32()),
    pa.list_(pa.int32()),
    pa.struct([("a", pa.int32())]),
    pa.null(),
    pa.uint32(),
    pa.float16(),
    pa.timestamp("ns"),
    pa.decimal256(50, 2),
]


def array_of(column: dict[str, object]) -> pa.Array:
    """Return the value of a vector's column as an Arrow array, as Spark would pass it."""
    kind = str(column["type"])
    value = column["value"]
    if kind.startswith("decimal"):
        precision, scale = kind[len("decimal(") : -1].split(",")
        return pa.array([None if value is None else Decimal(str(value))], pa.decimal128(int(precision), int(scale)))
    if value is not None and kind in {"float", "double"}:
        value = float(str(value))
    if value is not None and kind == "binary":
        value = bytes.fromhex(str(value))
    if value is not None and isinstance(value, str) and kind in {"tinyint", "smallint", "int", "bigint"}:
        value = int(value)
    return pa.array([value], ARROW_TYPES[kind])


def described(vector: dict[str, list[dict[str, object]]]) -> str:
    """Return a readable id."""
    return ", ".join(f"{column['type']} {str(column['value'])!r}" for column in vector["columns"])


@pytest.mark.parametrize("vector", VECTORS, ids=described)
def test_published_vector_holds(vector: dict[str, Any]) -> None:
    """Python computes the hash and key-group of every published vector."""
    columns = [array_of(column) for column in vector["columns"]]
    assert key_hashes(columns).view(np.int64).tolist() == [int(vector["xxhash64"])]
    assert key_groups(columns, 128).tolist() == [vector["key_group_of_128"]]


@pytest.mark.parametrize("vector", VECTORS, ids=described)
def test_published_bytes_give_the_published_hash(vector: dict[str, Any]) -> None:
    """XXH64 over the published bytes, column after column, is the published hash."""
    seed = 42
    for column in vector["columns"]:
        if column["hashed"] is not None:
            seed = xxhash.xxh64_intdigest(bytes.fromhex(column["hashed"]), seed)
    assert struct.unpack("<q", struct.pack("<Q", seed))[0] == int(vector["xxhash64"])


def test_vectors_in_the_document_are_published_vectors() -> None:
    """Each line of the table in key-groups.md is one of the published vectors."""
    published = {(described(vector), vector["xxhash64"], str(vector["key_group_of_128"])) for vector in VECTORS}
    section = DOCUMENT.read_text().split("## Test vectors")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    shown = [tuple(cell.strip().strip("`") for cell in line.split("|")[1:-1]) for line in rows]
    assert len(shown) >= 20
    assert [row for row in shown if (row[0], *row[2:]) not in published] == []


@given(st.lists(st.one_of(st.none(), st.binary(max_size=90)), min_size=1, max_size=40), st.integers(0, 2**64 - 1))
def test_bytes_of_any_length_hash_as_the_reference_does(values: list[bytes | None], first: int) -> None:
    """Property: bytes of any length hash as the reference XXH64 does, with a seed per row, also in slices."""
    seeds = [None if index % 3 == 0 else (first + index) % 2**63 for index in range(len(values))]
    array = pa.array(values, pa.binary())
    longs = pa.array(seeds, pa.int64())
    expected = []
    for value, seed in zip(values, seeds, strict=True):
        start = 42 if seed is None else xxhash.xxh64_intdigest(struct.pack("<q", seed), 42)
        expected.append(start if value is None else xxhash.xxh64_intdigest(value, start))
    assert key_hashes([longs, array]).tolist() == expected
    assert key_hashes([longs[1:], array[1:]]).tolist() == expected[1:]


def test_a_column_has_the_same_hashes_in_every_arrow_layout() -> None:
    """A column has the same hashes in every Arrow layout."""
    values = ["a", None, "Zürich", "", "x" * 50]
    chunked = pa.chunked_array([pa.array(values[:2]), pa.array(values[2:])])
    layouts = [pa.array(values), pa.array(values, pa.large_string()), chunked]
    layouts += [pa.array(values, pa.string_view())] if hasattr(pa, "string_view") else []
    assert len({tuple(key_groups([column], 1000).tolist()) for column in layouts}) == 1
    assert key_groups([pa.chunked_array([], pa.string())], 8).tolist() == []
    assert key_groups([pa.array([], pa.int64())], 8).dtype == np.int32


def test_key_groups_stay_below_their_total() -> None:
    """For any total, key-groups are from 0 to total - 1, and each gets some keys."""
    numbers = pa.array(range(20_000))
    for total in (1, 2, 128, 1000):
        assert set(key_groups([numbers], total).tolist()) == set(range(total))
    assert key_groups([numbers], 32_768).max() < 32_768


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_unsupported_key_type_is_refused(kind: pa.DataType) -> None:
    """A type that Spark cannot group by, or does not have, is refused with the name of the column."""
    with pytest.raises(ConfigError, match="RIFFLE-0119"):
        check_key_type("user_id", kind)
    with pytest.raises(ConfigError):
        key_groups([pa.array([], kind)], 128)


@pytest.mark.parametrize("total", [0, -1, 32_769, True, 2.0, "128"])
def test_impossible_total_is_refused(total: Any) -> None:
    """A total that is not an integer from 1 to 32,768 is refused with that range."""
    with pytest.raises(ConfigError, match="RIFFLE-0118"):
        check_total(total)


def test_names_are_quoted() -> None:
    """Column names are quoted in the SQL expression, whatever they contain."""
    assert spark_expression(["a", "b`c", "d.e"], 128) == "cast(pmod(xxhash64(`a`, `b``c`, `d.e`), 128L) as int)"


def test_slot_numbers_hash_to_their_partition() -> None:
    """The i-th slot number is the smallest that hash partitioning sends to partition i."""
    for count in (1, 2, 3, 12, 100, 1024):
        numbers = slot_numbers(count)
        assert (murmur3_int(np.array(numbers)) % count).tolist() == list(range(count))
        everything = murmur3_int(np.arange(max(numbers) + 1)) % count
        assert [everything.tolist().index(partition) for partition in range(count)] == list(numbers)
    assert slot_numbers(12) is slot_numbers(12)


def test_few_key_groups_per_slot_cause_a_warning() -> None:
    """Fewer than four key-groups per slot cause a warning with a better number."""
    assert few_key_groups_warning(128, 32) is None
    assert "132" in (few_key_groups_warning(128, 33) or "")


def test_a_fraction_as_key_of_an_integer_column_is_refused() -> None:
    """A fraction as the key of an integer column is refused. Rounding would give another key's key-group."""
    assert key_column(1, pa.int64()).to_pylist() == [1]
    with pytest.raises(ValueError, match=r"1\.5"):
        key_column(1.5, pa.int64())
