"""Journals: encoded entries, damaged journals, compaction, locks and full disks."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import signal
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from riffle_spark.state.copies import journal_file
from riffle_spark.state.copies.journal import (
    _CHANGE,
    _FRAME,
    Change,
    Listing,
    encode_entry,
    first_seed,
    read_entries,
)
from riffle_spark.state.copies.journal_file import JournalFile
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.copies.stacks import Stacks
from riffle_spark.state.log.manifest import EMPTY_HEAD, Head
from tests.kit.state.stack_changes import (
    another_process,
    head_of,
    journals_in,
    own_part,
    part,
    read_anew,
    stack_of,
)

SEED = first_seed("totals")
BIG = StackedPart("fetched/9-1-ab.cd", 2**62, 2**62, 2**64 - 1, 2**40, 2**31, 2**31)
CHANGES = [
    [Change(7, head_of(1), 0, (part(1), part(2))), Change(8, EMPTY_HEAD)],
    [Change(7, head_of(2), 1, (BIG,)), Change(9, head_of(2), 0, (part(3),))],
    [Change(8, None)],
]
STATES: list[dict[int, Stack]] = [
    {},
    {7: stack_of(1, 1, 2), 8: Stack()},
    {7: Stack(head_of(2), (part(1), BIG)), 8: Stack(), 9: stack_of(2, 3)},
    {7: Stack(head_of(2), (part(1), BIG)), 9: stack_of(2, 3)},
]


def entries() -> list[bytes]:
    """Return the encoded entries of these changes."""
    seed, encoded = SEED, []
    for changes in CHANGES:
        data, seed = encode_entry(changes, seed)
        encoded.append(data)
    return encoded


def test_journal_entries_are_equal_after_a_round_trip() -> None:
    """Entries are read back equal, at once or one after the other."""
    data = entries()
    listing, end, _ = read_entries(b"".join(data), Listing(), SEED)
    assert (listing.stacks, end) == (STATES[3], sum(map(len, data)))
    listing, seed = Listing(), SEED
    for entry, state in zip(data, STATES[1:], strict=True):
        before = listing
        listing, end, seed = read_entries(entry, before, seed)
        assert (listing.stacks, end) == (state, len(entry))
    assert (listing.part_count, listing.files, listing.heads) == (3, {"sealed/1-aa": 2, BIG.file: 1}, {head_of(2): 2})
    assert listing.size_bytes == 20 + BIG.length


def test_a_cut_or_changed_journal_has_the_stacks_of_an_earlier_entry() -> None:
    """A journal that is cut, changed or lacks an entry has exactly the stacks of the entries before the damage."""
    data = entries()
    whole = b"".join(data)
    ends = [0, len(data[0]), len(data[0] + data[1]), len(whole)]
    for place in range(len(whole)):
        intact = sum(end <= place for end in ends[1:])
        flipped = bytes([*whole[:place], whole[place] ^ 1, *whole[place + 1 :]])
        zeroed = whole[:place].ljust(len(whole), b"\0")
        for damaged in {whole[:place], flipped, zeroed} - {whole}:
            listing, end, _ = read_entries(damaged, Listing(), SEED)
            assert (listing.stacks, end) == (STATES[intact], ends[intact]), place
    assert read_entries(data[0] + data[2], Listing(), SEED)[0].stacks == STATES[1]
    assert read_entries(whole, Listing(), first_seed("visits"))[1] == 0


@pytest.mark.parametrize(
    "change",
    [
        Change(7, Head(3, "1-../x")), Change(7, Head(3, "")),
        Change(7, head_of(3), 0, (part(1, "../owner"),)), Change(7, head_of(3), 0, (part(1, "/etc/passwd"),)),
        Change(7, head_of(3), 3), Change(8, head_of(3), 1), Change(7, head_of(3), -2),
    ],
)  # fmt: skip
def test_an_entry_with_impossible_changes_is_ignored(change: Change) -> None:
    """An entry with a valid checksum but impossible changes is ignored."""
    first, seed = encode_entry([Change(7, head_of(1), 0, (part(1), part(2)))], SEED)
    listing, end, _ = read_entries(first + encode_entry([change], seed)[0], Listing(), SEED)
    assert (listing.stacks, end) == ({7: stack_of(1, 1, 2)}, len(first))


def test_a_journal_is_compacted_before_it_is_twice_as_long_as_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal is compacted before it is twice as long as needed, and readers of the old one find all stacks."""
    monkeypatch.setattr(journal_file, "_SPARE_BYTES", 4_000)
    reader = Stacks(tmp_path, "totals")
    numbers = set()
    former: Stack | None = None
    for version in range(200):
        stack = Stack(head_of(version), tuple(part(n, f"sealed/{n}-aa") for n in range(version, version + 4)))
        with another_process():
            assert Stacks(tmp_path, "totals").replace(7, former, stack)
        (journal,) = journals_in(tmp_path)
        numbers.add(journal.name)
        assert journal.stat().st_size < 6_500
        reader.refresh()
        assert reader.read(7) == stack
        former = stack
    assert len(numbers) > 3


def test_a_batch_appends_only_its_changes_to_high_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch appends only its changes, however many parts the stacks have, because all their parts count as needed."""
    monkeypatch.setattr(journal_file, "_SPARE_BYTES", 0)
    stacks = Stacks(tmp_path, "totals")
    assert stacks.replace_many({n: (None, stack_of(1, *range(8))) for n in range(100)})
    (journal,) = journals_in(tmp_path)
    size = journal.stat().st_size
    for key_group in range(20):
        assert stacks.replace(key_group, stack_of(1, *range(8)), stack_of(2, *range(9)))
    assert journals_in(tmp_path) == [journal]
    assert journal.stat().st_size < 1.2 * size


def test_a_reader_reads_only_what_was_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader reads only the appended bytes, and only compares the size of an unchanged journal."""
    stacks = Stacks(tmp_path, "totals")
    assert stacks.replace_many({n: (None, stack_of(1, n)) for n in range(100)})
    assert len(read_anew(tmp_path)) == 100
    with another_process():
        assert Stacks(tmp_path, "totals").replace(7, stack_of(1, 7), stack_of(2, 7, 8))
    reads: list[int] = []
    read = os.pread

    def counted(file: int, size: int, start: int) -> bytes:
        reads.append(size)
        return read(file, size, start)

    monkeypatch.setattr(os, "pread", counted)
    for _ in range(2):
        stacks.refresh()
        assert stacks.read(7) == stack_of(2, 7, 8)
    assert len(reads) == 1
    assert reads[0] < 200


def test_the_next_writer_starts_a_new_journal_after_a_torn_entry(tmp_path: Path) -> None:
    """After a torn entry the next writer starts a new journal, so that no reader continues the damaged one."""
    stacks = Stacks(tmp_path, "totals")
    assert stacks.replace(7, None, stack_of(1, 1))
    (journal,) = journals_in(tmp_path)
    first = journal.stat().st_size
    assert stacks.replace(7, stack_of(1, 1), stack_of(2, 1, 2))
    os.truncate(journal, journal.stat().st_size - 1)
    with another_process():
        other = Stacks(tmp_path, "totals")
        assert other.read(7) == stack_of(1, 1)
        assert other.replace(7, stack_of(1, 1), stack_of(3, 1, 3))
    (replaced,) = journals_in(tmp_path)
    assert int(replaced.name[:10]) == int(journal.name[:10]) + 1
    stacks.refresh()
    assert stacks.read(7) == stack_of(3, 1, 3)
    os.truncate(replaced, first // 2)
    with another_process():
        assert Stacks(tmp_path, "totals").key_groups() == []
        assert Stacks(tmp_path, "totals").replace(7, None, stack_of(4, 4))
    assert read_anew(tmp_path) == {7: stack_of(4, 4)}


def test_a_journal_that_lost_whole_entries_is_replaced(tmp_path: Path) -> None:
    """A journal that lost whole entries is replaced, because a process that had read further could miss new entries."""
    stacks = Stacks(tmp_path, "totals")
    assert stacks.replace(7, None, stack_of(1, 1))
    (journal,) = journals_in(tmp_path)
    first = journal.stat().st_size
    assert stacks.replace(7, stack_of(1, 1), stack_of(2, 1, 2))
    os.truncate(journal, first)
    stacks.refresh()
    assert stacks.read(7) == stack_of(1, 1)
    assert stacks.replace(7, stack_of(1, 1), stack_of(2, 1, 3))
    assert journals_in(tmp_path) != [journal]
    assert read_anew(tmp_path) == {7: stack_of(2, 1, 3)}


def test_a_torn_next_journal_is_ignored_and_a_complete_one_counts(tmp_path: Path) -> None:
    """A torn next journal is ignored, and a complete one counts even if the former journal still exists."""
    stacks = Stacks(tmp_path, "totals")
    assert stacks.replace(7, None, stack_of(1, 1))
    (journal,) = journals_in(tmp_path)
    number, _, rest = journal.name.partition(".")
    next_journal = journal.with_name(f"{int(number) + 1:010d}.{rest}")
    next_journal.write_bytes(journal.read_bytes()[:-1])
    for size in range(next_journal.stat().st_size + 1):
        next_journal.write_bytes(journal.read_bytes()[:size][:-1])
        assert read_anew(tmp_path) == {7: stack_of(1, 1)}, size
    assert stacks.replace(7, stack_of(1, 1), stack_of(2, 1, 2))
    assert journals_in(tmp_path) == [journal]
    next_journal.write_bytes(encode_entry([Change(7, head_of(3), 0, (part(3),))], SEED)[0])
    assert read_anew(tmp_path) == {7: stack_of(3, 3)}
    assert not stacks.replace(7, stack_of(2, 1, 2), stack_of(4, 4)), "this process has read only the former journal"
    assert stacks.replace(7, stack_of(3, 3), stack_of(4, 4))
    assert journals_in(tmp_path) == [next_journal]
    assert read_anew(tmp_path) == {7: stack_of(4, 4)}


def test_a_hanging_writer_does_not_block_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes stop waiting for a hanging writer and continue with the stacks that they have read."""
    stacks = Stacks(tmp_path, "totals")
    assert stacks.replace(7, None, stack_of(1, 1))
    monkeypatch.setattr(journal_file, "_LOCK_SECONDS", 0.01)
    descriptor = os.open(tmp_path / "stacks" / "totals", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert not stacks.replace(7, stack_of(1, 1), stack_of(2, 1, 2))
        assert stacks.replace_parts(7, (part(1),), part(2)) is None
        assert not stacks.drop(7)
        assert stacks.read(7) is None
        assert read_anew(tmp_path) == {7: stack_of(1, 1)}
        stacks.refresh()
        assert stacks.read(7) == stack_of(1, 1)
    finally:
        os.close(descriptor)
    assert stacks.replace(7, stack_of(1, 1), stack_of(2, 1, 2))


def limited(folder: Path, size: int) -> None:
    """Replace stacks in a process whose files may not grow beyond ``size`` bytes. Exit with 3 if the disk refused."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    stacks = Stacks(folder, "totals")
    own = own_part(stacks, 7)
    try:
        stacks.replace_many({n: (stack_of(1, n), Stack(head_of(2), (part(n), own))) for n in range(50)})
    except OSError:
        os._exit(3 if not (folder / own.file).exists() else 4)


def test_a_full_disk_leaves_a_readable_journal(tmp_path: Path) -> None:
    """A disk that fills up within an entry leaves the stacks intact, and the next process continues the journal."""
    context = get_context("fork")
    for number, more in enumerate((0, 1, 11, 12, 13, 500, 3000)):
        folder = tmp_path / str(number)
        stacks = Stacks(folder, "totals")
        assert stacks.replace_many({n: (None, stack_of(1, n)) for n in range(50)})
        (journal,) = journals_in(folder)
        before = journal.read_bytes()
        process = context.Process(target=limited, args=(folder, len(before) + more))
        process.start()
        process.join()
        assert process.exitcode == 3
        assert (journals_in(folder), journal.read_bytes()) == ([journal], before)
        assert list(folder.glob("stacks/totals/*.part")) == []
        assert stacks.replace(7, stack_of(1, 7), stack_of(2, 7, 8))


def test_a_disk_that_is_full_during_a_compaction_keeps_the_journal(tmp_path: Path) -> None:
    """A failed compaction removes the new journal and keeps the former one."""
    stacks = Stacks(tmp_path, "totals")
    assert stacks.replace_many({n: (None, stack_of(1, n)) for n in range(50)})
    (journal,) = journals_in(tmp_path)
    with journal.open("ab") as file:
        file.write(b"torn")
    process = get_context("fork").Process(target=limited, args=(tmp_path, 100))
    process.start()
    process.join()
    assert process.exitcode == 3
    assert journals_in(tmp_path) == [journal]
    assert read_anew(tmp_path) == {n: stack_of(1, n) for n in range(50)}


KEY_GROUPS = st.integers(0, 4)
STACKS_DRAWN = st.builds(
    lambda version, numbers: Stack(head_of(version), tuple(map(part, numbers))),
    st.integers(0, 3),
    st.lists(st.integers(0, 5), max_size=4),
)
STEPS = st.one_of(
    st.tuples(st.just("replace"), st.dictionaries(KEY_GROUPS, st.tuples(st.booleans(), STACKS_DRAWN), min_size=1)),
    st.tuples(st.just("merge"), st.tuples(KEY_GROUPS, st.integers(0, 3), st.integers(1, 3))),
    st.tuples(st.just("drop"), KEY_GROUPS),
    st.tuples(st.just("tear"), st.integers(1, 40)),
    st.tuples(st.just("forget"), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 1), STEPS), max_size=25), spare=st.sampled_from([0, 400, 64 << 10]))
def test_concurrent_processes_agree_with_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, tuple[str, object]]], spare: int
) -> None:
    """Two processes that replace, merge and drop stacks, and others that die while they append, agree with a
    dictionary.
    """
    folder = tmp_path_factory.mktemp("journal")
    model: dict[int, Stack] = {}
    memories: list[dict[str, object]] = [{}, {}]
    with pytest.MonkeyPatch.context() as patch, another_process():
        patch.setattr(journal_file, "_SPARE_BYTES", spare)
        for actor, (kind, argument) in steps:
            patch.setattr(journal_file, "_states", memories[actor])
            take_step(folder, model, kind, argument)
            if kind == "forget":
                memories[actor] = {}
            patch.setattr(journal_file, "_states", {})
            assert Stacks(folder, "totals").listing().stacks == model


def take_step(folder: Path, model: dict[int, Stack], kind: str, argument: object) -> None:
    """Apply one step to the stacks in ``folder`` and to the ``model``, and compare what it returns."""
    stacks = Stacks(folder, "totals")
    if kind == "replace":
        assert isinstance(argument, dict)
        replacements = {kg: (model.get(kg) if right else stack_of(9, 9), new) for kg, (right, new) in argument.items()}
        expected = {kg for kg, (right, _) in argument.items() if right}
        assert stacks.replace_many(replacements) == expected
        model |= {kg: replacements[kg][1] for kg in expected}
    elif kind == "merge":
        assert isinstance(argument, tuple)
        key_group, start, count = argument
        present = model.get(key_group, Stack()).parts
        parts = present[start : start + count] or (part(77),)
        merged = stacks.replace_parts(key_group, parts, part(88))
        assert (merged is None) == (parts == (part(77),))
        if merged is not None:
            model[key_group] = merged
            assert part(88) in merged.parts
            assert len(merged.parts) == len(present) - len(parts) + 1
    elif kind == "drop":
        assert isinstance(argument, int)
        stacks.drop(argument)
        model.pop(argument, None)
    elif kind == "tear" and journals_in(folder):
        assert isinstance(argument, int)
        seed = read_entries(journals_in(folder)[-1].read_bytes(), Listing(), SEED)[2]
        entry = encode_entry([Change(3, head_of(5), 0, (part(5),))], seed)[0]
        with journals_in(folder)[-1].open("ab") as file, suppress(IndexError):
            file.write(entry[:argument])


def test_an_entry_whose_parts_or_key_groups_do_not_fit_is_ignored() -> None:
    """An entry that changes a key-group twice, or that has parts of no key-group, counts as damaged."""
    once = [Change(7, head_of(1), 0, (part(1), part(2)))]
    data, _ = encode_entry(once, SEED)
    assert read_entries(data, Listing(), SEED)[1] == len(data)
    twice, _ = encode_entry([*once, Change(7, head_of(2), 0, (part(3),))], SEED)
    assert read_entries(twice, Listing(), SEED)[1] == 0
    body = data[_FRAME.size :]
    fewer = body.replace(_CHANGE.pack(7, 1, 0, 0, 2), _CHANGE.pack(7, 1, 0, 0, 1))
    assert fewer != body
    unlisted = _FRAME.pack(xxhash.xxh3_64_intdigest(fewer, SEED), len(fewer)) + fewer
    assert read_entries(unlisted, Listing(), SEED)[1] == 0


@pytest.mark.parametrize("removals", [1, 2, 9])
def test_a_folder_that_is_removed_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removals: int
) -> None:
    """If another process removes the folder before a writer has its lock, the writer makes it again, up to twice."""
    acquire = JournalFile._acquire
    left = [removals]

    def overtaken(journal: JournalFile, descriptor: int) -> None:
        if left[0]:
            left[0] -= 1
            shutil.rmtree(tmp_path / "stacks" / "totals")
        acquire(journal, descriptor)

    monkeypatch.setattr(JournalFile, "_acquire", overtaken)
    change = {7: (None, stack_of(1, 1))}
    if removals > 2:
        with pytest.raises(FileNotFoundError):
            Stacks(tmp_path, "totals").replace_many(change)
        return
    assert Stacks(tmp_path, "totals").replace_many(change)
    assert read_anew(tmp_path) == {7: stack_of(1, 1)}


def test_a_disk_that_takes_only_a_part_of_an_entry_refuses_it(tmp_path: Path) -> None:
    """An entry of which the disk takes only a part is an error and not a success."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = tmp_path / "journal"
    with file.open("wb", buffering=0) as opened:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
        try:
            with pytest.raises(OSError, match="No space left"):
                journal_file._write_all(opened.fileno(), bytes(100), str(file))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.stat().st_size == 50
