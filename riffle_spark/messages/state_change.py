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
    """A change whose delta was put, but is not listed in the log yet.

    ``entries`` list the delta. ``row_counts`` and ``edit`` are the fields of the record that will store these entries.
    ``edit`` still lacks the name of the operator.
    """

    entries: Mapping[Address, Entry]
    row_counts: Mapping[str, int]
    edit: Mapping[str, object]


EditState: TypeAlias = Callable[[ObjectStore, Home, Record, Manifest, str, Mapping[str, object]], StateChange]
"""Puts the delta of a requested change. The record is the newest one, and the text names the attempt. The last argument
has the arguments of the request. Raises ``ConfigError``, whose text has no keys or values, and an error of
``UNREADABLE`` for arguments of other types.
"""
