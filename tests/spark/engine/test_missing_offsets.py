"""Empty list and map columns that the JVM writes without an offsets buffer become readable for pyarrow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from riffle_spark.spark.engine.task import with_offsets

MAP = pa.map_(pa.string(), pa.int32())
KINDS = {
    "map": MAP, "list of maps": pa.list_(MAP), "list of lists": pa.list_(pa.list_(pa.string())),
    "struct": pa.struct([("m", MAP), ("n", pa.int32())]),
    "list of structs": pa.list_(pa.struct([("a", pa.int32()), ("l", pa.list_(pa.string()))])),
}  # fmt: skip


def without_offsets(kind: pa.DataType) -> pa.Array:
    """Return an empty array without offsets at any depth."""
    if pa.types.is_map(kind):
        below = pa.struct([kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, 0, [None, None], children=[without_offsets(below)])
    if pa.types.is_list(kind):
        return pa.Array.from_buffers(kind, 0, [None, None], children=[without_offsets(kind.value_type)])
    if pa.types.is_struct(kind):
        children = [without_offsets(kind.field(at).type) for at in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, 0, [None], children=children)
    return pa.array([], kind)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_columns_without_elements_get_offsets(kind: pa.DataType) -> None:
    """An empty column and a column of empty lists get offsets. Without them pyarrow's ``nbytes`` crashes the
    process.
    """
    mended = with_offsets(pa.table({"x": without_offsets(kind)}))
    assert mended.equals(pa.schema([("x", kind)]).empty_table())
    assert mended.nbytes == 0
    twice = [None, pa.py_buffer(bytes(12))]
    lists = pa.Array.from_buffers(pa.list_(kind), 2, twice, children=[without_offsets(kind)])
    mended = with_offsets(pa.table({"x": lists}))
    assert mended.to_pylist() == [{"x": []}, {"x": []}]
    assert mended.nbytes == 8, "the size of two offsets"


def test_other_rows_stay_equal() -> None:
    """Other rows stay equal, with NULL and empty values, in slices and in concatenated tables."""
    kind = pa.struct([("a", MAP), ("b", KINDS["list of lists"])])
    some: list[object] = [
        {"a": [("k", None)], "b": [[None], None, []]}, None, {"a": None, "b": []}, {"a": [], "b": None},
    ]  # fmt: skip
    rows = pa.table({"x": pa.array(some, kind), "l": [[1], None, [2, 3], []], "n": [1, None, 2, 3]})
    for part in (rows, rows.slice(1), rows.slice(2, 1), pa.concat_tables([rows, rows.slice(1)])):
        mended = with_offsets(part)
        mended.validate(full=True)
        assert mended.equals(part)
