"""The message of the first version of a store: an order from the driver to the tasks that write its snapshots."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from riffle_spark.messages.slot_orders import Home, reading

ANSWER_COLUMNS: Final = (
    "key_group int, snapshot_id string, length long, checksum string, rows long, timer_ms long, state_rows long"
)
"""The columns of the tasks' answers as DDL: one row per key-group, as ``WrittenKeyGroup``."""


@dataclass(frozen=True, slots=True)
class FirstVersionOrder:
    """The order to write the snapshots of a store.

    ``schema`` is the store's schema as recorded text. ``total`` is the number of key-groups. The snapshots are of
    ``version`` and have ``epoch`` in their names.
    """

    home: Home
    store: str
    schema: Mapping[str, str]
    total: int
    version: int
    epoch: int

    def to_json(self) -> str:
        """Return the message as one line of JSON."""
        return json.dumps([self.home.to_json(), self.store, dict(self.schema), self.total, self.version, self.epoch])

    @classmethod
    def from_json(cls, text: str) -> "FirstVersionOrder":
        """Return the message that ``to_json`` wrote. Raises ``ConflictError`` for any other text."""
        with reading("the order of a first version"):
            home, store, schema, total, version, epoch = json.loads(text)
            return cls(Home.from_json(home), str(store), dict(schema), int(total), int(version), int(epoch))


@dataclass(frozen=True, slots=True)
class WrittenKeyGroup:
    """A snapshot that a task wrote: key-group, id, bytes, checksum (XXH3-64), rows, and earliest due time (ms).

    ``state_rows`` counts state rows as a batch does (``StateRows``): sessions and not keys, for example.
    """

    key_group: int
    snapshot_id: str
    length: int
    checksum: int
    rows: int
    timer_ms: int | None
    state_rows: int
