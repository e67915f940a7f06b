"""What executors are asked beside the batches, and what they answer: censuses and upkeep. Plain data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from riffle_spark.messages.slot_orders import Home, fields_of, json_line, reading
from riffle_spark.state.log.entry_rows import entries_from_json, entries_to_json
from riffle_spark.state.log.manifest import Entry, Head, Snapshot

__all__ = ["Census", "CensusOrder", "Drop", "Follow", "SnapshotOrder", "UpkeepOrder", "UpkeepReceipt", "given_up"]


@dataclass(frozen=True, slots=True)
class Follow:
    """One copy to bring to its entry's head: it folds what it lacks, or is fetched whole.

    The entry is cut at the head where the driver takes the copy to be, or whole. A copy that turns out to be elsewhere
    takes what the log's record says.
    """

    store: str
    key_group: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class Drop:
    """One copy to remove, if it still is where it was seen: ``head`` is ``None`` for any."""

    store: str
    key_group: int
    head: Head | None


@dataclass(frozen=True, slots=True)
class SnapshotOrder:
    """One key-group of one store to snapshot, at its entry's head or, if its copy is already further on, there."""

    store: str
    key_group: int
    entry: Entry


@dataclass(frozen=True)
class UpkeepOrder:
    """What one executor is to do in one piece, most urgent first: drops, follows, snapshots.

    ``member`` is the folder that is meant (empty: whichever the executor has). The piece begins nothing new after
    ``seconds``, fetches at most ``fetch_bytes`` (``None``: any number) and goes on with a half-fetched snapshot where
    the piece before stopped. No copy is begun while the disk is fuller than ``disk_limit``. ``sequence`` is the record
    that the entries are of, ``schemas`` are the stores' as the log keeps them. ``wipe`` removes all copies and files of
    the member before anything else; ``looks``: how full its disk is, is asked for where there is nothing else to do. A
    piece that has not ended ``timeout_seconds`` after its ``seconds`` is given up.
    """

    home: Home
    member: str
    epoch: int
    sequence: int
    schemas: Mapping[str, Mapping[str, str]]
    drops: tuple[Drop, ...] = ()
    follows: tuple[Follow, ...] = ()
    snapshots: tuple[SnapshotOrder, ...] = ()
    seconds: float = 1.0
    fetch_bytes: int | None = None
    disk_limit: float = 1.0
    wipe: bool = False
    looks: bool = False
    timeout_seconds: float = 60.0

    @property
    def asks(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.drops or self.follows or self.snapshots or self.wipe or self.looks)

    def to_json(self) -> str:
        """Return the order as one line of JSON: entries by their place among follows and snapshots."""
        body = fields_of(self)
        pieces: tuple[Follow | SnapshotOrder, ...] = (*self.follows, *self.snapshots)
        body["home"] = self.home.to_json()
        body["entries"] = entries_to_json({("", at): piece.entry for at, piece in enumerate(pieces)})
        body["drops"] = [(drop.store, drop.key_group, drop.head) for drop in self.drops]
        body["follows"] = [(follow.store, follow.key_group) for follow in self.follows]
        body["snapshots"] = [(due.store, due.key_group) for due in self.snapshots]
        return json_line(body)

    @classmethod
    def from_json(cls, text: str) -> "UpkeepOrder":
        """Return the order that ``to_json`` wrote."""
        with reading("an order of upkeep"):
            body = json.loads(text)
            asked = list(entries_from_json(body.pop("entries")).values())
            body["home"] = Home.from_json(body["home"])
            body["drops"] = tuple(Drop(store, kg, head and Head(*head)) for store, kg, head in body["drops"])
            count = len(body["follows"])
            body["follows"] = tuple(
                Follow(store, kg, entry) for (store, kg), entry in zip(body["follows"], asked[:count], strict=True)
            )
            due = zip(body["snapshots"], asked[count:], strict=True)
            body["snapshots"] = tuple(SnapshotOrder(store, kg, entry) for (store, kg), entry in due)
            return cls(**body)


@dataclass(frozen=True, slots=True)
class UpkeepReceipt:
    """What one piece did. ``copies`` are (store, key-group, version, attempt) of copies that are now at that head,
    ``gone`` those that are not there (any more), ``damaged`` those of them that went because a file of theirs was not
    whole, ``unfinished`` (store, key-group, bytes fetched, bytes to fetch) of those it did not come to the end of or
    did not come to; ``taken`` are snapshots put. ``failed`` are those of the unfinished that something is wrong with or
    that may not be begun, ``failed_snapshots`` those that could not be taken; of drops and snapshots it did not come to
    the last ``drops_left`` and ``snapshots_left``. ``ran``: it came to its work; else ``errors`` say what kept it from
    its folder, or it is ``overdue``: it did not end in its time, and what became of it is not known. ``disk`` is the
    share of the disk that is in use in the end, and the disk's bytes; none where it was not looked at; ``memory`` as in
    a slot's receipt.
    """

    executor: str
    member: str = ""
    copies: tuple[tuple[str, int, int, str], ...] = ()
    gone: tuple[tuple[str, int], ...] = ()
    damaged: tuple[tuple[str, int], ...] = ()
    unfinished: tuple[tuple[str, int, int, int], ...] = ()
    taken: tuple[tuple[str, int, Snapshot], ...] = ()
    failed: tuple[tuple[str, int], ...] = ()
    failed_snapshots: tuple[tuple[str, int], ...] = ()
    ran: bool = True
    overdue: bool = False
    drops_left: int = 0
    snapshots_left: int = 0
    snapshot_bytes: int = 0
    delta_bytes: int = 0
    restores: int = 0
    folds: int = 0
    requests: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    disk: tuple[float, int] = (0.0, 0)
    memory: tuple[int, int] = (0, 0)
    errors: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the receipt as one line of JSON."""
        return json_line(self)

    @classmethod
    def from_json(cls, text: str) -> "UpkeepReceipt":
        """Return the receipt that ``to_json`` wrote."""
        with reading("a receipt of upkeep"):
            body = json.loads(text)
            for name in ("copies", "gone", "damaged", "unfinished", "failed", "failed_snapshots"):
                body[name] = tuple(map(tuple, body[name]))
            taken = ((store, kg, Snapshot(snap[0], Head(*snap[1]), *snap[2:])) for store, kg, snap in body["taken"])
            body.update({name: tuple(body[name]) for name in ("errors", "disk", "memory")})
            return cls(**{**body, "taken": tuple(taken)})


def given_up(executor: str, seconds: float) -> UpkeepReceipt:
    """Return what stands for the receipt of a piece that had not ended after so many seconds."""
    trouble = (
        f"a piece of upkeep had not ended after {seconds:g} s and was given up\n"
        "  What to do: look at that executor's disk and processes; if they are merely slow, raise `upkeep_timeout`"
    )
    return UpkeepReceipt(executor, errors=(trouble,), ran=False, overdue=True)


@dataclass(frozen=True)
class CensusOrder:
    """How to take a census of an executor.

    Folders of dead executors that were unused for ``folder_cleanup_seconds`` are removed. The driver stops waiting for
    an answer after ``timeout_seconds``.
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
        """Return the order that ``to_json`` wrote."""
        with reading("an order of a census"):
            body = json.loads(text)
            return cls(**{**body, "home": Home.from_json(body["home"])})


@dataclass(frozen=True, slots=True)
class Census:
    """What one executor found. ``member`` is the name of its folder, ``copies`` are (store, key-group, version,
    attempt) of every copy that can be used, ``sealed`` the attempts whose deltas lie there as files.

    ``rack`` and ``tags`` are what the executor's environment says, before any setting.
    ``disk`` is the share of its disk that is in use, and the disk's bytes; ``memory`` as in a slot's receipt.
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
        """Return the census that ``to_json`` wrote."""
        with reading("a census"):
            body = json.loads(text)
            body.update({name: tuple(body[name]) for name in ("sealed", "disk", "memory")})
            return cls(**{**body, "copies": tuple(map(tuple, body["copies"]))})
