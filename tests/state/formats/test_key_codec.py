"""The stored key: both ways, in order, and never fooled by damaged bytes."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given

from riffle_spark.errors import ConfigError
from riffle_spark.state.formats.key_codec import encode_keys
from tests.kit.state.drawn_tables import keys
from tests.kit.state.key_ranks import ranks


@given(keys())
def test_stored_keys_compare_as_the_keys_do(columns: list[pa.Array]) -> None:
    """Stored keys are less, equal and greater exactly where the keys are, column by column."""
    stored, wanted = encode_keys(columns).to_pylist(), ranks(columns)
    for left in range(len(stored)):
        for right in range(left):
            assert (stored[left] < stored[right]) == (wanted[left] < wanted[right])
            assert (stored[left] == stored[right]) == (wanted[left] == wanted[right])


@given(keys())
def test_no_stored_key_begins_another(columns: list[pa.Array]) -> None:
    """No stored key is the beginning of a different one, so a scan by whole key finds that key only."""
    stored = sorted(set(encode_keys(columns).to_pylist()))
    assert not any(longer.startswith(key) for key, longer in itertools.pairwise(stored))


def test_stored_keys_are_the_documented_bytes() -> None:
    """The bytes of the document are the bytes written."""
    columns = [pa.array([1, -1, None]), pa.array(["a\x00b", "", None]), pa.array([1.5, -1.5, None])]
    assert [key.hex(" ") for key in encode_keys(columns).to_pylist()] == [
        "01 80 00 00 00 00 00 00 01 01 61 00 ff 62 00 00 01 bf f8 00 00 00 00 00 00",
        "01 7f ff ff ff ff ff ff ff 01 00 00 01 40 07 ff ff ff ff ff ff",
        "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00",
    ]


def test_keys_without_columns_or_of_wrong_types_are_refused() -> None:
    """A key needs a column, and one that Spark can group by."""
    with pytest.raises(ConfigError):
        encode_keys([])
    with pytest.raises(ConfigError, match="RIFFLE-0119"):
        encode_keys([pa.array([[1]])])
