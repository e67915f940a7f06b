"""Parts are read from the store in few requests."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.formats import part_codec
from riffle_spark.state.restore.reader import join_into_runs
from tests.kit.state.drawn_records import link
from tests.kit.state.members import Place, delta_table


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a member and an empty store."""
    return Place(tmp_path / "member")


def test_a_huge_part_length_is_refused_without_allocating_memory(place: Place) -> None:
    """A record with a huge part length is refused without allocating memory, for a local file and for an object."""
    (sealed,) = place.seal(0, {1: {"a": 1}})
    with pytest.raises(CorruptStateError, match="RIFFLE-0397"):
        place.reader.read_outputs("", [sealed._replace(start=1, length=1 << 62)])


def test_adjacent_parts_of_one_object_are_read_with_one_get(place: Place) -> None:
    """Adjacent parts of one object are read with one GET."""
    links = place.seal(0, {kg: {f"k{kg}": kg} for kg in range(8)})
    place.store.calls.clear()
    tables = place.reader.read_outputs("", links)
    assert len(tables) == 8
    assert [method for method, _ in place.store.calls] == ["get"]


def test_parts_far_apart_are_read_separately() -> None:
    """Parts that are far apart are read separately."""
    near, far = link(1, start=0, length=10), link(1, start=10_000_000, length=10)
    assert join_into_runs([near, link(1, start=20, length=5), far]) == [[near, link(1, start=20, length=5)], [far]]
    assert join_into_runs([]) == []


def test_the_error_for_a_missing_object_names_it(place: Place) -> None:
    """A listed object that the store lacks raises CorruptStateError with its name."""
    with pytest.raises(CorruptStateError, match="RIFFLE-0462") as caught:
        place.reader.read_outputs("", [link(3)])
    assert caught.value.where == link(3).object


def test_bytes_that_are_not_a_part_raise_corrupt_state_error() -> None:
    """Bytes that are not a part, or a part of a newer format, raise only CorruptStateError."""
    for data in (b"", b"nothing of ours", part_codec.encode(delta_table({"a": 1}))[:-40]):
        with pytest.raises(CorruptStateError) as caught:
            part_codec.decode(data, part_codec.checksum(data), "x").validate(full=True)
        assert caught.value.where == "x"
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("a", pa.int64())], metadata={b"riffle.format": b"9"})):
        pass
    newer = bytes(sink.getvalue())
    with pytest.raises(CorruptStateError, match="RIFFLE-0400"):
        part_codec.decode(newer, part_codec.checksum(newer), "x")
