"""Reading parts: from the member's own sealed file if it is intact, else from the store, in few requests."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.formats import part_codec
from riffle_spark.state.restore.reader import joined
from tests.kit.state.drawn_records import link
from tests.kit.state.members import Place, delta_table


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A member and an empty store."""
    return Place(tmp_path / "member")


def test_what_a_member_sealed_itself_costs_no_request(place: Place) -> None:
    """The owner folds its own file."""
    links = place.seal(0, {1: {"a": 1}, 2: {"b": 2}}, kept=True)
    place.store.calls.clear()
    tables = place.reader.outputs("", links)
    assert [tables[each].to_pylist()[0]["k"] for each in links] == ["a", "b"]
    assert place.store.calls == []
    assert place.reader.totals.local_parts == 2


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "gone"])
def test_a_damaged_sealed_file_is_read_from_the_store_instead(place: Place, damage: str) -> None:
    """Nothing on the local disk is believed without its checksum."""
    links = place.seal(0, {1: {"a": 1}, 2: {"b": 2}}, kept=True)
    file = next(place.folder.sealed.iterdir())
    data = file.read_bytes()
    middle = len(data) // 2
    changed = {
        "truncated": data[:middle],
        "flipped": data[:middle] + b"\x00\x01\x02" + data[middle + 3 :],
        "emptied": b"",
    }
    file.unlink() if damage == "gone" else file.write_bytes(changed[damage])
    tables = place.reader.outputs("", links)
    assert [tables[each].to_pylist()[0]["v"] for each in links] == [1, 2]
    assert place.reader.totals.fetched_parts >= 1


def test_a_part_of_any_length_is_not_made_room_for(place: Place) -> None:
    """A record says how long a part is: neither the member's own file nor the store's object is that long."""
    (sealed,) = place.seal(0, {1: {"a": 1}}, kept=True)
    with pytest.raises(CorruptStateError, match="RIFFLE-0397"):
        place.reader.outputs("", [sealed._replace(start=1, length=1 << 62)])


def test_adjacent_parts_of_one_object_are_one_get(place: Place) -> None:
    """Ranges that lie side by side are read together."""
    links = place.seal(0, {kg: {f"k{kg}": kg} for kg in range(8)})
    place.store.calls.clear()
    tables = place.reader.outputs("", links)
    assert len(tables) == 8
    assert [method for method, _ in place.store.calls] == ["get"]


def test_parts_far_apart_are_read_apart() -> None:
    """What lies between is not read for nothing."""
    near, far = link(1, start=0, length=10), link(1, start=10_000_000, length=10)
    assert joined([near, link(1, start=20, length=5), far]) == [[near, link(1, start=20, length=5)], [far]]
    assert joined([]) == []


def test_a_missing_object_is_named(place: Place) -> None:
    """What the log lists and the store lacks is damage, with the remedy."""
    with pytest.raises(CorruptStateError, match="RIFFLE-0462") as caught:
        place.reader.outputs("", [link(3)])
    assert caught.value.where == link(3).object
    assert "rollback" in caught.value.remedy


def test_a_part_is_read_as_it_was_sealed() -> None:
    """Columns, nulls and deleted marks survive; equal tables have equal bytes."""
    table = delta_table({"a": 1, "b": None, "ü": -5})
    data = part_codec.encode(table)
    assert part_codec.decode(data, part_codec.checksum(data), "x").equals(table.drop_columns(["__hash"]))
    assert part_codec.open_part(data, "x").equals(table)
    assert part_codec.encode(table) == data


def test_bytes_that_are_no_part_are_told() -> None:
    """A right checksum over wrong bytes, or a part of another format, raises our error alone."""
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
