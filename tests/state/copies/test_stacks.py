"""Any number of processes replace stacks one after the other, and see each change completely or not at all."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from multiprocessing import Queue, get_context
from pathlib import Path

import pytest

from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.copies.stacks import Stacks
from tests.kit.state.stack_changes import (
    another_process,
    head_of,
    journals_in,
    own_part,
    part,
    read_anew,
    stack_of,
)


def test_a_new_stack_replaces_the_former_one(tmp_path: Path) -> None:
    """Replacing a stack deletes the files that only the former stack used."""
    stacks = Stacks(tmp_path, "totals")
    assert stacks.read(7) is None
    own = own_part(stacks, 7)
    assert stacks.replace(7, None, Stack(head_of(1), (own,)))
    assert stacks.replace(7, Stack(head_of(1), (own,)), Stack(head_of(2), (own, part(2))))
    assert (tmp_path / own.file).exists()
    assert stacks.replace(7, Stack(head_of(2), (own, part(2))), stack_of(3, 3))
    assert [path.suffix for path in tmp_path.glob("stacks/totals/*")] == [".journal"]
    assert read_anew(tmp_path) == {7: stack_of(3, 3)}
    assert stacks.key_groups() == [7]


def test_many_stacks_are_replaced_with_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One write replaces all stacks that are as expected, and the call returns their key-groups."""
    stacks = Stacks(tmp_path, "totals")
    assert stacks.replace_many({n: (None, stack_of(1, n)) for n in range(500)}) == set(range(500))
    with another_process():
        assert Stacks(tmp_path, "totals").replace(3, stack_of(1, 3), stack_of(2, 3, 9))
    writes: list[int] = []
    write = os.write

    def counted(file: int, data: bytes) -> int:
        writes.append(len(data))
        return write(file, data)

    monkeypatch.setattr(os, "write", counted)
    replacements: dict[int, tuple[Stack | None, Stack]] = {n: (stack_of(1, n), stack_of(2, n, 0)) for n in range(500)}
    replacements[500] = (stack_of(1, 5), stack_of(2, 5))
    assert stacks.replace_many(replacements) == set(range(500)) - {3}
    assert len(writes) == 1
    assert stacks.read(3) == read_anew(tmp_path)[3] == stack_of(2, 3, 9)
    assert stacks.read(4) == read_anew(tmp_path)[4] == stack_of(2, 4, 0)
    assert stacks.read(500) is None


def test_a_process_whose_stack_was_replaced_writes_nothing(tmp_path: Path) -> None:
    """A process whose stack was replaced by another process writes nothing."""
    stacks = Stacks(tmp_path, "totals")
    assert stacks.replace(7, None, stack_of(1, 1))
    with another_process():
        assert Stacks(tmp_path, "totals").replace(7, stack_of(1, 1), stack_of(2, 1, 2))
    assert stacks.read(7) == stack_of(1, 1)
    size = journals_in(tmp_path)[0].stat().st_size
    assert not stacks.replace(7, stack_of(1, 1), stack_of(2, 1, 9))
    assert stacks.read(7) == stack_of(2, 1, 2)
    assert not stacks.replace(7, None, stack_of(3, 3))
    assert journals_in(tmp_path)[0].stat().st_size == size


def test_files_are_kept_while_another_key_group_uses_them(tmp_path: Path) -> None:
    """A file that key-groups share is deleted with the last stack that uses it."""
    stacks = Stacks(tmp_path, "totals")
    shared = own_part(stacks, 7)
    second = shared._replace(start=0, checksum=6)
    stacks_by_number: dict[int, tuple[Stack | None, Stack]] = {
        7: (None, Stack(head_of(1), (shared,))), 8: (None, Stack(head_of(1), (second,)))
    }  # fmt: skip
    assert stacks.replace_many(stacks_by_number) == {7, 8}
    assert stacks.replace(7, Stack(head_of(1), (shared,)), stack_of(2, 1))
    assert (tmp_path / shared.file).exists()
    with another_process():
        Stacks(tmp_path, "totals").drop(8)
    assert not (tmp_path / shared.file).exists()


def test_a_change_counts_even_if_the_old_file_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change counts even if the old file cannot be deleted, and the parts of the new stack stay."""
    stacks = Stacks(tmp_path, "totals")
    former = Stack(head_of(1), (own_part(stacks, 7),))
    assert stacks.replace(7, None, former)
    after = Stack(head_of(2), (own_part(stacks, 7),))

    def refuse(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with monkeypatch.context() as refused:
        refused.setattr(os, "unlink", refuse)
        assert stacks.replace(7, former, after)
    assert read_anew(tmp_path) == {7: after}
    assert (tmp_path / after.parts[0].file).exists()


def rows_of(folder: Path, stack: Stack) -> list[int]:
    """Return the numbers in a stack's files, sorted. Raises ``FileNotFoundError`` if a file is gone."""
    return sorted(int(row) for used in stack.parts for row in (folder / used.file).read_text().split())


def add(folder: Path, numbers: range, answers: Queue[list[int]]) -> None:
    """Put a part for each number on a copy, merge the parts now and then, and report the added numbers."""
    added = []
    stacks = Stacks(folder, "totals")
    for number in numbers:
        is_added = False
        while not is_added:
            now = stacks.read(7)
            assert now is not None
            merges = len(now.parts) > 8
            with suppress(FileNotFoundError):  # another process has merged the files
                rows = [*(rows_of(folder, now) if merges else []), number]
                file = stacks.new_file(7)
                file.write_text(" ".join(map(str, rows)))
                new_part = StackedPart(stacks.relative_name(file), 0, file.stat().st_size, 0, len(rows), 1)
                bottom = () if merges else now.parts
                is_added = stacks.replace(7, now, Stack(head_of(now.head.version + 1), (*bottom, new_part)))
            stacks.refresh()
        added.append(number)
    answers.put(added)


@pytest.mark.parametrize("count", [2, 3])
def test_concurrent_processes_lose_no_part_of_each_other(tmp_path: Path, count: int) -> None:
    """Every part that a process added successfully is in the final copy with its file."""
    assert Stacks(tmp_path, "totals").replace(7, None, Stack(head_of(0)))
    context = get_context("fork")
    answers: Queue[list[int]] = context.Queue()
    ranges = [range(1000 * n, 1000 * n + 100) for n in range(count)]
    processes = [context.Process(target=add, args=(tmp_path, numbers, answers)) for numbers in ranges]
    for process in processes:
        process.start()
    expected = sorted(number for _ in processes for number in answers.get(timeout=120))
    for process in processes:
        process.join()
    assert rows_of(tmp_path, read_anew(tmp_path)[7]) == expected
    assert [process.exitcode for process in processes] == [0] * count
    assert len(journals_in(tmp_path)) == 1


def test_a_drop_removes_a_stack_that_another_process_wrote(tmp_path: Path) -> None:
    """A drop removes the stack that another process wrote meanwhile, and the last drop removes the journal."""
    stacks = Stacks(tmp_path, "totals")
    assert stacks.replace(7, None, stack_of(1, 1))
    with another_process():
        assert Stacks(tmp_path, "totals").replace(7, stack_of(1, 1), Stack(head_of(2), (own_part(stacks, 7),)))
    stacks.drop(7, 8)
    assert list(tmp_path.glob("stacks/totals/*")) == []
    assert stacks.read(7) is None
    assert stacks.replace(7, None, stack_of(1, 1))
    assert read_anew(tmp_path) == {7: stack_of(1, 1)}


def test_merged_parts_are_replaced_below_newer_parts(tmp_path: Path) -> None:
    """A merge replaces the merged parts below newer ones and keeps the head, or does nothing if the parts are gone."""
    slow, quick = Stacks(tmp_path, "totals"), Stacks(tmp_path, "totals")
    assert quick.replace(7, None, stack_of(2, 1, 2))
    assert slow.read(7) == stack_of(2, 1, 2)
    assert quick.replace(7, stack_of(2, 1, 2), stack_of(3, 1, 2, 3))
    assert slow.replace_parts(7, (part(1), part(2)), part(12)) == stack_of(3, 12, 3)
    quick.refresh()
    assert quick.read(7) == stack_of(3, 12, 3)
    assert slow.replace_parts(7, (part(1), part(2)), part(13)) is None
    assert slow.replace_parts(8, (part(1),), part(13)) is None
    assert slow.read(7) == stack_of(3, 12, 3)


def test_a_drop_keeps_files_of_other_key_groups(tmp_path: Path) -> None:
    """A drop keeps files of other key-groups, also if their numbers start with the same digits."""
    stacks = Stacks(tmp_path, "totals")
    for key_group in (7, 71):
        assert stacks.replace(key_group, None, Stack(head_of(1), (part(1), own_part(stacks, key_group))))
    stacks.drop(7)
    assert stacks.key_groups() == [71]
    assert [path.name[:4] for path in tmp_path.glob("stacks/totals/*.part")] == ["0071"]
    stacks.drop(7)


def test_a_drop_keeps_a_file_that_no_stack_lists_yet(tmp_path: Path) -> None:
    """A drop keeps a file that another process is about to put on a stack."""
    first, second = Stacks(tmp_path, "totals"), Stacks(tmp_path, "totals")
    assert first.replace(7, None, stack_of(1, 1))
    coming = own_part(second, 7)
    first.drop(7)
    assert second.replace(7, None, Stack(head_of(2), (coming,)))
    assert (tmp_path / coming.file).exists()
