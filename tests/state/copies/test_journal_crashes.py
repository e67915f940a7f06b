"""A process that dies while it appends to a journal leaves all stacks intact."""

from __future__ import annotations

import os
import random
import signal
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from riffle_spark.state.copies import journal_file
from riffle_spark.state.copies.stack import Stack
from riffle_spark.state.copies.stacks import Stacks
from tests.kit.state.stack_changes import another_process, head_of, journals_in, part, read_anew, stack_of

KEY_GROUPS = range(20)


def test_a_crash_at_any_byte_of_an_append_keeps_the_former_stacks(tmp_path: Path) -> None:
    """The next process reads the former stacks, and a change that it makes can be read again."""
    assert Stacks(tmp_path, "totals").replace_many({n: (None, stack_of(1, n)) for n in (1, 2)})
    (journal,) = journals_in(tmp_path)
    before = journal.read_bytes()
    assert Stacks(tmp_path, "totals").replace_many({n: (stack_of(1, n), stack_of(2, n, 3)) for n in (1, 2)})
    after = journal.read_bytes()
    for size in range(len(before), len(after)):
        for path in journals_in(tmp_path):
            path.unlink()
        journal.write_bytes(after[:size])
        with another_process():
            stacks = Stacks(tmp_path, "totals")
            assert stacks.listing().stacks == {1: stack_of(1, 1), 2: stack_of(1, 2)}, size
            assert stacks.replace(2, stack_of(1, 2), stack_of(3, 3)), size
        assert read_anew(tmp_path) == {1: stack_of(1, 1), 2: stack_of(3, 3)}, size


def write_until_killed(folder: Path) -> None:
    """Replace all stacks repeatedly, so that all of them have the same head and parts after each change."""
    stacks = Stacks(folder, "totals")
    while True:
        former = stacks.read(0)
        assert former is not None
        version = former.head.version + 1
        parts = former.parts[-3:] if version % 5 == 0 else former.parts
        stack = Stack(head_of(version), (*parts, part(version)))
        stacks.replace_many(dict.fromkeys(KEY_GROUPS, (former, stack)))
        stacks.refresh()


def test_racing_processes_that_are_killed_leave_no_partial_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two racing processes that are killed lose no committed change and leave no partial one."""
    chance = random.Random(1)
    context = get_context("fork")
    monkeypatch.setattr(journal_file, "_SPARE_BYTES", 4_000)  # forces many compactions
    assert Stacks(tmp_path, "totals").replace_many({n: (None, stack_of(1, 1)) for n in KEY_GROUPS})
    newest = 1
    for _ in range(15):
        processes = [context.Process(target=write_until_killed, args=(tmp_path,)) for _ in range(2)]
        for process in processes:
            process.start()
        time.sleep(chance.uniform(0.005, 0.05))
        for process in processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        stacks_read = read_anew(tmp_path)
        assert set(stacks_read) == set(KEY_GROUPS)
        assert len(set(stacks_read.values())) == 1, "a change was stored for only some key-groups"
        assert stacks_read[0].head.version >= newest
        assert stacks_read[0].parts[-1] == part(stacks_read[0].head.version)
        newest = stacks_read[0].head.version
    assert newest > 25
    with another_process():
        stacks = Stacks(tmp_path, "totals")
        assert stacks.replace(3, stacks_read[3], stack_of(newest + 1, 1))
    assert len(journals_in(tmp_path)) == 1
