"""What an attempt changed, and sealing it: one object, a part a key-group. Knows parts and their ranges. Does not know
users or copies.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.messages.slot_orders import Order, Part
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.objects.encryption import Keys
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.worker.input import spans_of

__all__ = ["DeadRows", "SealedDelta", "SlotResult", "StateChanges", "seal"]

_OUTPUT_PART = -1


@dataclass(frozen=True, slots=True)
class StateChanges:
    """Rows of a delta in key-group order, and the key-group of each; ``timers`` says when a key-group's earliest timer
    is due from now on (ms).
    """

    table: pa.Table
    key_groups: npt.NDArray[np.int32]
    timers: Mapping[int, int | None] = field(default_factory=dict)

    def parts(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield each key-group that changed, with its rows."""
        for key_group, start, end in spans_of(self.key_groups):
            yield key_group, self.table.slice(start, end - start)


class DeadRows(NamedTuple):
    """How many rows are dead letters, and the class of what was raised for the first of them."""

    rows: int = 0
    told: str | None = None


class SlotResult(NamedTuple):
    """What became of a slot's rows: output, changes, how many timers fired, how many elements or keys expired, how much
    of the output is dead letters, and how long each key-group was ``busy`` where it was called by itself (µs).
    """

    output: pa.Table
    changes: StateChanges
    timers_fired: int = 0
    expired: int = 0
    dead: DeadRows = DeadRows()
    busy: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


@dataclass(frozen=True, slots=True)
class SealedDelta:
    """The bytes of one delta and where its parts lie in them. Empty if nothing changed: then nothing is put."""

    name: str
    data: bytes
    parts: tuple[Part, ...]
    output: Part | None

    def put(self, objects: ObjectStore) -> None:
        """Put the object. No other attempt can have its name, so "exists" can only be this put, answered twice."""
        if self.data:
            objects.put_if_absent(self.name, self.data)


def seal(
    order: Order, changes: StateChanges, output: pa.Table, attempt: str, due: str | None = None,
    keys: Keys | None = None, lost: Set[int] = frozenset(),
) -> SealedDelta:  # fmt: skip
    """Return the delta of one attempt, output rows last if they are to be sealed too. ``due`` names the due column;
    parts are encrypted with ``keys``. Key-groups that were ``lost``, and nothing changed in, have a part without rows:
    who still has what was lost is behind it, and does not go on with that.

    Parts that one member will read lie together, else key-groups ascend: one ranged get takes all, and little else.
    """
    changed = dict(changes.parts())
    changed |= {key_group: changes.table.slice(0, 0) for key_group in lost - changed.keys()}
    tables = sorted(changed.items(), key=lambda part: (order.followed_by.get(part[0], ()), part[0]))
    if order.seal_output and output.num_rows:
        tables.append((_OUTPUT_PART, output))
    chunks: list[bytes] = []
    parts: list[Part] = []
    start, encrypted = 0, keys.new_encryption() if keys is not None else None
    for key_group, table in tables:
        data = part_codec.encode(table, due, packed=True)
        if encrypted is not None:
            if key_group == _OUTPUT_PART:
                place = paths.output_place(order.store, order.version, attempt)
            else:
                place = paths.delta_place(order.store, key_group, order.version, attempt)
            data = encrypted(data, place)
        timer_ms = changes.timers.get(key_group)
        parts.append(Part(key_group, start, len(data), part_codec.checksum(data), table.num_rows, timer_ms))
        chunks.append(data)
        start += len(data)
    output = parts.pop() if parts and parts[-1].key_group == _OUTPUT_PART else None
    return SealedDelta(paths.delta(order.version, attempt), b"".join(chunks), tuple(parts), output)
