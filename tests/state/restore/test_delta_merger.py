"""A merged delta of real links leads every copy of the history to the newest state."""

from __future__ import annotations

import random
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.copies import part_files
from riffle_spark.state.copies.folder import Folder, claim_folder
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.blocks import checksum_of_block, read_index
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Block, Entry, Link, Replacement
from riffle_spark.state.restore.delta_merger import DeltaMerger
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.stack_parts import StackParts
from tests.kit.state.drawn_records import attempt
from tests.kit.state.faulty_store import Fault
from tests.kit.state.members import SCHEMA, Place, rows_of_copy

KEYS = "abcdefgh"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a store and the member that merges."""
    return Place(tmp_path / "merging")


def drawn_changes(chance: random.Random) -> dict[int, dict[str, int | None]]:
    """Draw the changes of one delta for some key-groups and keys, including deletions."""
    key_groups = chance.sample(range(4), chance.randint(1, 4))
    return {
        key_group: {key: chance.choice([None, *range(9)]) for key in chance.sample(KEYS, chance.randint(1, 4))}
        for key_group in key_groups
    }


def merge(place: Place, entries: dict[int, Entry], number: int = 500, level: int = 1) -> dict[int, Replacement]:
    """Merge the links of cut entries, store the result, and list it."""
    reader = Reader(place.store)
    merger = DeltaMerger(place.folder, SCHEMA, reader, 1, place.keeper())
    merged = merger.merge(entries, attempt(number), level)
    merged.put(place.store, place.folder)
    for key_group, replacement in merged.replacements.items():
        listed = place.entries[key_group].replace_by_merged(replacement)
        assert listed is not None
        place.entries[key_group] = listed
    return dict(merged.replacements)


def last_links(entry: Entry, count: int) -> Entry:
    """Return the entry cut before its last ``count`` links."""
    return Entry(
        None, entry.chain[-count:], cut=entry.chain[-count - 1].head if count < len(entry.chain) else entry.base
    )


def held_by(folder: Folder, place: Place, entries: dict[int, Entry]) -> dict[int, dict[str, int]]:
    """Advance the copies in a folder to the entries, and return their contents."""
    copies, _ = place.keeper(folder=folder).advance(entries)
    return {key_group: rows_of_copy(copy) for key_group, copy in copies.items()}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sample(step=4)
def test_copies_at_any_version_reach_the_newest_state_after_merges(place: Place, tmp_path: Path, seed: int) -> None:
    """Copies that stayed at each version, and new ones, reach the newest state after random merges."""
    chance = random.Random(seed)
    folders: list[Folder] = []
    for version in range(14):
        place.seal(version, drawn_changes(chance), kept=chance.random() < 0.5)
        folder = claim_folder(tmp_path / f"copy-{version}", "app/9", ())
        assert held_by(folder, place, place.entries).items() <= place.wanted.items()
        folders.append(folder)
        long = {kg: entry for kg, entry in place.entries.items() if len(entry.chain) > 2}
        if long and chance.random() < 0.4:
            merge(place, {kg: last_links(entry, chance.randint(1, 3)) for kg, entry in long.items()}, 500 + version)
        key_group = chance.choice(list(place.entries))
        if chance.random() < 0.2 and place.entries[key_group].chain:
            place.snapshot(key_group)
    for folder in (*folders, claim_folder(tmp_path / "new", "app/9", ())):
        assert held_by(folder, place, place.entries) == place.wanted


def test_a_member_merges_its_own_deltas_without_a_get(place: Place) -> None:
    """A member merges deltas and merged deltas that it sealed itself without a GET."""
    for version in range(4):
        place.seal(version, {0: {"a": version, "b": 1}, 1: {"c": version}}, kept=True)
    place.bring()
    place.store.calls.clear()
    merge(place, {kg: last_links(entry, 3) for kg, entry in place.entries.items()})
    place.seal(4, {0: {"b": None}}, kept=True)
    merge(place, {0: last_links(place.entries[0], 2)}, 501, level=2)
    assert not [call for call in place.store.calls if call[0] == "get"]
    assert [link.level for link in place.entries[0].chain] == [0, 2]
    place.bring()


def test_a_merged_part_keeps_deletions(place: Place) -> None:
    """A merged part keeps deletions, because a copy below it may have the key."""
    place.seal(0, {0: {"a": 1, "b": 2}})
    place.bring()
    place.seal(1, {0: {"a": None}})
    place.seal(2, {0: {"b": 3}})
    (replacement,) = merge(place, {0: last_links(place.entries[0], 2)}).values()
    data = place.store.get(replacement.link.object)
    assert data is not None
    table = part_codec.open_block(read_index(pa.py_buffer(data))[0], "")
    assert sorted(zip(table["k"].to_pylist(), table[part_codec.DELETED].to_pylist(), strict=True)) == [
        ("a", True),
        ("b", False),
    ]
    place.bring()


def test_the_copies_of_the_merging_member_need_no_merged_delta(place: Place) -> None:
    """The merging member advances its copies with the merged links, so that the next batch fetches nothing."""
    place.seal(0, {0: {"a": 1}, 1: {"b": 1}})
    place.bring()
    for version in (1, 2, 3):
        place.seal(version, {0: {"a": version}, 1: {"b": version}}, kept=True)
    merge(place, {kg: last_links(entry, 3) for kg, entry in place.entries.items()})
    assert [place.local(kg) for kg in (0, 1)] == [(place.entries[kg].head, place.wanted[kg]) for kg in (0, 1)]
    place.seal(4, {0: {"c": 4}}, kept=True)
    place.store.calls.clear()
    place.bring()
    assert not [call for call in place.store.calls if call[0] == "get"]


def test_a_damaged_local_file_is_not_merged(place: Place) -> None:
    """If a local delta is damaged, the merge uses the part from the store."""
    place.seal(0, {0: {"a": 1}}, kept=True)
    place.seal(1, {0: {"a": 2}}, kept=True)
    for path in place.folder.sealed.iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    merge(place, {0: last_links(place.entries[0], 2)})
    place.bring()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_damaged_local_block_is_not_merged(place: Place, share: float) -> None:
    """If a local block is damaged, the merge detects it while reading and uses all parts from the store."""
    for version in range(4):
        place.seal(version, {0: {f"k{n}": version for n in range(50)}, 1: {"c": version}}, kept=True)
    place.bring()
    merge(place, {kg: last_links(entry, 3) for kg, entry in place.entries.items()})
    (path,) = place.folder.sealed.glob("*.block")
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 1
    path.write_bytes(data)
    place.seal(4, {0: {"k0": 4}})
    replacements = merge(place, {0: last_links(place.entries[0], 2)}, 501, level=2)
    assert [replacement.link.rows for replacement in replacements.values()] == [50]
    place.bring()


@pytest.mark.parametrize("is_one_value", [False, True])
def test_a_local_block_damaged_after_it_was_found_is_not_merged(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_one_value: bool
) -> None:
    """If a local block is damaged after it was found, a checksum detects it, and all parts come from the store."""
    for version in range(4):
        place.seal(version, {0: {f"k{n}": version for n in range(50)}}, kept=True)
    place.bring()
    merge(place, {0: last_links(place.entries[0], 3)})
    (path,) = place.folder.sealed.glob("*.block")
    place.seal(4, {0: {"k0": 4}})
    find = StackParts.find_sealed_parts
    damaged: list[bytes] = []

    def find_and_damage(parts: StackParts, links: Collection[Link]) -> dict[Link, StackedPart]:
        found_parts = find(parts, links)
        if found_parts and not damaged:
            damaged.append(path.read_bytes())
            value_start = damaged[0].index((3).to_bytes(8, "little") * 50)
            changed = range(value_start, value_start + 1) if is_one_value else range(len(damaged[0]))
            with path.open("r+b") as file:
                file.write(bytes(byte ^ (place in changed) for place, byte in enumerate(damaged[0])))
        return found_parts

    monkeypatch.setattr(part_files, "_MAPPED_FROM_BYTES", 0)  # private: maps small files, too
    monkeypatch.setattr(StackParts, "find_sealed_parts", find_and_damage)
    (replacement,) = merge(place, {0: last_links(place.entries[0], 2)}, 501, level=2).values()
    monkeypatch.undo()
    assert damaged
    assert replacement.link.rows == 50
    path.unlink()
    place.bring()
    assert held_by(claim_folder(tmp_path / "new", "app/9", ()), place, place.entries) == place.wanted


def test_a_damaged_object_is_refused_and_nothing_is_put(place: Place) -> None:
    """A merge of a damaged object is refused and stores nothing, because the merged checksum would hide the damage."""
    links = [place.seal(version, {0: {"a": version}})[0] for version in (0, 1)]
    place.store.script(Fault("flipped", "get", links[0].object, times=None))
    names = place.store.list("")
    with pytest.raises(CorruptStateError):
        merge(place, {0: last_links(place.entries[0], 2)})
    assert place.store.list("") == names


def test_a_merged_object_of_large_parts_has_one_part_per_key_group(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merged object of large parts has one part per key-group, one after the other, and the record has its size."""
    monkeypatch.setattr(part_codec, "_HEADERS_MAX", float("inf"))  # private: stores these small rows as parts
    for version in (0, 1):
        place.seal(version, {kg: {"a": version} for kg in range(4)})
    replacements = merge(place, {kg: last_links(entry, 2) for kg, entry in place.entries.items()})
    links = [replacement.link for replacement in replacements.values()]
    (name,) = {link.object for link in links}
    data = place.store.get(name)
    assert data is not None
    parsed = paths.parse_object_name(name)
    assert parsed == ("merged", 1, 1)
    assert {link.merged.size for link in links if link.merged} == {len(data)} == {sum(link.length for link in links)}
    assert [link.start for link in links] == [sum(earlier.length for earlier in links[:n]) for n in range(4)]


def test_a_merged_object_of_small_parts_is_a_block(place: Place) -> None:
    """A merged object of small parts is a block, whose links share its checksum and its size."""
    for version in (0, 1):
        place.seal(version, {kg: {"a": version} for kg in range(4)})
    replacements = merge(place, {kg: last_links(entry, 2) for kg, entry in place.entries.items()})
    links = {key_group: replacement.link for key_group, replacement in replacements.items()}
    data = place.store.get(links[0].object)
    assert data is not None
    assert {link.block for link in links.values()} == {Block(len(data), 4)}
    assert {(link.checksum, link.length) for link in links.values()} == {(checksum_of_block(data)[0], len(data) // 4)}
    assert {key_group: link.start for key_group, link in links.items()} == {kg: kg for kg in range(4)}
    place.bring()
