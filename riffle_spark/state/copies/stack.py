"""The parts of a key-group's local copy.

    stacks/<store>/<number>.<unique>.journal           lists the parts of all key-groups (``journal_file``)
    stacks/<store>/<0042>.<unique>.part                a part that this member merged for this key-group
    stacks/<store>/<0042>.<unique>.<snapshot id>.part  a snapshot of this key-group

Theory of operation. A copy is a stack of parts, oldest first. A row hides the rows of its key in older parts. Part
files never change.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from riffle_spark.state.log.manifest import EMPTY_HEAD, Head
from riffle_spark.state.schemas.history import FIRST

Signature = tuple[int, int, int, int]
"""A file's inode, size, and last changes of content and inode (ns). Every write to a file changes at least one."""
STACKS = "stacks"
"""The folder of the journals and of the parts that belong to one key-group."""
PART = ".part"


class StackedPart(NamedTuple):
    """A part of a stack: a byte range of a file below the member's folder.

    ``checksum`` is the XXH3-64 of the bytes and ``epoch`` that of the newest row. ``declaration`` is the id of the
    store's declaration under which this member rewrote the part, if it did.
    """

    file: str
    start: int
    length: int
    checksum: int
    rows: int
    epoch: int
    declaration: int = FIRST


@dataclass(frozen=True, slots=True)
class Stack:
    """The parts of a copy at ``head``, oldest first."""

    head: Head = EMPTY_HEAD
    parts: tuple[StackedPart, ...] = ()

    def with_parts(self, head: Head, parts: Iterable[StackedPart]) -> "Stack":
        """Return the stack with more parts on top."""
        return Stack(head, (*self.parts, *parts))

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.length for part in self.parts)


def signature_of(path: str) -> Signature | None:
    """Return a signature that changes with every write to a file, or ``None`` if there is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - half the time of Path.stat
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
