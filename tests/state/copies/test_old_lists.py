"""Lists that earlier versions wrote, one file per key-group, are read and then become a journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from riffle_spark.state.copies.abandoned import remove_leftovers
from riffle_spark.state.copies.old_lists import decode_list
from riffle_spark.state.copies.stack import Stack
from riffle_spark.state.copies.stacks import Stacks
from riffle_spark.state.log.manifest import Head
from tests.kit.state.old_lists import list_bytes, write_list
from tests.kit.state.stack_changes import head_of, journals_in, own_part, part, read_anew, stack_of

ADDRESS = ("totals", 7)


def lists_in(folder: Path) -> list[Path]:
    """Return the list files of the store ``totals``."""
    return sorted((folder / "stacks" / "totals").glob("*.stack"))


@pytest.mark.parametrize(
    "head",
    [
        Head(3, "1-../x"), Head(3, ""), Head(3, 5), Head("3", head_of(3).attempt),  # type: ignore[arg-type]
        Head(1 << 63, head_of(3).attempt),
    ],
)  # fmt: skip
def test_a_list_with_an_impossible_head_is_not_used(head: Head) -> None:
    """Whatever its checksum is: its attempt tells its epoch."""
    assert decode_list(list_bytes(Stack(head), ADDRESS), ADDRESS) is None


def test_only_the_bytes_of_a_list_of_this_key_group_are_one() -> None:
    """Not a list that was cut or changed anywhere, and not one of another key-group."""
    data = list_bytes(stack_of(3, 1, 2), ADDRESS)
    assert decode_list(data, ADDRESS) == stack_of(3, 1, 2)
    assert decode_list(data, ("totals", 8)) is None
    assert decode_list(data, ("other", 7)) is None
    for place in range(len(data)):
        assert decode_list(data[:place], ADDRESS) is None
        assert decode_list(bytes([*data[:place], data[place] ^ 1, *data[place + 1 :]]), ADDRESS) is None


@pytest.mark.parametrize(
    "name", ["0007.x-0a1b2c3d.stack", "0007..stack", "7" * 200 + ".0000000001-0a1b2c3d.stack", "٣.0000000001-aa.stack"]
)
def test_files_with_other_names_are_not_lists(tmp_path: Path, name: str) -> None:
    """They are ignored, and they stay."""
    (tmp_path / "stacks" / "totals").mkdir(parents=True)
    (tmp_path / "stacks" / "totals" / name).write_bytes(list_bytes(stack_of(3, 1), ADDRESS))
    stacks = Stacks(tmp_path, "totals")
    assert stacks.key_groups() == []
    assert stacks.replace(7, None, stack_of(3, 1))
    assert read_anew(tmp_path) == {7: stack_of(3, 1)}
    assert (tmp_path / "stacks" / "totals" / name).exists()


def test_the_first_change_writes_all_lists_into_a_journal(tmp_path: Path) -> None:
    """The readable list with the highest number counts. No list is left for an older version to find."""
    write_list(tmp_path, "totals", 7, stack_of(1, 1))
    write_list(tmp_path, "totals", 7, stack_of(2, 1, 2), 1)
    torn = write_list(tmp_path, "totals", 7, stack_of(3, 1, 2, 3), 2)
    torn.write_bytes(torn.read_bytes()[:-3])
    write_list(tmp_path, "totals", 8, stack_of(5, 5))
    stacks = Stacks(tmp_path, "totals")
    assert (stacks.read(7), stacks.key_groups()) == (stack_of(2, 1, 2), [7, 8])
    assert len(lists_in(tmp_path)) == 4, "reading changes nothing"
    assert not stacks.replace(7, stack_of(1, 1), stack_of(4, 4))
    assert stacks.replace(7, stack_of(2, 1, 2), stack_of(4, 4))
    assert (lists_in(tmp_path), len(journals_in(tmp_path))) == ([], 1)
    assert read_anew(tmp_path) == {7: stack_of(4, 4), 8: stack_of(5, 5)}


def test_a_crash_in_the_conversion_leaves_the_lists_or_the_journal(tmp_path: Path) -> None:
    """While the journal is torn at any byte, the lists count. Once it is whole, it counts, and the lists go."""
    write_list(tmp_path, "totals", 7, stack_of(2, 1, 2))
    write_list(tmp_path, "totals", 8, stack_of(5, 5))
    lists = {path: path.read_bytes() for path in lists_in(tmp_path)}
    assert Stacks(tmp_path, "totals").replace(7, stack_of(2, 1, 2), stack_of(3, 3))
    (journal,) = journals_in(tmp_path)
    whole = journal.read_bytes()
    for path, data in lists.items():
        path.write_bytes(data)
    for size in range(len(whole)):
        journal.write_bytes(whole[:size])
        assert read_anew(tmp_path) == {7: stack_of(2, 1, 2), 8: stack_of(5, 5)}, size
    journal.write_bytes(whole)
    assert read_anew(tmp_path) == {7: stack_of(3, 3), 8: stack_of(5, 5)}
    remove_leftovers(tmp_path)
    assert lists_in(tmp_path) == []
    assert read_anew(tmp_path) == {7: stack_of(3, 3), 8: stack_of(5, 5)}


def test_a_new_owner_keeps_the_parts_in_lists_that_are_not_converted(tmp_path: Path) -> None:
    """It removes only parts that no list and no journal names."""
    stacks = Stacks(tmp_path, "totals")
    listed, unlisted = own_part(stacks, 7), own_part(stacks, 7)
    write_list(tmp_path, "totals", 7, Stack(head_of(1), (part(1), listed)))
    remove_leftovers(tmp_path)
    assert (tmp_path / listed.file).exists()
    assert not (tmp_path / unlisted.file).exists()
    assert read_anew(tmp_path) == {7: Stack(head_of(1), (part(1), listed))}
