"""Lists of parts: one after the other, seen whole or not at all, by however many processes."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import nullcontext, suppress
from multiprocessing import Queue, get_context
from pathlib import Path

import pytest

from riffle_spark.state.copies import stack as stack_module
from riffle_spark.state.copies.stack import Stack, StackedPart, Stacks
from riffle_spark.state.log.manifest import Head
from tests.kit.state.drawn_records import attempt

ADDRESS = ("totals", 7)


def at(version: int) -> Head:
    """Return the head of a version."""
    return Head(version, attempt(version))


def part(number: int, file: str = "sealed/1-aa") -> StackedPart:
    """Return a part like no other."""
    return StackedPart(file, 10 * number, 10, number, 1, 1)


def stack(version: int, *numbers: int) -> Stack:
    """Return a stack of such parts."""
    return Stack(at(version), tuple(map(part, numbers)))


@pytest.mark.parametrize(
    "head",
    [
        Head(3, "1-../x"), Head(3, ""), Head(3, 5), Head("3", at(3).attempt),  # type: ignore[arg-type]
        Head(1 << 63, at(3).attempt),
    ],
)  # fmt: skip
def test_a_list_that_names_no_attempt_is_none(head: Head) -> None:
    """Whatever its checksum says: ages are told by its attempt's epoch."""
    assert Stack.from_bytes(Stack(head).to_bytes(ADDRESS), ADDRESS) is None


@pytest.mark.parametrize(
    "name", ["0007.x-0a1b2c3d.stack", "0007..stack", "7" * 200 + ".0000000001-0a1b2c3d.stack", "٣.0000000001-aa.stack"]
)
def test_files_of_other_names_are_no_lists(folder: Path, name: str) -> None:
    """Nobody counts on from what stands in them."""
    (folder / "stacks" / "totals").mkdir(parents=True)
    (folder / "stacks" / "totals" / name).write_bytes(stack(3, 1).to_bytes(ADDRESS))
    stacks = Stacks(folder, "totals")
    assert stacks.key_groups() == []
    assert stacks.replace(7, None, stack(3, 1))
    assert Stacks(folder, "totals").read(7) == stack(3, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A member's folder that this process has read nothing of."""
    stack_module._cached_stacks.clear()
    return tmp_path


def test_a_list_comes_back_and_nothing_else_is_taken_for_one() -> None:
    """Not one cut anywhere, with any bit flipped, or of another key-group."""
    data = stack(3, 1, 2).to_bytes(ADDRESS)
    assert Stack.from_bytes(data, ADDRESS) == stack(3, 1, 2)
    assert Stack.from_bytes(data, ("totals", 8)) is None
    assert Stack.from_bytes(data, ("other", 7)) is None
    for place in range(len(data)):
        assert Stack.from_bytes(data[:place], ADDRESS) is None
        flipped = bytes([*data[:place], data[place] ^ 1, *data[place + 1 :]])
        assert Stack.from_bytes(flipped, ADDRESS) is None


def test_a_new_list_takes_the_place_of_the_one_before(folder: Path) -> None:
    """One file a key-group, whatever was before; files that are its alone go with the list that had them."""
    stacks = Stacks(folder, "totals")
    assert stacks.read(7) is None
    own = stacks.new_file(7)
    own.write_bytes(b"x" * 10)
    merged = StackedPart(stacks.relative_name(own), 0, 10, 5, 1, 1)
    assert stacks.replace(7, None, Stack(at(1), (merged,)))
    assert stacks.replace(7, Stack(at(1), (merged,)), Stack(at(2), (merged, part(2))))
    assert own.exists()
    assert stacks.replace(7, Stack(at(2), (merged, part(2))), stack(3, 3))
    assert not own.exists()
    assert len(list(folder.glob("stacks/totals/*"))) == 1
    assert Stacks(folder, "totals").read(7) == stack(3, 3)
    assert stacks.key_groups() == [7]


def as_another_process(folder: Path, before: Stack, after: Stack) -> None:
    """Switch as a process would that keeps lists of its own."""
    known = dict(stack_module._cached_stacks)
    assert Stacks(folder, "totals").replace(7, before, after)
    stack_module._cached_stacks.clear()
    stack_module._cached_stacks.update(known)


def test_who_is_overtaken_by_another_process_writes_nothing(folder: Path) -> None:
    """The list that it began from is gone from the disk, though not from its memory."""
    stacks = Stacks(folder, "totals")
    assert stacks.replace(7, None, stack(1, 1))
    as_another_process(folder, stack(1, 1), stack(2, 1, 2))
    assert stacks.read(7) == stack(1, 1)
    assert not stacks.replace(7, stack(1, 1), stack(2, 1, 9))
    assert stacks.read(7) == stack(2, 1, 2)
    assert not stacks.replace(7, None, stack(3, 3))
    assert len(list(folder.glob("stacks/totals/*"))) == 1


@pytest.mark.parametrize("at_flag", [os.O_RDONLY, os.O_CREAT])
def test_of_two_that_replace_a_list_at_one_moment_one_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at_flag: int
) -> None:
    """A merge and a batch: each has seen that the list is what it began from. The other one comes in between, before
    the list is held or after: exactly one is told that its stack counts, and that is the one there.
    """
    begun, other = Stack(at(1), (part(1), part(2))), Stacks(folder, "totals")
    assert other.replace(7, None, begun)
    merged, with_parts = Stack(at(1), (part(12),)), begun.with_parts(at(2), [part(3)])
    came: list[bool] = []
    really_open = os.open

    def opened(path: str, flags: int, *mode: int) -> int:
        if not came and flags & os.O_CREAT == at_flag:
            came.append(False)
            came[0] = other.replace(7, begun, merged)
        return really_open(path, flags, *mode)

    monkeypatch.setattr(os, "open", opened)
    is_mine = Stacks(folder, "totals").replace(7, begun, with_parts)
    assert [is_mine, *came].count(True) == 1
    assert Stacks(folder, "totals").read(7) == (with_parts if is_mine else merged)
    assert len(list(folder.glob("stacks/totals/*"))) == 1


def test_a_list_that_goes_while_it_is_being_held_is_not_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was opened, and another process replaced it before it was locked."""
    begun, other = stack(1, 1), Stacks(folder, "totals")
    assert other.replace(7, None, begun)
    came: list[bool] = []
    really_lock = fcntl.flock

    def locked(file: int, operation: int) -> None:
        if not came:
            came.append(False)
            came[0] = other.replace(7, begun, stack(2, 1, 2))
        really_lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", locked)
    assert not Stacks(folder, "totals").replace(7, begun, stack(2, 1, 9))
    assert came == [True]
    assert Stacks(folder, "totals").read(7) == stack(2, 1, 2)


def test_each_list_of_a_copy_is_held_while_it_is_replaced(folder: Path) -> None:
    """Who died between a new list and the end of the old one left both. Who has the old one is at it, too."""
    begun, first = stack(1, 1), Stacks(folder, "totals")
    assert first.replace(7, None, begun)
    old = first.newest_list(7)
    data = (folder / "stacks" / "totals" / old).read_bytes()
    assert first.replace(7, begun, stack(2, 1, 2))
    (folder / "stacks" / "totals" / old).write_bytes(data)
    with first._lock_lists([old]):  # as another process does for a moment
        assert not Stacks(folder, "totals").replace(7, stack(2, 1, 2), stack(3, 1, 2, 3))
    assert Stacks(folder, "totals").replace(7, stack(2, 1, 2), stack(3, 1, 2, 3))
    assert len(list(folder.glob("stacks/totals/*"))) == 1


def test_a_disk_that_does_not_let_the_old_list_go_keeps_the_parts_of_the_new_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts by then, whatever the disk says."""
    stacks = Stacks(folder, "totals")
    assert stacks.replace(7, None, stack(1, 1))
    after = Stack(at(2), (own_part(stacks, 7),))
    with monkeypatch.context() as refused:
        refused.setattr(os, "unlink", _refuse)
        with pytest.raises(OSError, match="Input/output error"):
            stacks.replace(7, stack(1, 1), after)
    assert Stacks(folder, "totals").read(7) == after
    assert (folder / after.parts[0].file).exists()


def _refuse(path: str) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def rows_of(folder: Path, now: Stack) -> list[int]:
    """Return the numbers that a stack's files hold, sorted. Raises ``FileNotFoundError`` if one is gone."""
    return sorted(int(row) for one in now.parts for row in (folder / one.file).read_text().split())


def add(folder: Path, numbers: range, told: Queue[list[int]]) -> None:
    """Put a part on a copy for each number; merge the parts that are there to one now and then."""
    added = []
    for number in numbers:
        is_added = False
        while not is_added:
            stacks = Stacks(folder, "totals")
            now = stacks.read(7)
            if now is None:  # replaced with each look
                continue
            merges = len(now.parts) > 8
            with suppress(FileNotFoundError):  # merged meanwhile
                rows = [*(rows_of(folder, now) if merges else []), number]
                file = stacks.new_file(7)
                file.write_text(" ".join(map(str, rows)))
                coming = StackedPart(stacks.relative_name(file), 0, file.stat().st_size, 0, len(rows), 1)
                under = () if merges else now.parts
                is_added = stacks.replace(7, now, Stack(at(now.head.version + 1), (*under, coming)))
        added.append(number)
    told.put(added)


def test_processes_that_replace_a_list_lose_nothing_of_each_other(folder: Path) -> None:
    """Whatever one of them was told is on the copy lies there at the end, with each file that it needs."""
    assert Stacks(folder, "totals").replace(7, None, Stack(at(0)))
    context = get_context("fork")
    told: Queue[list[int]] = context.Queue()
    processes = [context.Process(target=add, args=(folder, range(1000 * n, 1000 * n + 50), told)) for n in range(4)]
    for process in processes:
        process.start()
    expected = sorted(number for _ in processes for number in told.get(timeout=120))
    for process in processes:
        process.join()
    now = Stacks(folder, "totals").read(7)
    assert now is not None
    assert rows_of(folder, now) == expected
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]


def test_what_is_dropped_is_what_is_there_now(folder: Path) -> None:
    """Not the stack that was listed, if another process has put one in its place since."""
    stacks = Stacks(folder, "totals")
    assert stacks.replace(7, None, stack(1, 1))
    as_another_process(folder, stack(1, 1), stack(2, 1, 2))
    stacks.drop(7)
    assert list(folder.glob("stacks/totals/*")) == []
    assert stacks.read(7) is None


def test_what_was_merged_is_replaced_under_what_came_meanwhile(folder: Path) -> None:
    """The head stays that of the newest list; parts that are not there any more are left alone."""
    slow, quick = Stacks(folder, "totals"), Stacks(folder, "totals")
    assert quick.replace(7, None, stack(2, 1, 2))
    assert slow.read(7) == stack(2, 1, 2)
    assert quick.replace(7, stack(2, 1, 2), stack(3, 1, 2, 3))
    assert slow.replace_parts(7, (part(1), part(2)), part(12)) == stack(3, 12, 3)
    quick.refresh()
    assert quick.read(7) == stack(3, 12, 3)
    assert slow.replace_parts(7, (part(1), part(2)), part(13)) is None
    assert slow.replace_parts(8, (part(1),), part(13)) is None
    assert slow.read(7) == stack(3, 12, 3)


def test_a_list_that_is_torn_is_passed_over(folder: Path) -> None:
    """A process that died while it wrote, or a machine that did: the one before counts, as long as it is there."""
    assert Stacks(folder, "totals").replace(7, None, stack(1, 1))
    (written,) = folder.glob("stacks/totals/*")
    torn = written.with_name(written.name.replace("0000000000-", "0000000001-"))
    torn.write_bytes(stack(2, 1, 2).to_bytes(ADDRESS)[:-3])
    assert Stacks(folder, "totals").read(7) == stack(1, 1)
    assert Stacks(folder, "totals").replace(7, stack(1, 1), stack(2, 1, 2))
    assert [path.name.split("-")[0] for path in folder.glob("stacks/totals/*")] == ["0007.0000000002"]


def test_a_stack_that_is_dropped_takes_its_own_files_along(folder: Path) -> None:
    """And no other key-group's."""
    stacks = Stacks(folder, "totals")
    for key_group in (7, 71):
        assert stacks.replace(key_group, None, Stack(at(1), (part(1), own_part(stacks, key_group))))
    stacks.drop(7)
    assert stacks.read(7) is None
    assert sorted(path.suffix for path in folder.glob("stacks/totals/0071.*")) == [".part", ".stack"]
    assert len(list(folder.glob("stacks/totals/*"))) == 2
    stacks.drop(7)


def own_part(stacks: Stacks, key_group: int) -> StackedPart:
    """Return a part in a new file that is the key-group's alone."""
    path = stacks.new_file(key_group)
    path.write_bytes(b"x")
    return StackedPart(stacks.relative_name(path), 0, 1, 5, 1, 1)


def test_each_list_that_is_dropped_takes_its_own_files_along(folder: Path) -> None:
    """Two processes may have written one each at the same moment. Another process, which has read none, drops them."""
    stacks = Stacks(folder, "totals")
    for version in (1, 2):
        name = f"0007.0000000000-{version:08x}.stack"
        listed = Stack(at(version), (own_part(stacks, 7),)).to_bytes(ADDRESS)
        (folder / "stacks" / "totals" / name).write_bytes(listed)
    Stacks(folder, "totals").drop(7)
    assert list(folder.glob("stacks/totals/*")) == []


def test_a_disk_that_is_full_keeps_nothing_of_a_stack_that_it_does_not_take(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No list that is torn, and no part that was written for this list alone. What was there before stays."""
    stacks = Stacks(folder, "totals")
    before = Stack(at(1), (own_part(stacks, 7), part(1)))
    assert stacks.replace(7, None, before)
    kept, write = sorted(folder.glob("stacks/totals/*")), os.write
    after = before.with_parts(at(2), [own_part(stacks, 7), part(2)])
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:20]))
        with pytest.raises(OSError, match="No space left"):
            stacks.replace(7, before, after)
    assert sorted(folder.glob("stacks/totals/*")) == kept
    assert Stacks(folder, "totals").read(7) == before


@pytest.mark.parametrize("hangs", [False, True])
def test_what_is_dropped_is_not_what_another_process_is_about_to_replace(folder: Path, hangs: bool) -> None:
    """Its new list would name files that are gone. Whoever hangs there for long keeps nobody from dropping it."""
    stacks, other = Stacks(folder, "totals"), Stacks(folder, "totals")
    begun = Stack(at(1), (own_part(stacks, 7),))
    assert stacks.replace(7, None, begun)
    with other._lock_lists([other.newest_list(7)]) if hangs else nullcontext():  # as in the midst of a switch
        read = other._read_list  # the first look of a drop

        def read_slowly(key_group: int, name: str) -> Stack | None:
            found = read(key_group, name)
            if not hangs:
                assert not stacks.replace(7, begun, begun.with_parts(at(2), [part(2)])), "it is being dropped"
            return found

        other._read_list = read_slowly  # type: ignore[method-assign]
        other.drop(7)
    assert list(folder.glob("stacks/totals/*")) == []


def test_what_no_list_has_yet_stays_where_a_stack_is_dropped(folder: Path) -> None:
    """Another process is about to put it on one."""
    first, second = Stacks(folder, "totals"), Stacks(folder, "totals")
    assert first.replace(7, None, stack(1, 1))
    coming = own_part(second, 7)
    first.refresh()
    first.drop(7)
    assert second.replace(7, None, Stack(at(2), (coming,)))
    assert (folder / coming.file).exists()
