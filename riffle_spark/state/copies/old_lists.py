"""Lists of parts that earlier versions wrote: one file per key-group and change, instead of a journal.

<0042>.<number>-<copy>.stack   a list of parts; the readable list with the highest number is current
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import xxhash

from riffle_spark.errors import UNREADABLE
from riffle_spark.state.copies.journal import FILE, Change, Listing
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.log.entry_rows import is_possible
from riffle_spark.state.log.manifest import Address, Head

__all__ = ["decode_list", "is_list_name", "read_lists"]

_FORMAT: Final = 2
"""The seed of a list's checksum, so that a list of another format is ignored."""
_LIST_NAME: Final = re.compile(r"([0-9]{4,5})\.([0-9]{10,18})-[0-9a-f]+\.stack\Z")


def is_list_name(name: str) -> bool:
    """Return whether a file of this name is a list of parts."""
    return _LIST_NAME.match(name) is not None


def read_lists(folder: Path, store: str, names: Iterable[str]) -> Listing:
    """Return the stacks in the list files with these names in ``folder``, without key-groups whose lists are all
    unreadable.
    """
    stacks: dict[int, Stack] = {}
    for name in sorted(names):  # the highest number last
        match = _LIST_NAME.match(name)
        assert match is not None, "the caller passes names of lists"
        key_group = int(match[1])
        try:
            stack = decode_list((folder / name).read_bytes(), (store, key_group))
        except OSError:
            continue
        if stack is not None:
            stacks[key_group] = stack
    return Listing().with_changes(Change(key_group, stack.head, 0, stack.parts) for key_group, stack in stacks.items())


def decode_list(data: bytes, address: Address) -> Stack | None:
    """Return the stack in a list file of this key-group, or ``None`` if the bytes are not such a list.

    The bytes are a checksum, a line feed, and one line of JSON.
    """
    checksum, _, body = data.partition(b"\n")
    if checksum != b"%016x" % xxhash.xxh3_64_intdigest(body, _FORMAT):
        return None
    try:
        store, key_group, version, attempt, rows = json.loads(body)
        parts = tuple(
            StackedPart(file, start, length, int(digits, 16), *rest) for file, start, length, digits, *rest in rows
        )
        head = Head(version, attempt)
        is_valid = (store, key_group) == address and is_possible(head) and all(map(_is_possible, parts))
        return Stack(head, parts) if is_valid else None
    except UNREADABLE:
        return None


def _is_possible(part: StackedPart) -> bool:
    """Return whether a part has a safe file name, a possible range and whole numbers."""
    numbers = (part.rows, part.epoch, part.declaration)
    return (
        FILE.match(part.file) is not None
        and part.start >= 0 <= part.length
        and all(type(number) is int for number in numbers)
    )
