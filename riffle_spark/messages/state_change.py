"""A change of state that an operator requested from a running query."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from riffle_spark.messages.slot_orders import Home
from riffle_spark.state.log.manifest import Address, Entry, Manifest
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change whose delta is put and not yet listed.

    ``entries`` list it. ``row_counts`` are those of the record that lists them. ``edit`` is that record's own field of
    this name, without the operator.
    """

    entries: Mapping[Address, Entry]
    row_counts: Mapping[str, int]
    edit: Mapping[str, object]


EditState: TypeAlias = Callable[[ObjectStore, Home, Record, Manifest, str, Mapping[str, object]], StateChange]
"""Puts the delta of a requested change, given the newest record, its manifest, an attempt's name, and the arguments of
the request. Raises ``ConfigError`` without keys or values in its text, and an error of ``UNREADABLE`` for arguments of
other types."""
