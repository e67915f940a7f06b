"""The messages that are not part of a batch: census orders, censuses, upkeep orders and receipts."""

import json
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from riffle_spark.messages.slot_orders import Home, fields_of, json_line, reading, set_fields_of
from riffle_spark.state.log.entry_rows import entries_from_json, newest_links_to_text
from riffle_spark.state.log.manifest import Block, Entry, Head, Link, MergedDelta, Replacement, Snapshot


@dataclass(slots=True)
class Follow:
    """A copy that must reach the head of its entry. The executor adds the missing links, or fetches the copy as a
    whole.

    The entry is whole, or cut at the reported head of the copy. If the copy is at another head, the executor reads the
    whole entry from the log. If ``newest`` is set, the message has only this number of the entry's newest links.

    It is never changed. It is not a frozen dataclass, because the driver creates many per batch.
    """

    store: str
    key_group: int
    entry: Entry
    newest: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the executor gets a whole entry, which starts with a snapshot or without state."""
        return self.newest is None and self.entry.cut is None


@dataclass(frozen=True, slots=True)
class Drop:
    """A copy to remove if it is still at ``head``. ``None``: remove it at any head."""

    store: str
    key_group: int
    head: Head | None


@dataclass(frozen=True, slots=True)
class SnapshotOrder:
    """A key-group of a store to snapshot, at its entry's head or at the newer head of its copy."""

    store: str
    key_group: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class MergeOrder:
    """The links of a key-group to merge: all links of the cut ``entry``. The result has this ``level``.

    Successive orders of one store and level may become one merged delta.
    """

    store: str
    key_group: int
    entry: Entry
    level: int


@dataclass(frozen=True)
class UpkeepOrder:
    """An order for one piece of upkeep. The executor runs the most urgent work first: drops, follows, merges,
    snapshots.

    ``member`` names the folder; if it is empty, the executor uses the folder that it has. ``sequence`` is the number of
    the record with the entries. ``schemas`` are the schemas of the stores in the log.

    The piece starts no work after ``seconds``. It fetches at most ``fetch_bytes`` (``None``: no limit). It continues
    partly fetched snapshots of earlier pieces. It starts no copy while the used share of the disk is above
    ``disk_limit``. With ``wipe`` it first removes all copies and files of the member. With ``measure`` alone it only
    measures the disk. The driver cancels a piece that has not ended ``timeout_seconds`` after its ``seconds``.
    """

    home: Home
    member: str
    epoch: int
    sequence: int
    schemas: Mapping[str, Mapping[str, str]]
    drops: tuple[Drop, ...] = ()
    follows: tuple[Follow, ...] = ()
    snapshots: tuple[SnapshotOrder, ...] = ()
    merges: tuple[MergeOrder, ...] = ()
    seconds: float = 1.0
    fetch_bytes: int | None = None
    disk_limit: float = 1.0
    wipe: bool = False
    measure: bool = False
    timeout_seconds: float = 60.0

    @property
    def has_work(self) -> bool:
        """Whether the order has anything to do for the executor."""
        return bool(self.drops or self.follows or self.snapshots or self.merges or self.wipe or self.measure)

    def to_json(self) -> str:
        """Return the order as one line of JSON.

        One list has all entries: those of the follows, then of the snapshots, then of the merges.
        """
        body = fields_of(self)
        body["home"] = self.home.to_json()
        whole: tuple[SnapshotOrder | MergeOrder, ...] = (*self.snapshots, *self.merges)
        entries = [(("", n), follow.entry, follow.newest) for n, follow in enumerate(self.follows)]
        entries += [(("", n), due.entry, None) for n, due in enumerate(whole, len(entries))]
        body["drops"] = [(drop.store, drop.key_group, drop.head) for drop in self.drops]
        body["follows"] = [(follow.store, follow.key_group) for follow in self.follows]
        body["snapshots"] = [(due.store, due.key_group) for due in self.snapshots]
        body["merges"] = [(due.store, due.key_group, due.level) for due in self.merges]
        return f'{{"entries":{newest_links_to_text(entries)},{json_line(body)[1:]}'

    @classmethod
    def from_json(cls, text: str) -> "UpkeepOrder":
        """Return the order that ``to_json`` wrote. Raises ``ConflictError`` for any other text."""
        with reading("an upkeep order"):
            body = json.loads(text)
            entries = list(entries_from_json(body.pop("entries")).values())
            body["home"] = Home.from_json(body["home"])
            body["drops"] = tuple(Drop(store, kg, head and Head(*head)) for store, kg, head in body["drops"])
            rest = deque(entries)
            body["follows"] = tuple(Follow(store, kg, rest.popleft()) for store, kg in body["follows"])
            body["snapshots"] = tuple(SnapshotOrder(store, kg, rest.popleft()) for store, kg in body["snapshots"])
            body["merges"] = tuple(MergeOrder(store, kg, rest.popleft(), level) for store, kg, level in body["merges"])
            if rest:
                raise ValueError("entries without orders")
            return cls(**body)


@dataclass(frozen=True, slots=True)
class UpkeepReceipt:
    """The results of a piece of upkeep.

    Attributes:
        copies: (store, key-group, version, attempt) of copies that are now at this head.
        missing: the copies that do not exist.
        damaged: the missing copies that were removed because a file was damaged.
        unfinished: (store, key-group, bytes fetched, bytes to fetch).
        failed: the unfinished copies that had an error or must not be started.
        snapshots: the snapshots that were written. ``failed_snapshots`` failed.
        merges: the merged deltas that were written. ``failed_merges`` failed.
        drops_left: the number of drops that were not started, which are the last ones of the order.
            ``snapshots_left`` and ``merges_left`` are the same for snapshots and merges.
        merge_bytes: the bytes that were fetched for merges.
        ran: whether the piece ran. If not, ``errors`` explain why.
        overdue: whether the driver cancelled the piece. Its outcome is then unknown.
        disk: as in a slot's receipt, like ``memory``.
    """

    executor: str
    member: str = ""
    copies: tuple[tuple[str, int, int, str], ...] = ()
    missing: tuple[tuple[str, int], ...] = ()
    damaged: tuple[tuple[str, int], ...] = ()
    unfinished: tuple[tuple[str, int, int, int], ...] = ()
    snapshots: tuple[tuple[str, int, Snapshot], ...] = ()
    merges: tuple[tuple[str, int, Replacement], ...] = ()
    failed: tuple[tuple[str, int], ...] = ()
    failed_snapshots: tuple[tuple[str, int], ...] = ()
    failed_merges: tuple[tuple[str, int], ...] = ()
    ran: bool = True
    overdue: bool = False
    drops_left: int = 0
    snapshots_left: int = 0
    merges_left: int = 0
    snapshot_bytes: int = 0
    delta_bytes: int = 0
    merge_bytes: int = 0
    restores: int = 0
    folds: int = 0
    requests: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    disk: tuple[float, int] = (0.0, 0)
    memory: tuple[int, int] = (0, 0)
    errors: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the receipt as one line of JSON, without the fields that have their default value."""
        return json_line(set_fields_of(self))

    @classmethod
    def from_json(cls, text: str) -> "UpkeepReceipt":
        """Return the receipt that ``to_json`` wrote. Raises ``ConflictError`` for any other text."""
        with reading("an upkeep receipt"):
            body = json.loads(text)
            for name in body.keys() & _TUPLES_OF_TUPLES:
                body[name] = tuple(map(tuple, body[name]))
            for name in body.keys() & {"errors", "disk", "memory"}:
                body[name] = tuple(body[name])
            snapshots = (
                (store, kg, Snapshot(snap[0], Head(*snap[1]), *snap[2:]))
                for store, kg, snap in body.get("snapshots", ())
            )
            shared: dict[Hashable, Any] = {}
            merges = (
                (store, kg, _replacement(since, link, shared)) for store, kg, (since, link) in body.get("merges", ())
            )
            return cls(**{**body, "snapshots": tuple(snapshots), "merges": tuple(merges)})


_TUPLES_OF_TUPLES = frozenset(
    ("copies", "missing", "damaged", "unfinished", "failed", "failed_snapshots", "failed_merges")
)


def _replacement(since: list[Any], link: list[Any], shared: dict[Hashable, Any]) -> Replacement:
    """Return the replacement in two JSON arrays. Raises ``TypeError`` for arrays of other lengths.

    Equal heads, merged deltas and blocks become one object. ``shared`` collects these objects.
    """
    head, start, length, checksum, rows, merged, block = link
    parts: tuple[Any, ...] = (Head(*since), Head(*head), MergedDelta(*merged), block and Block(*block))
    first, last, merged_delta, stored = [shared.setdefault(part, part) for part in parts]
    return Replacement(first, Link(last, start, length, checksum, rows, merged_delta, stored))


def overdue_receipt(executor: str, seconds: float) -> UpkeepReceipt:
    """Return the driver's own receipt for a piece of upkeep that had not ended after ``seconds``.

    The outcome of such a piece is unknown.
    """
    # Cause: The Python worker of the piece hangs, or its disk does not answer.
    warning = (
        f"[RIFFLE-0787] A piece of upkeep had not ended after {seconds:g} s and was cancelled.\n"
        "  What to do: Check the disk and processes of that executor. If they are slow, raise `upkeep_timeout`."
    )
    return UpkeepReceipt(executor, errors=(warning,), ran=False, overdue=True)


@dataclass(frozen=True)
class CensusOrder:
    """A request to an executor for its census: the copies in its folder, its rack, tags, disk and memory.

    Folders of dead executors that were unused for ``folder_cleanup_seconds`` are removed. The driver waits for an
    answer for at most ``timeout_seconds``.
    """

    home: Home
    folder_cleanup_seconds: float = 86_400.0
    timeout_seconds: float = 60.0

    def to_json(self) -> str:
        """Return the order as one line of JSON."""
        body = fields_of(self)
        return json_line({**body, "home": self.home.to_json()})

    @classmethod
    def from_json(cls, text: str) -> "CensusOrder":
        """Return the order that ``to_json`` wrote. Raises ``ConflictError`` for any other text."""
        with reading("a request for a census"):
            body = json.loads(text)
            return cls(**{**body, "home": Home.from_json(body["home"])})


@dataclass(frozen=True, slots=True)
class Census:
    """An executor's answer to a request for its census: the content of its folder.

    ``member`` is the name of the folder. ``copies`` are (store, key-group, version, attempt) of every usable copy,
    ``sealed`` the attempts whose deltas it has as files. ``rack`` and ``tags`` are from the executor's environment.
    ``disk`` and ``memory`` are as in a slot's receipt.
    """

    executor: str
    member: str = ""
    copies: tuple[tuple[str, int, int, str], ...] = ()
    sealed: tuple[str, ...] = ()
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    disk: tuple[float, int] = (0.0, 0)
    memory: tuple[int, int] = (0, 0)
    folders_removed: int = 0
    error: str | None = None

    def to_json(self) -> str:
        """Return the census as one line of JSON."""
        return json_line(self)

    @classmethod
    def from_json(cls, text: str) -> "Census":
        """Return the census that ``to_json`` wrote. Raises ``ConflictError`` for any other text."""
        with reading("a census"):
            body = json.loads(text)
            body.update({name: tuple(body[name]) for name in ("sealed", "disk", "memory")})
            return cls(**{**body, "copies": tuple(map(tuple, body["copies"]))})
