"""Parts on the local disk are reused as snapshots without being encoded again."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from riffle_spark.state.copies import part_files
from riffle_spark.state.copies.disk import DamagedCopy
from riffle_spark.state.copies.part_files import PartFiles
from riffle_spark.state.copies.places import encryption_place
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.formats import part_codec
from riffle_spark.state.objects.encryption import Keys, parse_keys
from tests.kit.state.drawn_records import attempt
from tests.kit.state.members import SCHEMA, delta_table

KEY_GROUP = 3
FILES = {
    "a delta": f"fetched/7-{attempt(7)}.ab",
    "a merged delta": f"fetched/7-{attempt(7)}.ab.merged",
    "a merged part": f"stacks/{SCHEMA.store}/{KEY_GROUP}.ab.part",
}


def keys() -> Keys:
    """Return a key list with a single key."""
    return parse_keys(f"a = {base64.b64encode(bytes(32)).decode()}", "file:/keys", bytes)


def written(folder: Path, file: str, data: bytes, rows: int, own_keys: Keys | None) -> StackedPart:
    """Write a part to a file of a member's folder, encrypted for its place if there are keys."""
    if own_keys is not None:
        data = own_keys.new_encryption()(data, encryption_place(file, SCHEMA.store, KEY_GROUP))
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return StackedPart(file, 0, len(data), part_codec.checksum(data), rows, 1)


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_part_becomes_a_snapshot_unless_it_marks_deleted_keys(tmp_path: Path, file: str, is_encrypted: bool) -> None:
    """A part without a column of deletions is returned as its encoded bytes, and any other part as None."""
    own_keys = keys() if is_encrypted else None
    delta = part_codec.encode(delta_table({"a": 1, "b": None}))
    snapshot = part_codec.encode(delta_table({"a": 1}).drop_columns([part_codec.DELETED]))
    for folder, data in (tmp_path / "delta", delta), (tmp_path / "snapshot", snapshot):
        part = written(folder, file, data, 2, own_keys)
        read = PartFiles(folder, own_keys).read_as_snapshot(part, SCHEMA.store, KEY_GROUP)
        assert (read and bytes(read)) == (data if data is snapshot else None)


def test_a_part_encrypted_for_another_key_group_raises_damaged_copy(tmp_path: Path) -> None:
    """A part that was encrypted for another key-group raises DamagedCopy."""
    own_keys = keys()
    part = written(tmp_path, FILES["a delta"], part_codec.encode(delta_table({"a": 1})), 1, own_keys)
    with pytest.raises(DamagedCopy):
        PartFiles(tmp_path, own_keys).read_as_snapshot(part, SCHEMA.store, KEY_GROUP + 1)


def test_the_least_recently_opened_files_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If more files are open than allowed, the least recently opened ones are closed, and read again when needed."""
    monkeypatch.setattr(part_files, "_FILES_MAX", 2)
    data = part_codec.encode(delta_table({"a": 1}).drop_columns([part_codec.DELETED]))
    parts = [written(tmp_path, f"fetched/{n}-{attempt(n)}.ab", data, 1, None) for n in range(4)]
    for part in (*parts, parts[0]):
        assert PartFiles(tmp_path).read_as_snapshot(part, SCHEMA.store, KEY_GROUP) is not None
    names = [f"{tmp_path}/{part.file}" for part in parts]
    assert [name for name in names if name in part_files._files] == [names[0], names[3]]
