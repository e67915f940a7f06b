"""Seal the changes of an attempt: one object with one part per key-group."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.messages.slot_orders import Order, Part
from riffle_spark.process.blocks.block import NO_STATE_ROWS, StateRows
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.objects.encryption import Keys
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.worker.input import spans_of

__all__ = ["DeadRows", "SealedDelta", "SlotResult", "StateChanges", "seal"]

_OUTPUT_PART = -1


@dataclass(frozen=True, slots=True)
class StateChanges:
    """Rows of a delta in key-group order, with the key-group of each row.

    ``timers`` has the time (ms) at which each key-group is due next, ``None`` for never.
    """

    table: pa.Table
    key_groups: npt.NDArray[np.int32]
    timers: Mapping[int, int | None] = field(default_factory=dict)

    def parts(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield each key-group that changed, with its rows."""
        for key_group, start, end in spans_of(self.key_groups):
            yield key_group, self.table.slice(start, end - start)


class DeadRows(NamedTuple):
    """The number of dead letters, and the class of the error for the first of them."""

    rows: int = 0
    error_class: str | None = None


class SlotResult(NamedTuple):
    """The result of a slot's rows: output, changes and counts.

    ``busy`` has the key-groups that were called one by one, and how long each call took (µs).
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
    """The bytes of a delta and the byte ranges of its parts. ``output`` is the part of the output rows, if sealed.

    ``data`` is empty if nothing changed; then nothing is put.
    """

    name: str
    data: bytes
    parts: tuple[Part, ...]
    output: Part | None

    def put(self, objects: ObjectStore) -> None:
        """Put the object, unless the slot changed nothing.

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
    """Return the delta of an attempt, with the output rows last if they are sealed too.

    ``due`` names the due column, and ``keys`` encrypt the parts. Key-groups in ``lost`` that did not change get a part
    without rows, so that old copies of lost state are behind it and are not used. Parts that one member will read
    are adjacent, so that one ranged GET reads them all; otherwise key-groups ascend.
    """
    changed = dict(changes.parts())
    changed |= {key_group: changes.table.slice(0, 0) for key_group in lost - changed.keys()}
    tables = sorted(changed.items(), key=lambda part: (order.followed_by.get(part[0], ()), part[0]))
    if order.seal_output and output.num_rows:
        tables.append((_OUTPUT_PART, output))
    chunks: list[bytes] = []
    parts: list[Part] = []
    start = 0
    encrypt = keys.new_encryption() if keys is not None else None
    for key_group, table in tables:
        data = part_codec.encode(table, due, packed=True)
        if encrypt is not None:
            if key_group == _OUTPUT_PART:
                place = paths.output_place(order.store, order.version, attempt)
            else:
                place = paths.delta_place(order.store, key_group, order.version, attempt)
            data = encrypt(data, place)
        timer_ms = changes.timers.get(key_group)
        parts.append(Part(key_group, start, len(data), part_codec.checksum(data), table.num_rows, timer_ms))
        chunks.append(data)
        start += len(data)
    output = parts.pop() if parts and parts[-1].key_group == _OUTPUT_PART else None
    return SealedDelta(paths.delta_name(order.version, attempt), b"".join(chunks), tuple(parts), output)
