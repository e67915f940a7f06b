"""A digest of a frame's rows, by which the same input is known where no offsets tell it. Knows Spark's functions and
types. Does not know what it is compared with.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

__all__ = ["digest"]

_FORM = "2"
"""Says how rows are told: digests of different forms say nothing of each other."""
_TIME = "yyyy-MM-dd HH:mm:ss.SSSSSS"
_OPTIONS = {"timestampFormat": _TIME, "timestampNTZFormat": _TIME, "timeZone": "UTC", "ignoreNullFields": "false"}
_INEXACT = ("map<", "variant")
"""What JSON tells of inexactly: keys of maps by Java's words for them, and of a variant not of which type it is."""


def digest(frame: DataFrame) -> str:
    """Return a digest of the rows, whatever their order and the session's time zone: its form, the number of rows and
    the sum of the hashes of each row's JSON.

    Columns go by their places: there may be two of one name.
    """
    numbered = frame.toDF(*map(str, range(len(frame.columns))))
    row = _exact(F.struct("*"), numbered.schema)
    hashed = F.xxhash64(F.to_json(row, _OPTIONS)).cast("decimal(38,0)")
    count, total = numbered.agg(F.count(F.lit(1)), F.sum(hashed)).collect()[0]
    return f"{_FORM}/{count}:{total}"


def _exact(column: Column, kind: DataType) -> Column:
    """Return a column with maps as their entries, and with its type beside a variant."""
    if not any(word in kind.simpleString() for word in _INEXACT):
        return column
    if isinstance(kind, VariantType):
        return F.struct(column.alias("value"), F.schema_of_variant(column).alias("type"))
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return _exact(F.map_entries(column), ArrayType(entry))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda one: _exact(one, kind.elementType))
    if isinstance(kind, StructType):
        fields = [_exact(column.getField(field.name), field.dataType).alias(field.name) for field in kind.fields]
        return F.when(column.isNotNull(), F.struct(*fields))
    return column
