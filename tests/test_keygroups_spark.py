"""Python computes the same key-groups as Spark."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from riffle_spark.keygroups import key_groups, key_hashes, murmur3_int, slot_numbers, spark_expression
from tests.kit.arrow_frames import frame_of_table
from tests.kit.folders import DATA

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

CONF = {"spark.sql.timeType.enabled": "true"}
VECTORS = json.loads((DATA / "key_group_vectors.json").read_text())["vectors"]
VERSION = [int(part) for part in spark_version.split(".")[:2]]
YEAR_10000_US = 253_402_300_800_000_000


def decimals(precision: int, scale: int) -> st.SearchStrategy[object]:
    """Draw decimals of one to ``precision`` digits."""
    digits = st.integers(1, precision).flatmap(lambda n: st.integers(-(10**n) + 1, 10**n - 1))
    return digits.map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


KEY_TYPES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(7, 2): decimals(7, 2),
    pa.decimal128(18, 0): decimals(18, 0),
    pa.decimal128(24, 3): decimals(24, 3),
    pa.decimal128(38, 0): decimals(38, 0),
    pa.string(): st.text(max_size=80),
    pa.binary(): st.binary(max_size=80),
    pa.date32(): st.integers(-719_162, 2_932_896),
    pa.timestamp("us", "UTC"): st.integers(0, YEAR_10000_US - 1),
    pa.timestamp("us"): st.integers(0, YEAR_10000_US - 1),
    pa.duration("us"): st.integers(-(2**53), 2**53).map(lambda us: timedelta(microseconds=us)),
}
"""Every type a key column may have but ``time``, which Spark 4.0 lacks."""


@pytest.fixture(scope="module")
def keys() -> pa.Table:
    """Draw 300 rows with a column of every key type and with nulls, under names that need quotes."""
    rows: list[tuple[object, ...]] = []

    @settings(derandomize=True, max_examples=300, database=None, deadline=None)
    @given(st.tuples(*(st.one_of(st.none(), values, values, values) for values in KEY_TYPES.values())))
    def draw(row: tuple[object, ...]) -> None:
        rows.append(row)

    draw()
    return pa.table(
        {
            f"a`{index} b": pa.array(column, kind)
            for index, (kind, column) in enumerate(zip(KEY_TYPES, zip(*rows, strict=True), strict=True))
        }
    )


def in_spark(spark: SparkSession, table: pa.Table, expressions: list[str]) -> list[list[int]]:
    """Return what Spark computes for each expression over the rows of the table."""
    named = [f"{text} as r{index}" for index, text in enumerate(expressions)]
    rows = frame_of_table(spark, table).selectExpr(*named).collect()
    return [list(column) for column in zip(*rows, strict=True)]


def test_published_vectors_hold_in_spark(spark: SparkSession) -> None:
    """Spark SQL computes the hash and key-group of every published vector."""
    vectors = [v for v in VECTORS if [int(part) for part in v.get("since_spark", "3.5").split(".")] <= VERSION]
    assert len(vectors) > 100
    hashes = ["xxhash64(" + ", ".join(column["sql"] for column in vector["columns"]) + ")" for vector in vectors]
    expressions_named = [f"{text} h{index}, pmod({text}, 128L) g{index}" for index, text in enumerate(hashes)]
    answer = list(spark.sql("select " + ", ".join(expressions_named)).collect()[0])
    assert [str(value) for value in answer[0::2]] == [vector["xxhash64"] for vector in vectors]
    assert answer[1::2] == [vector["key_group_of_128"] for vector in vectors]


def test_hashes_of_every_type_and_pair_of_types_equal_sparks(spark: SparkSession, keys: pa.Table) -> None:
    """Python hashes keys of one or two columns of all types, with nulls, as Spark does."""
    names = keys.column_names
    chosen = [(name,) for name in names] + list(itertools.pairwise([*names, names[0], *names[::3], *names[::-4]]))
    quoted = [
        "xxhash64(" + ", ".join(f"`{n.replace('`', '``')}`" for n in names_chosen) + ")" for names_chosen in chosen
    ]
    for names_chosen, expected in zip(chosen, in_spark(spark, keys, quoted), strict=True):
        hashes_computed = key_hashes([keys.column(name) for name in names_chosen]).view(np.int64).tolist()
        assert hashes_computed == expected, [str(keys.schema.field(name).type) for name in names_chosen]


@pytest.mark.parametrize("total", [1, 7, 128, 32_768])
@pytest.mark.sample(step=3)
def test_key_groups_of_composite_keys_equal_sparks(spark: SparkSession, keys: pa.Table, total: int) -> None:
    """For keys of many columns, Spark's key-groups from the SQL expression are those of Python."""
    names = keys.column_names
    chosen = [names, names[::-1], names[::2], names[1:5]]
    answers = in_spark(spark, keys, [spark_expression(names_chosen, total) for names_chosen in chosen])
    for some, expected in zip(chosen, answers, strict=True):
        assert key_groups([keys.column(name) for name in some], total).tolist() == expected


def test_murmur3_equals_sparks_hash_of_an_int(spark: SparkSession) -> None:
    """Python's Murmur3 equals Spark's ``hash(int)`` for small, negative and extreme numbers."""
    numbers = np.array([*range(-300, 3000), 2**31 - 1, -(2**31)], dtype=np.int32)
    (expected,) = in_spark(spark, pa.table({"n": numbers}), ["hash(n)"])
    assert murmur3_int(numbers).tolist() == expected


@pytest.mark.parametrize("count", [1, 2, 12, 96, 1024])
@pytest.mark.sample(step=3)
def test_spark_sends_slot_numbers_to_their_partition(spark: SparkSession, count: int) -> None:
    """Spark's repartition by slot sends the i-th slot number to partition i."""
    table = pa.table({"slot": pa.array(slot_numbers(count), pa.int32())})
    frame = frame_of_table(spark, table)
    expected = in_spark(spark, table, [f"pmod(hash(slot), {count})"])
    assert expected == [list(range(count))]
    if count <= 96:
        placed = frame.repartition(count, "slot").select("slot", F.spark_partition_id()).collect()
        assert sorted(map(tuple, placed)) == sorted(zip(slot_numbers(count), range(count), strict=True))
