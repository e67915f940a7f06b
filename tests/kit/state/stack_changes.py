"""Stacks of invented parts, and changes of stacks by several processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from riffle_spark.state.copies import journal_file
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.copies.stacks import Stacks
from riffle_spark.state.log.manifest import Head
from tests.kit.state.drawn_records import attempt

__all__ = ["another_process", "head_of", "journals_in", "own_part", "part", "read_anew", "stack_of"]


def head_of(version: int) -> Head:
    """Return the head of a version."""
    return Head(version, attempt(version))


def part(number: int, file: str = "sealed/1-aa") -> StackedPart:
    """Return an invented part. Its number makes it unique."""
    return StackedPart(file, 10 * number, 10, number, 1, 1)


def stack_of(version: int, *numbers: int) -> Stack:
    """Return a stack of invented parts."""
    return Stack(head_of(version), tuple(map(part, numbers)))


def own_part(stacks: Stacks, key_group: int) -> StackedPart:
    """Return a part in a new file that belongs to one key-group."""
    path = stacks.new_file(key_group)
    path.write_bytes(b"x")
    return StackedPart(stacks.relative_name(path), 0, 1, 5, 1, 1)


def journals_in(folder: Path) -> list[Path]:
    """Return the journals of the store ``totals``, oldest first."""
    return sorted((folder / "stacks" / "totals").glob("*.journal"))


@contextmanager
def another_process() -> Iterator[None]:
    """Forget during the block what this process knows of journals, so that it reads them as another process does."""
    states = dict(journal_file._states)  # private: the state of journals that a process remembers
    journal_file._states.clear()  # private: as above
    try:
        yield
    finally:
        journal_file._states.clear()  # private: as above
        journal_file._states.update(states)  # private: as above


def read_anew(folder: Path) -> dict[int, Stack]:
    """Return the stacks of the store ``totals``, read as by a new process."""
    with another_process():
        return Stacks(folder, "totals").listing().stacks
