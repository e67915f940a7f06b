"""Spark's hashes XXH64 and Murmur3, vectorised over columns.

XXH64 follows its published specification. Spark applies it to 4-byte values, 8-byte values and bytes, and uses the hash
of one column as the seed of the next. So each function takes one seed per row. Murmur3 is the 32-bit variant for
integers. Spark partitions slot numbers with it.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

Words: TypeAlias = npt.NDArray[np.uint64]
Positions: TypeAlias = npt.NDArray[np.int64]

P1: Final = np.uint64(0x9E3779B185EBCA87)
P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
P3: Final = np.uint64(0x165667B19E3779F9)
P4: Final = np.uint64(0x85EBCA77C2B2AE63)
P5: Final = np.uint64(0x27D4EB2F165667C5)

SHORT_BYTES_MAX: Final = 31
"""Longer values are hashed row by row: vectorising XXH64's four accumulators would cost more than it saves."""


def hash_ints(values: npt.NDArray[np.uint32], seeds: Words) -> Words:
    """Return XXH64 of each 4-byte value."""
    return _avalanche(_mix_int(seeds + P5 + np.uint64(4), values.astype(np.uint64)))


def hash_longs(values: Words, seeds: Words) -> Words:
    """Return XXH64 of each 8-byte value."""
    return _avalanche(_mix_long(seeds + P5 + np.uint64(8), values))


def hash_bytes(data: npt.NDArray[np.uint8], starts: Positions, lengths: Positions, seeds: Words) -> Words:
    """Return XXH64 of ``data[starts[i] : starts[i] + lengths[i]]`` for each row i."""
    hashes = np.empty(len(starts), dtype=np.uint64)
    short = lengths <= SHORT_BYTES_MAX
    if bool(short.all()):
        return _hash_short(data, starts, lengths, seeds)
    hashes[short] = _hash_short(data, starts[short], lengths[short], seeds[short])
    for row in np.flatnonzero(~short).tolist():
        start = int(starts[row])
        hashes[row] = xxhash.xxh64_intdigest(data[start : start + int(lengths[row])].data, seed=int(seeds[row]))
    return hashes


def _hash_short(data: npt.NDArray[np.uint8], starts: Positions, lengths: Positions, seeds: Words) -> Words:
    """Return XXH64 of windows of fewer than 32 bytes: their 8-byte words, then a 4-byte word, then single bytes."""
    hashes = seeds + P5 + lengths.astype(np.uint64)
    longest = int(lengths.max(initial=0))
    for begin in range(0, longest - 7, 8):
        rows = np.flatnonzero(lengths >= begin + 8)
        hashes[rows] = _mix_long(hashes[rows], _loads(data, starts[rows] + begin, "<u8"))
    rows = np.flatnonzero(lengths & 4)
    hashes[rows] = _mix_int(hashes[rows], _loads(data, starts[rows] + (lengths[rows] & -8), "<u4"))
    for index in (0, 1, 2):
        rows = np.flatnonzero((lengths & 3) > index)
        hashes[rows] = _mix_byte(hashes[rows], data[starts[rows] + (lengths[rows] & -4) + index].astype(np.uint64))
    return _avalanche(hashes)


def _loads(data: npt.NDArray[np.uint8], positions: Positions, kind: str) -> Words:
    """Return the word of NumPy type ``kind`` at each position, whatever its alignment."""
    width = np.dtype(kind).itemsize
    if not len(positions):
        return np.zeros(0, dtype=np.uint64)
    windows: npt.NDArray[np.generic] = np.ndarray((len(data) - width + 1,), dtype=kind, buffer=data, strides=(1,))
    return windows[positions].astype(np.uint64)


def _rotate(values: Words, bits: int) -> Words:
    """Return 64-bit words rotated left."""
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _mix_long(hashes: Words, words: Words) -> Words:
    """Return the hashes after XXH64's round for one 8-byte word each."""
    return _rotate(hashes ^ (_rotate(words * P2, 31) * P1), 27) * P1 + P4


def _mix_int(hashes: Words, words: Words) -> Words:
    """Return the hashes after XXH64's round for one 4-byte word each."""
    return _rotate(hashes ^ (words * P1), 23) * P2 + P3


def _mix_byte(hashes: Words, words: Words) -> Words:
    """Return the hashes after XXH64's round for one byte each."""
    return _rotate(hashes ^ (words * P5), 11) * P1


def _avalanche(hashes: Words) -> Words:
    """Return the hashes after XXH64's final mixing."""
    hashes = (hashes ^ (hashes >> np.uint64(33))) * P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * P3
    return hashes ^ (hashes >> np.uint64(32))


def murmur3_int(values: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
    """Return Spark's ``hash(int)``: Murmur3 x86 32-bit of one 4-byte block, seed 42."""
    block = values.astype(np.int32).view(np.uint32)
    block = _rotate_half(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    hashes = _rotate_half(block ^ np.uint32(42), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashes = hashes ^ np.uint32(4)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (hashes ^ (hashes >> np.uint32(16))).view(np.int32)


def _rotate_half(values: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    """Return 32-bit words rotated left."""
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))
