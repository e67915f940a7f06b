"""The digest of a batch's rows identifies the batch if it has no offsets."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from riffle_spark.spark.engine.row_digest import digest

pytestmark = pytest.mark.spark

DIFFERENT = {
    "a microsecond": ("timestamp'2024-01-01 00:00:00.000001'", "timestamp'2024-01-01 00:00:00.000002'"),
    "a microsecond, no zone": (
        "timestamp_ntz'2024-01-01 00:00:00.000001'", "timestamp_ntz'2024-01-01 00:00:00.000002'"
    ),
    "in which field": ("struct(1, cast(null as int))", "struct(cast(null as int), 1)"),
    "a field of the same name": ("named_struct('a', 1, 'a', null)", "named_struct('a', null, 'a', 1)"),
    "where in a list": ("array(1, null)", "array(null, 1)"),
    "no value of a map": ("map(1, cast(null as int))", "cast(map() as map<int, int>)"),
    "a map's binary key": ("map(binary('a'), 1)", "map(binary('b'), 1)"),
    "a map's key that is a text": ("map(struct('a, b' as x, 'c' as y), 1)", "map(struct('a' as x, 'b, c' as y), 1)"),
    "a map in a struct": ("struct(map(1, 2) as m)", "struct(cast(null as map<int, int>) as m)"),
    "no struct of a map": ("struct(cast(null as map<int, int>) as m)", "cast(null as struct<m: map<int, int>>)"),
    "a map in a list in a map": ("map(1, array(map(2, 3)))", "map(1, array(map(2, 4)))"),
    "a variant's type": ("to_variant_object(array('1'))", "to_variant_object(array(1))"),
    "a variant's date": ("to_variant_object(array('2024-01-01'))", "to_variant_object(array(date'2024-01-01'))"),
    "no variant": ("parse_json('null')", "cast(null as variant)"),
    "a variant in a list": ("array(parse_json('1'))", "array(parse_json('2'))"),
    "binary": ("binary('a')", "binary('b')"),
    "an interval": ("interval '1.000001' second", "interval '1.000002' second"),
    "months and days": ("make_interval(0, 1, 0, 30)", "make_interval(0, 0, 0, 60)"),
    "a double": ("cast(0.1 as double)", "cast(0.1 as double) + 2e-17"),
    "a decimal": ("cast('12345678901234567890.12345678901' as decimal(38, 11))",
                  "cast('12345678901234567890.12345678902' as decimal(38, 11))"),
}  # fmt: skip


NEEDS_SPARK4 = {
    "a variant's type": "variants",
    "a variant's date": "variants",
    "no variant": "variants",
    "a variant in a list": "variants",
    "months and days": "calendar intervals in PySpark's schemas",
}


def cases() -> list[object]:
    """Return the names of ``DIFFERENT`` as test arguments."""
    return [
        pytest.param(
            name, marks=[pytest.mark.needs_spark4(NEEDS_SPARK4[name])] if name in NEEDS_SPARK4 else [], id=name
        )
        for name in DIFFERENT
    ]


@pytest.mark.parametrize("name", cases())
@pytest.mark.sample("a microsecond", "a map in a struct", "a map in a list in a map", "a variant in a list")
def test_rows_that_differ_in_any_detail_have_different_digests(spark: SparkSession, name: str) -> None:
    """Rows that differ in any detail have different digests. Equal rows have equal digests in any order and
    time zone.
    """
    first_frame, second_frame = (
        spark.sql(f"select id, x, x from values (1, {a}), (2, {b}) as t(id, x)")  # noqa: S608 - they are the table's above
        for a, b in (DIFFERENT[name], DIFFERENT[name][::-1])
    )
    expected = digest(first_frame)
    assert digest(second_frame) != expected
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert digest(first_frame.orderBy("id", ascending=False)) == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.long
def test_the_digest_depends_on_null_columns_and_repeated_rows(spark: SparkSession) -> None:
    """The digest depends on which column is NULL and on how often a row occurs."""
    left, right = (spark.createDataFrame([row], "a int, b int") for row in ((1, None), (None, 1)))
    assert len({digest(left), digest(right), digest(left.union(left)), digest(left.where("false"))}) == 4
