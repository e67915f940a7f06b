"""Where a variable's elements lie in a local copy. Knows the bytes of a stored key. Does not know values or files.

A stored key is the key as ``keycodec`` writes it, one byte with the variable's number, and the element: nothing for a
value, 8 bytes big-endian for a list's index, the encoded key of a map, 8 bytes for a timer's due time. A key, or a
map's key, of more than 240 bytes is cut: to the mark ``FF``, which no encoded key begins with, its first 200 bytes and
a digest. So no stored key is longer than a key-value file takes, none can be taken for another, and all that a key
holds, and all that one variable of it holds, is a range. Cut keys come last; whole ones in the order of their values.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import Bytes, Mask, Offsets, binary_column, byte_slices, pick_slices, positions_of
from riffle_spark.state.formats.key_codec import decode_beginnings
from riffle_spark.state.formats.row_layout import unreadable

__all__ = [
    "NO_DUE", "WORD_BYTES", "Dues", "Parsed", "cut_key", "cut_keys", "cut_length", "due_bytes", "due_key", "due_of",
    "dues_of", "index_bytes", "index_of", "numbers_of", "parsed", "stored_keys", "whole_keys",
]  # fmt: skip

KEY_BYTES_MAX: Final = 240
"""Keys of a group or a map up to here are stored as they are: two of them and a byte fit a local key-value file."""
CUT_BYTES: Final = 200
DIGEST_BYTES: Final = 32
CUT_MARK: Final = b"\xff"
NO_DUE: Final = -(2**63)
"""The due time of what is never due: as bytes, all zero."""

Dues = npt.NDArray[np.int64]

_WORD = struct.Struct(">Q")
_TURN = 1 << 63
WORD_BYTES: Final = 8


class Parsed(NamedTuple):
    """What whole stored keys say: the key's columns and its bytes' length, the variable's number, the element."""

    columns: list[pa.Array]
    lengths: Offsets
    numbers: npt.NDArray[np.uint8]
    elements: pa.Array


def cut_key(encoded: bytes) -> bytes:
    """Return a key of a group or a map as it is stored."""
    if len(encoded) <= KEY_BYTES_MAX:
        return encoded
    return CUT_MARK + encoded[:CUT_BYTES] + hashlib.blake2b(encoded, digest_size=DIGEST_BYTES).digest()


def cut_keys(encoded: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Return keys as they are stored; the very array if none is cut."""
    long = np.diff(byte_slices(encoded)[1]) > KEY_BYTES_MAX
    if not bool(long.any()):
        return encoded
    cut = [cut_key(key) for key in encoded.filter(pa.array(long)).to_pylist()]
    return pc.replace_with_mask(encoded, pa.array(long), pa.array(cut, pa.large_binary()))


def cut_length(length: int) -> int:
    """Return how many bytes are stored of a key of a group or a map that has so many."""
    return length if length <= KEY_BYTES_MAX else len(CUT_MARK) + CUT_BYTES + DIGEST_BYTES


def whole_keys(groups: pa.Array, number: int, elements: pa.Array) -> pa.Array:
    """Return the whole stored keys of one variable's elements: keys, number and elements put together."""
    middle, nothing = pa.scalar(bytes([number]), pa.large_binary()), pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(groups, middle, elements, nothing)


def stored_keys(whole: pa.LargeBinaryArray, group_lengths: Offsets) -> pa.LargeBinaryArray:
    """Return whole stored keys as they are stored; the very array if none is cut."""
    lengths = np.diff(byte_slices(whole)[1])
    long = (group_lengths > KEY_BYTES_MAX) | (lengths - group_lengths - 1 > KEY_BYTES_MAX)
    if not bool(long.any()):
        return whole
    pairs = zip(whole.filter(pa.array(long)).to_pylist(), group_lengths[long].tolist(), strict=True)
    cut = [cut_key(key[:end]) + key[end : end + 1] + cut_key(key[end + 1 :]) for key, end in pairs]
    return pc.replace_with_mask(whole, pa.array(long), pa.array(cut, pa.large_binary()))


def parsed(whole: pa.LargeBinaryArray, types: Sequence[pa.DataType]) -> Parsed:
    """Take whole stored keys apart. Raises ``CorruptStateError`` for what is none."""
    columns, lengths = decode_beginnings(whole, types)
    data, offsets = byte_slices(whole)
    at = offsets[:-1] + lengths
    if bool((at >= offsets[1:]).any()):
        raise unreadable("a stored key tells no variable")
    return Parsed(columns, lengths, data[at], pick_slices(data, at + 1, offsets[1:]))


def index_of(stored: bytes) -> int:
    """Return the number of a list's element from its stored key."""
    index: int = _WORD.unpack(stored[-WORD_BYTES:])[0]
    return index


def due_key(due_ms: int) -> bytes:
    """Return a time as bytes that sort as times do: what follows the timers' prefix, and what a value begins with."""
    return _WORD.pack(due_ms + _TURN)


def due_of(data: bytes) -> int:
    """Return the time at the beginning of the bytes."""
    due: int = _WORD.unpack_from(data)[0]
    return due - _TURN


def index_bytes(indexes: Offsets, valid: Mask) -> pa.Array:
    """Return what follows a list's prefix for each number of an element, and nothing where it is not valid."""
    return _words(indexes.view(np.uint64), valid)


def due_bytes(dues: Dues, valid: Mask) -> pa.Array:
    """Return ``due_key`` of each, and nothing where it is not valid."""
    return _words(dues.view(np.uint64) ^ np.uint64(_TURN), valid)


def numbers_of(elements: pa.Array) -> Offsets:
    """Return the numbers of a list's elements, out of what follows its prefix."""
    data, offsets = byte_slices(elements)
    if bool((np.diff(offsets) != WORD_BYTES).any()):
        raise unreadable("an element of a list has no index")
    return _read_words(data, offsets[:-1]).view(np.int64)


def dues_of(array: pa.Array) -> Dues:
    """Return the times at the beginning of each."""
    data, offsets = byte_slices(array)
    if bool((np.diff(offsets) < WORD_BYTES).any()):
        raise unreadable("a due time is missing")
    return (_read_words(data, offsets[:-1]) ^ np.uint64(_TURN)).view(np.int64)


def _words(values: npt.NDArray[np.uint64], valid: Mask) -> pa.Array:
    return binary_column(values[valid].astype(">u8"), positions_of(valid * WORD_BYTES))


def _read_words(data: Bytes, starts: Offsets) -> npt.NDArray[np.uint64]:
    rows = data[starts[:, None] + np.arange(WORD_BYTES)]
    words: npt.NDArray[np.uint64] = rows.reshape(-1).view(">u8").astype(np.uint64)
    return words
