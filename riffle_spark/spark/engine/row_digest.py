"""Compute a digest of a frame's rows. It identifies a repeated batch if there are no offsets."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from riffle_spark.spark import compat

_FORM = "2"
"""The version of the digest. Digests of different versions cannot be compared."""
_TIME = "yyyy-MM-dd HH:mm:ss.SSSSSS"
_OPTIONS = {"timestampFormat": _TIME, "timestampNTZFormat": _TIME, "timeZone": "UTC", "ignoreNullFields": "false"}
_INEXACT = ("map<", "variant")
"""Types that JSON writes inexactly. It writes map keys as Java's text, and variants without their type."""


def digest(frame: DataFrame) -> str:
    """Return a digest of the rows: its version, the number of rows, and the sum of the hashes of their JSON.

    It does not depend on the order of rows or the session's time zone. Columns are identified by position, because two
    may have the same name.
    """
    numbered = frame.toDF(*map(str, range(len(frame.columns))))
    row = _exact(F.struct("*"), numbered.schema)
    hashed = F.xxhash64(F.to_json(row, _OPTIONS)).cast("decimal(38,0)")
    count, total = numbered.agg(F.count(F.lit(1)), F.sum(hashed)).collect()[0]
    return f"{_FORM}/{count}:{total}"


def _exact(column: Column, kind: DataType) -> Column:
    """Return a column of this type with maps as lists of entries, and variants with their type."""
    if not any(word in kind.simpleString() for word in _INEXACT):
        return column
    if isinstance(kind, compat.VariantType):
        return F.struct(column.alias("value"), F.schema_of_variant(column).alias("type"))
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return _exact(F.map_entries(column), ArrayType(entry))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda element: _exact(element, kind.elementType))
    assert isinstance(kind, StructType), "no other type has parts"
    fields = [_exact(column.getField(field.name), field.dataType).alias(field.name) for field in kind.fields]
    return F.when(column.isNotNull(), F.struct(*fields))
