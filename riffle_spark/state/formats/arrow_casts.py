"""Cast columns and tables to declared types.

Cast stored, received and returned columns only with these functions, because pyarrow has two faults:

- It cannot cast a column of structs with NOT NULL fields to its own type if a struct is NULL. It takes the hidden value
  below the NULL struct for a NULL field.
- It refuses to declare a nullable field NOT NULL, even if no value is NULL.

So structs, lists and maps are rebuilt around their cast children, and only plain types are cast by pyarrow.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from riffle_spark.columns import Column


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the types and nullability of ``schema``. Both have the same names in the same order.

    Raises ``pa.ArrowInvalid`` if a value does not fit, or if a column or field that is declared NOT NULL holds a NULL.
    """
    if table.schema.equals(schema):
        return table
    if table.column_names != schema.names:
        raise pa.ArrowInvalid(f"Expected the columns {schema.names}, got {table.column_names}.")
    return pa.table(cast_columns(table.columns, schema), schema=schema)


def cast_columns(columns: Sequence[Column], schema: pa.Schema) -> list[Column]:
    """Return the columns with the types of the schema's fields, by position. Raises as ``cast_table`` does."""
    cast = []
    for column, field in zip(columns, schema, strict=True):
        if not field.nullable and column.null_count:
            raise _null_error(field)
        cast.append(cast_column(column, field.type))
    return cast


def cast_column(column: Column, kind: pa.DataType) -> Column:
    """Return the column with this type. Raises ``pa.ArrowInvalid`` if a value does not fit."""
    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_cast_visible(chunk, kind) for chunk in column.chunks], kind)
    return _cast_visible(column, kind)


def replace_nulls_by_nan(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return the values with NaN in place of each NULL of a float that ``field`` declares NOT NULL, also inside
    structs, lists and maps.

    pandas does not distinguish NaN from NULL, so Arrow reads both as NULL.
    """
    kind = field.type
    if types.is_floating(kind) and not field.nullable:
        return values.fill_null(float("nan"))
    if not _has_required_floats(kind):
        return values
    if types.is_struct(kind):
        children = [replace_nulls_by_nan(values.field(place), inner) for place, inner in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    if types.is_map(kind):
        fields = [kind.key_field, kind.item_field]
        pairs = [replace_nulls_by_nan(values.keys, fields[0]), replace_nulls_by_nan(values.items, fields[1])]
        return _replace_values(values, kind, pa.StructArray.from_arrays(pairs, fields=fields))
    return _replace_values(values, kind, replace_nulls_by_nan(values.values, kind.value_field))


def _has_required_floats(kind: pa.DataType) -> bool:
    """Return whether a nested type has a float that is declared NOT NULL."""
    fields = [kind.field(place) for place in range(kind.num_fields)]
    return any(
        (types.is_floating(field.type) and not field.nullable) or _has_required_floats(field.type) for field in fields
    )


def _cast_visible(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast an array. Hidden elements, outside its slice or below NULL lists, need not fit."""
    try:
        return _cast_array(array, kind)
    except pa.ArrowInvalid:
        if not types.is_nested(array.type):
            raise
        return _cast_array(array.take(pa.array(range(len(array)), pa.int64())), kind)


def _cast_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array in another type. Raises ``pa.ArrowInvalid`` if a value does not fit."""
    if array.type == kind:
        return array
    if (
        types.is_struct(kind)
        and types.is_struct(array.type)
        and len(kind)
        and _field_names(array.type) == _field_names(kind)
    ):
        return _cast_struct(array, kind)
    if types.is_map(kind) and types.is_map(array.type):
        return _cast_map(array, kind)
    if _is_list(kind) and _is_list(array.type):
        return _cast_list(array, kind)
    return array.cast(kind)


def _field_names(kind: pa.StructType) -> list[str]:
    return [field.name for field in kind]


def _cast_struct(array: pa.StructArray, kind: pa.StructType) -> pa.Array:
    """Return structs in another type with the same field names. Raises ``pa.ArrowInvalid`` if a value does not fit."""
    children = []
    for place, field in enumerate(kind):
        child = array.field(place)
        if not field.nullable and child.null_count and pc.any(pc.and_(child.is_null(), array.is_valid())).as_py():
            raise _null_error(field)
        children.append(_cast_array(child, field.type))
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _cast_map(array: pa.MapArray, kind: pa.MapType) -> pa.Array:
    """Return maps in another type. Raises ``pa.ArrowInvalid`` if a value does not fit."""
    field = kind.item_field
    if not field.nullable and array.items.null_count:
        raise _null_error(field)
    pairs = [_cast_array(array.keys, kind.key_type), _cast_array(array.items, field.type)]
    return _replace_values(array, kind, pa.StructArray.from_arrays(pairs, fields=[kind.key_field, field]))


def _cast_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists in another type. Raises ``pa.ArrowInvalid`` if a value does not fit."""
    field = kind.value_field
    if not field.nullable and array.values.null_count:
        raise _null_error(field)
    values = _cast_array(array.values, field.type)
    if types.is_large_list(array.type) == types.is_large_list(kind):
        return _replace_values(array, kind, values)
    array_type, width = (pa.LargeListArray, pa.int64()) if types.is_large_list(kind) else (pa.ListArray, pa.int32())
    offsets = array.offsets.cast(width)
    if array.null_count:  # an offset that is NULL makes its list NULL
        offsets = pc.if_else(pa.concat_arrays([array.is_valid(), pa.array([True])]), offsets, pa.scalar(None, width))
    return array_type.from_arrays(offsets, values, type=kind)


def _is_list(kind: pa.DataType) -> bool:
    """Return whether a type is a list type with offsets."""
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _replace_values(array: pa.Array, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Return lists of type ``kind`` with the offsets and validity of ``array`` around other values."""
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, [values])


def _null_error(field: pa.Field) -> pa.ArrowInvalid:
    """Return the error for a NULL in a field that is declared NOT NULL."""
    return pa.ArrowInvalid(f"Field {field.name!r} is declared NOT NULL but holds a NULL.")
