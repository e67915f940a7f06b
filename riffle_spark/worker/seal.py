"""Seal the changes of an attempt as one object, and as a local block with the same rows.

If the changes are small, the object is the block. Otherwise it has one part per key-group, so that other members can
read single key-groups. This member reads its local block, which it opens once for all key-groups.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.columns import Offsets, positions_of
from riffle_spark.messages.slot_orders import Order, Part
from riffle_spark.process.blocks.block import NO_STATE_ROWS, StateRows
from riffle_spark.state.formats import blocks, part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Block
from riffle_spark.state.objects.encryption import Encrypt, Keys
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.worker.input import spans_of

_OUTPUT_PART = -1
_BLOCK_BYTES_MAX: Final = 1 << 30
"""A larger delta has no local block, because encryption and Arrow have limits near 2 GiB."""


@dataclass(frozen=True, slots=True)
class StateChanges:
    """Rows of a delta in key-group order, with the key-group of each row.

    ``timers`` has the time (ms) at which each key-group is due next, ``None`` for never. Key-groups in ``whole`` have
    the rows of their whole state.
    """

    table: pa.Table
    key_groups: npt.NDArray[np.int32]
    timers: Mapping[int, int | None] = field(default_factory=dict)
    whole: Set[int] = frozenset()


class DeadRows(NamedTuple):
    """The number of dead letters, and the class of the first one's error."""

    rows: int = 0
    error_class: str | None = None


class SlotResult(NamedTuple):
    """The result of a slot: output, changes and counts.

    ``busy`` has the key-groups for which the user's function was called one by one, and how long each call took (µs).
    """

    output: pa.Table
    changes: StateChanges
    timers_fired: int = 0
    expired: int = 0
    dead: DeadRows = DeadRows()
    busy: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    state_rows: StateRows = NO_STATE_ROWS


@dataclass(frozen=True, slots=True)
class SealedDelta:
    """The bytes of a delta, and the byte ranges of its parts.

    ``data`` is empty if the slot changed nothing. ``output`` is the part with the output rows, ``None`` if they are not
    sealed. ``block`` is the local block file, which is empty without rows or with too large ones. ``stored`` is set if
    the object starts with this block.
    """

    name: str
    data: bytes
    parts: tuple[Part, ...]
    output: Part | None
    block: bytes
    stored: Block | None = None

    def put(self, objects: ObjectStore) -> None:
        """Put the object, unless it is empty.

        The name contains random bytes. So if the object exists, an earlier try of this put wrote it.
        """
        if self.data:
            objects.put_if_absent(self.name, self.data)


def seal(
    order: Order,
    changes: StateChanges,
    output: pa.Table,
    attempt: str,
    due: str | None = None,
    keys: Keys | None = None,
    lost: Set[int] = frozenset(),
) -> SealedDelta:
    """Return the delta of an attempt. The output rows are last in it, if the order seals them.

    ``due`` names the due column, and ``keys`` encrypt the rows. The state of the key-groups in ``lost`` was lost. They
    get a part even without changed rows. So older copies of their state are not at the newest head, and are not used.

    Small changes are one block. Larger changes have a part per key-group. Parts that the same member will read are
    adjacent, so that one ranged GET reads them all.
    """
    counts = {key_group: end - start for key_group, start, end in spans_of(changes.key_groups)}
    key_groups = sorted(counts.keys() | lost)
    starts = positions_of(np.array([counts.get(key_group, 0) for key_group in key_groups], np.int64))
    datas: list[bytes] = []
    rows = block = b""
    if key_groups:
        datas, rows = part_codec.encode_slices(changes.table, starts, due)
    encrypt = keys.new_encryption() if keys is not None else None
    parts: list[Part] = []
    stored = None
    if datas:
        data, parts = _join_parts(order, attempt, key_groups, datas, np.diff(starts).tolist(), encrypt)
        if len(rows) <= _BLOCK_BYTES_MAX:
            block = _make_block_file(order, attempt, keys, rows, starts, parts)
    elif key_groups:
        data = block = _encode_block(order, attempt, keys, rows, np.array(key_groups, np.int32), starts)
        stored = Block(len(block), int(starts[-1]))
        checksum, _ = blocks.checksum_of_block(block)
        for key_group, count in zip(key_groups, np.diff(starts).tolist(), strict=True):
            parts.append(Part(key_group, key_group, stored.share_of(count), checksum, count))
    else:
        data = b""
    timers = changes.timers
    whole = changes.whole
    parts = [part._replace(timer_ms=timers.get(part.key_group), is_whole=part.key_group in whole) for part in parts]
    output_part = None
    if order.seal_output and output.num_rows:
        sealed_output = _encode_output(order, output, attempt, encrypt)
        checksum = part_codec.checksum(sealed_output)
        output_part = Part(_OUTPUT_PART, len(data), len(sealed_output), checksum, output.num_rows)
        data += sealed_output
    return SealedDelta(paths.delta_name(order.version, attempt), data, tuple(parts), output_part, block, stored)


def _join_parts(
    order: Order,
    attempt: str,
    key_groups: Sequence[int],
    datas: Sequence[bytes],
    rows: Sequence[int],
    encrypt: Encrypt | None,
) -> tuple[bytes, list[Part]]:
    """Return the bytes of an object with these parts, encrypted if ``encrypt`` is set, and the parts' byte ranges."""
    if encrypt is not None:
        places = (paths.delta_place(order.store, key_group, order.version, attempt) for key_group in key_groups)
        datas = [encrypt(data, place) for data, place in zip(datas, places, strict=True)]
    sealed = zip(key_groups, datas, rows, strict=True)
    chunks: list[bytes] = []
    parts: list[Part] = []
    start = 0
    for key_group, data, count in sorted(sealed, key=lambda part: (order.followed_by.get(part[0], ()), part[0])):
        parts.append(Part(key_group, start, len(data), part_codec.checksum(data), count))
        chunks.append(data)
        start += len(data)
    return b"".join(chunks), parts


def _encode_output(order: Order, output: pa.Table, attempt: str, encrypt: Encrypt | None) -> bytes:
    """Return the bytes of an attempt's output rows, encrypted if ``encrypt`` is set."""
    data = part_codec.encode(output)
    return data if encrypt is None else encrypt(data, paths.output_place(order.store, order.version, attempt))


def _make_block_file(
    order: Order, attempt: str, keys: Keys | None, rows: bytes, starts: Offsets, parts: Sequence[Part]
) -> bytes:
    """Return the local block of an object with these parts. ``starts`` has the first row of each key-group."""
    in_order = sorted(parts)
    return _encode_block(
        order,
        attempt,
        keys,
        rows,
        np.array([part.key_group for part in in_order], np.int32),
        starts,
        np.array([part.start for part in in_order], np.int64),
        np.array([part.checksum for part in in_order], np.uint64),
    )


def _encode_block(
    order: Order,
    attempt: str,
    keys: Keys | None,
    rows: bytes,
    key_groups: npt.NDArray[np.int32],
    starts: Offsets,
    part_starts: Offsets | None = None,
    part_checksums: npt.NDArray[np.uint64] | None = None,
) -> bytes:
    """Return the block of an attempt, encrypted if there are keys. ``encode_block_file`` describes the arguments."""
    if keys is not None:
        name = paths.sealed_block_name(order.version, attempt)
        rows = keys.new_encryption()(rows, paths.block_place(order.store, name))
    return blocks.encode_block_file(rows, key_groups, starts, part_starts, part_checksums)
