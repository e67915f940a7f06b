"""Types that state can store, and types that a stored column can be read as."""

from __future__ import annotations

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.state.formats.arrow_schemas import can_become, check_storable


@pytest.mark.parametrize(
    ("declared", "is_readable"),
    [
        (pa.decimal128(5, 2), True),
        (pa.decimal128(7, 4), True),
        (pa.decimal128(9, 2), True),
        (pa.decimal128(5, 4), False),
        (pa.decimal128(6, 4), False),
        (pa.decimal128(9, 1), False),
    ],
    ids=str,
)
def test_a_stored_decimal_keeps_its_precision_and_scale(declared: pa.DataType, is_readable: bool) -> None:
    """A stored decimal(5, 2) has three digits before the point and two after it."""
    stored = pa.schema([("d", pa.decimal128(5, 2))])
    assert can_become(stored, pa.schema([("d", declared)])) == is_readable


_NUMBER = pa.field("x", pa.int64())
_REQUIRED = pa.field("x", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("nullable", "required"),
    [
        (pa.list_(_NUMBER), pa.list_(_REQUIRED)),
        (pa.struct([_NUMBER]), pa.struct([_REQUIRED])),
        (pa.map_(pa.string(), _NUMBER), pa.map_(pa.string(), _REQUIRED)),
        (pa.list_(pa.struct([_NUMBER])), pa.list_(pa.struct([_REQUIRED]))),
    ],
    ids=str,
)
def test_a_nullable_part_of_a_stored_column_stays_nullable(nullable: pa.DataType, required: pa.DataType) -> None:
    """A part that may be null cannot be declared NOT NULL, because keys that no batch reads may hold NULL there."""
    assert not can_become(pa.schema([("v", nullable)]), pa.schema([("v", required)]))
    assert can_become(pa.schema([("v", required)]), pa.schema([("v", nullable)]))


class Tagged(pa.ExtensionType):
    """An extension type that is stored as a list of another type."""

    def __init__(self, element: pa.DataType) -> None:
        super().__init__(pa.list_(element), "tests.tagged")

    def __arrow_ext_serialize__(self) -> bytes:
        """Return no metadata."""
        return b""


@pytest.mark.parametrize(
    ("kind", "id"),
    [
        (pa.string_view(), "RIFFLE-0392"),
        (pa.dictionary(pa.int32(), pa.string()), "RIFFLE-0392"),
        (pa.struct([("l", pa.list_(pa.string_view()))]), "RIFFLE-0392"),
        (Tagged(pa.string_view()), "RIFFLE-0392"),
        (pa.list_(pa.list_(pa.int64(), 2), 3), "RIFFLE-0393"),
    ],
    ids=str,
)
def test_a_type_that_state_cannot_store_is_refused_at_any_depth(kind: pa.DataType, id: str) -> None:
    """Views, dictionaries and fixed-size lists of fixed-size lists are refused, also inside other types."""
    with pytest.raises(ConfigError, match="the column n") as refused:
        check_storable(kind, "the column n")
    assert refused.value.id == id
    assert refused.value.remedy


def test_dictionaries_and_extensions_of_storable_types_can_be_stored() -> None:
    """An extension type can be stored as its storage type, and a dictionary where dictionaries are allowed."""
    check_storable(Tagged(pa.int64()))
    check_storable(pa.list_(pa.list_(pa.int64()), 2))
    check_storable(pa.dictionary(pa.int32(), pa.string()), with_dictionaries=True)
    with pytest.raises(ConfigError, match="RIFFLE-0392"):
        check_storable(pa.dictionary(pa.int32(), pa.string_view()), with_dictionaries=True)
