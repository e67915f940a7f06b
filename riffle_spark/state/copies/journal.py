"""The entries of a journal: changes of a store's stacks as bytes, and the resulting stacks.

An entry is a checksum, a length, and a body with the changes of several key-groups. The checksum is the XXH3-64 of the
body, and its seed is the checksum of the entry before. So an entry counts only directly after the entry that its writer
read. The seed of the first entry is made of the format and the name of the store.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from re import Pattern
from re import compile as compile_pattern
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

import xxhash

from riffle_spark.errors import UNREADABLE
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.log.entry_rows import is_possible
from riffle_spark.state.log.manifest import EMPTY_HEAD, Head

_FORMAT: Final = 3
FILE: Final[Pattern[str]] = compile_pattern(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/){1,3}[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")
"""A safe name of a file below the member's folder."""
_FRAME: Final = Struct("<QI")
_COUNTS: Final = Struct("<III")
_CHANGE: Final = Struct("<IqIiI")
_PART: Final = Struct("<IQQQQqq")
_DROPPED: Final = -1
_TEXT_BYTES: Final = 64
"""About the length of a file's name or of an attempt in an entry."""


class Change(NamedTuple):
    """A new stack of a key-group: the oldest ``keep`` parts of the former one, and the parts ``added`` on top.

    Without a ``head`` the stack is dropped.
    """

    key_group: int
    head: Head | None
    keep: int = 0
    added: tuple[StackedPart, ...] = ()

    @classmethod
    def between(cls, key_group: int, former: Stack | None, stack: Stack) -> "Change":
        """Return the change that makes ``stack`` of the ``former`` stack."""
        keep = 0
        if former is not None:
            keep = len(former.parts)
            if stack.parts[:keep] != former.parts:
                pairs = zip(former.parts, stack.parts, strict=False)
                keep = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return cls(key_group, stack.head, keep, stack.parts[keep:])


class Listing:
    """The stacks of a store, and counts of the parts and files that they use. A published listing never changes.

    ``files`` counts the parts by file, ``heads`` the stacks by head. ``part_count`` and ``size_bytes`` are the number
    and the bytes of all parts.
    """

    __slots__ = ("files", "heads", "part_count", "size_bytes", "stacks")

    def __init__(self) -> None:
        """Create a listing without stacks."""
        self.stacks: dict[int, Stack] = {}
        self.files: dict[str, int] = {}
        self.heads: dict[Head, int] = {}
        self.part_count = 0
        self.size_bytes = 0

    def with_changes(self, changes: Iterable[Change]) -> "Listing":
        """Return a listing with these changes. Raises ``ValueError`` if they do not fit the present stacks."""
        listing = self.copy()
        listing._apply(changes)
        return listing

    def copy(self) -> "Listing":
        """Return a copy, which may still be changed."""
        listing = Listing()
        listing.stacks = self.stacks.copy()
        listing.files = self.files.copy()
        listing.heads = self.heads.copy()
        listing.part_count = self.part_count
        listing.size_bytes = self.size_bytes
        return listing

    def all_changes(self) -> list[Change]:
        """Return the changes that make an empty listing this one."""
        return [Change(key_group, stack.head, 0, stack.parts) for key_group, stack in self.stacks.items()]

    def entry_bytes(self) -> int:
        """Return the approximate length of one entry with all stacks."""
        texts = len(self.files) + len(self.heads)
        return len(self.stacks) * _CHANGE.size + self.part_count * _PART.size + texts * _TEXT_BYTES

    def _apply(self, changes: Iterable[Change]) -> None:
        """Change this listing. Raises ``ValueError``, and changes nothing, if the changes do not fit."""
        replaced = [(change, self.stacks.get(change.key_group)) for change in changes]
        for change, former in replaced:
            if change.keep > (0 if former is None else len(former.parts)):
                raise ValueError(f"key-group {change.key_group} has fewer than {change.keep} parts")
        for change, former in replaced:
            kept_parts: tuple[StackedPart, ...] = ()
            if former is not None:
                self._count_head(former.head, -1)
                kept_parts = former.parts[: change.keep]
                for part in former.parts[change.keep :]:
                    self._count_part(part, -1)
            for part in change.added:
                self._count_part(part, 1)
            if change.head is None:
                self.stacks.pop(change.key_group, None)
            else:
                self._count_head(change.head, 1)
                self.stacks[change.key_group] = Stack(change.head, kept_parts + change.added)

    def _count_part(self, part: StackedPart, sign: int) -> None:
        """Add a part to the counts, or remove it if ``sign`` is -1."""
        self.part_count += sign
        self.size_bytes += sign * part.length
        count = self.files.get(part.file, 0) + sign
        if count:
            self.files[part.file] = count
        else:
            del self.files[part.file]

    def _count_head(self, head: Head, sign: int) -> None:
        """Add a stack's head to the counts, or remove it if ``sign`` is -1."""
        count = self.heads.get(head, 0) + sign
        if count:
            self.heads[head] = count
        else:
            del self.heads[head]


def first_seed(store: str) -> int:
    """Return the seed of the checksum of the first entry in a journal of this store."""
    # The folder may have a foreign name.
    return xxhash.xxh3_64_intdigest(store.encode(errors="surrogateescape"), _FORMAT)


def encode_entry(changes: Sequence[Change], seed: int) -> tuple[bytes, int]:
    """Return an entry's bytes, and its checksum, which is the seed of the next entry."""
    texts: dict[str, int] = {}
    change_rows: list[bytes] = []
    part_rows: list[bytes] = []
    for key_group, head, keep, added in changes:
        if head is None:
            change_rows.append(_CHANGE.pack(key_group, 0, texts.setdefault("", len(texts)), _DROPPED, 0))
            continue
        attempt = texts.setdefault(head.attempt, len(texts))
        change_rows.append(_CHANGE.pack(key_group, head.version, attempt, keep, len(added)))
        part_rows += [_PART.pack(texts.setdefault(part.file, len(texts)), *part[1:]) for part in added]
    text = "\n".join(texts).encode()
    counts = _COUNTS.pack(len(text), len(change_rows), len(part_rows))
    body = b"".join((counts, text, *change_rows, *part_rows))
    checksum = xxhash.xxh3_64_intdigest(body, seed)
    return _FRAME.pack(checksum, len(body)) + body, checksum


def read_entries(data: bytes, listing: Listing, seed: int) -> tuple[Listing, int, int]:
    """Apply the entries in ``data`` up to the first that is torn or damaged.

    ``seed`` is the checksum of the entry before ``data``. Return the new listing, where the last valid entry ends in
    ``data``, and its checksum.
    """
    listing = listing.copy()
    end = 0
    while end + _FRAME.size < len(data):
        checksum, length = _FRAME.unpack_from(data, end)
        start = end + _FRAME.size
        body = memoryview(data)[start : start + length]
        if len(body) != length or xxhash.xxh3_64_intdigest(body, seed) != checksum:
            break
        try:
            listing._apply(_decode_body(bytes(body)))
        except (struct_error, *UNREADABLE):
            break
        end = start + length
        seed = checksum
    return listing, end, seed


def _decode_body(body: bytes) -> list[Change]:
    """Return the changes in an entry's body. Raises an error of ``UNREADABLE``, or ``struct.error``, if it has none."""
    text_bytes, change_count, part_count = _COUNTS.unpack_from(body)
    changes_start = _COUNTS.size + text_bytes
    parts_start = changes_start + change_count * _CHANGE.size
    if len(body) != parts_start + part_count * _PART.size:
        raise ValueError("an entry has another length than its counts")
    texts = body[_COUNTS.size : changes_start].decode().split("\n")
    added = _decode_parts(body[parts_start:], texts)
    changes = []
    for key_group, version, attempt, keep, added_count in _CHANGE.iter_unpack(body[changes_start:parts_start]):
        if keep == _DROPPED:
            changes.append(Change(key_group, None))
            continue
        changes.append(Change(key_group, Head(version, texts[attempt]), keep, tuple(islice(added, added_count))))
        if keep < 0 or len(changes[-1].added) != added_count:
            raise ValueError("an entry has impossible counts")
    if next(added, None) is not None:
        raise ValueError("an entry has parts of no key-group")
    if not all(map(is_possible, {change.head or EMPTY_HEAD for change in changes})):
        raise ValueError("an entry has an impossible head")
    if len({change.key_group for change in changes}) != len(changes):
        raise ValueError("an entry changes a key-group twice")
    return changes


def _decode_parts(rows: bytes, texts: Sequence[str]) -> Iterator[StackedPart]:
    """Yield the parts of an entry. Raises ``ValueError`` for an unsafe file name."""
    is_safe = [FILE.match(text) is not None for text in texts]
    for file, *numbers in _PART.iter_unpack(rows):
        if not is_safe[file]:
            raise ValueError(f"unsafe file name {texts[file]!r}")
        yield StackedPart(texts[file], *numbers)
