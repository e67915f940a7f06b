"""Create, list and delete savepoints of a running or stopped query (`riffle savepoint`).

Theory of operation. A running query that reads requests (``control = on``) creates and deletes savepoints itself, by a
request in the mailbox. On a stopped query the command appends a record of kind ``savepoint`` under a higher epoch. It
would fence a driver that still runs. So it is refused unless the query has ended according to its status or to the
caller.
"""

import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Literal

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.offline.command_errors import translated_errors
from riffle_spark.offline.rollback_targets import find_target, parse_target, read_intact
from riffle_spark.offline.root_status import read_status
from riffle_spark.offline.running_log import open_running_log
from riffle_spark.offline.steering import OF_DRIVERS, user_name
from riffle_spark.protocol.batch.stored_requests import read_requests
from riffle_spark.state.log import paths
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import Record
from riffle_spark.state.log.recorded_savepoints import RecordedSavepoint, find_savepoint
from riffle_spark.state.log.savepoints import (
    NewSavepoint,
    check_addition,
    put_savepoint,
    read_savepoint,
    savepoint_objects,
    without_savepoint,
)
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions

_BLOCK = 32
"""Records read at once: a full record of many key-groups has megabytes."""


@dataclass(frozen=True, slots=True)
class SavepointOnRoot:
    """A savepoint with its cost. A damaged savepoint has ``problem``, and its sizes are 0.

    Attributes:
        savepoint: the savepoint.
        objects: how many objects its record lists.
        bytes: the bytes of these objects, up to the last part that the record lists.
        only_objects: how many of them nothing else lists: no retained record and no other savepoint.
        only_bytes: their bytes. They are freed after the savepoint is deleted.
        problem: why the savepoint cannot be read; empty if it can.
    """

    savepoint: RecordedSavepoint
    objects: int = 0
    bytes: int = 0
    only_objects: int = 0
    only_bytes: int = 0
    problem: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the savepoint and its cost as one JSON object."""
        fields = asdict(self)
        savepoint: dict[str, object] = fields.pop("savepoint")
        return {**savepoint, "rollback_to": f"savepoint:{self.savepoint.name}", **fields}


@dataclass(frozen=True, slots=True)
class SavepointCosts:
    """The savepoints of a query, and the objects and bytes that only savepoints keep, each object once."""

    savepoints: tuple[SavepointOnRoot, ...]
    only_objects: int
    only_bytes: int

    def to_json(self) -> dict[str, object]:
        """Return the savepoints and their cost as one JSON object."""
        return {**asdict(self), "savepoints": [savepoint.to_json() for savepoint in self.savepoints]}


class Savepoints:
    """The savepoints of the query below a root, as commands see them.

    ``root`` may also be a shared root with one query. Raises ``ConfigError`` if there is no log.
    """

    def __init__(self, root: str, options: StoreOptions | None = None) -> None:
        """Open the log below the root: sends a LIST and a few GETs."""
        self._options = options or StoreOptions()
        self.root = only_root(root, self._options)
        self._objects = open_store(self.root, self._options)
        self._log, self.tail = open_running_log(self._objects, self.root)

    def is_left_to_driver(self, *, is_stopped: bool) -> bool:
        """Return whether the query's driver has to create or delete a savepoint. Otherwise this process may.

        ``is_stopped`` means that the caller knows that the query has stopped. Raises ``ConfigError`` if the query runs,
        or may run, and its driver does not read requests.
        """
        if is_stopped:
            return False
        state = self._query_state()
        if state == "stopped":
            return False
        if read_requests(self.tail.orders).control:
            return True
        problem = "The query runs" if state == "running" else "It is unknown whether the query has stopped"
        # Cause: Without a request only a record under a higher epoch can change savepoints. It would stop the query.
        raise ConfigError(
            f"{problem}, and its driver does not read requests.",
            remedy='Set control = on (in the running query: job.reconfigure(control="on")), and retry after its next '
            "batch. Or stop the query, and add --stopped.",
            where=self.root,
            id="RIFFLE-1584",
        )

    def _query_state(self) -> Literal["running", "stopped", "unknown"]:
        """Return whether the query runs, by its status."""
        try:
            state = read_status(self.root, self._options)
        except CorruptStateError:
            return "unknown"
        has_started = state.record.epoch > state.facts.epoch and state.record.kind in OF_DRIVERS
        if state.status is None or has_started or state.health in ("silent", "skewed"):
            return "unknown"
        return "stopped" if state.health in ("stopped", "failed") else "running"

    def request_of(self, name: str, version: int | str | None) -> Mapping[str, object]:
        """Return the arguments of a request to keep a batch, or with ``None`` the newest one.

        Raises ``ConfigError`` if the name or the batch cannot be used.
        """
        check_addition(self.tail.savepoints, name)
        if version is None:
            return {"name": name}
        record = self._find(version)
        return {"name": name, "sequence": record.sequence, "commit_id": record.commit_id}

    def _find(self, version: int | str) -> Record:
        """Return the retained record of a batch. Raises ``ConfigError`` if there is none."""
        if parse_target(version).kind == "savepoint":
            raise ConfigError(
                f"{version} is a savepoint already.",
                remedy="Name a batch or a record of the log.",
                where="--version",
                id="RIFFLE-1585",
            )
        return find_target(self._log, self.tail, version)

    def create(self, name: str, version: int | str | None = None) -> RecordedSavepoint:
        """Create a savepoint of a batch, or of the newest one, on a stopped query. A driver that still runs is fenced.

        Raises ``ConfigError`` if it is refused, ``FencedError`` if the query continued during the call. Then nothing
        was created.
        """
        check_addition(self.tail.savepoints, name)
        record = self.tail if version is None else self._find(version)
        with translated_errors(self._log, f"create savepoint {name!r}"):
            user = f"{user_name()}@{socket.gethostname()}"
            new_savepoint = NewSavepoint(name, uuid.uuid4().hex, time.time_ns() // 1_000_000, user)
            savepoint = put_savepoint(self._objects, self._log, record, new_savepoint, self.tail.epoch + 1)
            self._append((*self.tail.savepoints, savepoint))
        return savepoint

    def delete(self, name: str) -> RecordedSavepoint:
        """Delete a savepoint on a stopped query, and return it. A driver that still runs is fenced.

        After its next start the query deletes the objects that only the savepoint kept. Raises ``ConfigError`` if there
        is no savepoint of this name, ``FencedError`` if the query continued during the call.
        """
        savepoint = find_savepoint(self.tail.savepoints, name)
        with translated_errors(self._log, f"delete savepoint {name!r}"):
            self._append(without_savepoint(self.tail.savepoints, savepoint))
        return savepoint

    def _append(self, savepoints: tuple[RecordedSavepoint, ...]) -> None:
        """Append a record with these savepoints under the next epoch. It changes nothing else."""
        draft = replace(
            self.tail,
            kind="savepoint",
            commit_id=uuid.uuid4().hex,
            written_ms=time.time_ns() // 1_000_000,
            epoch=self.tail.epoch + 1,
            target=None,
            savepoints=savepoints,
        )
        self.tail = self._log.append(draft, self._log.manifest)

    def measure(self) -> SavepointCosts:
        """Return all savepoints with their costs, in the order of their creation. Reads all retained records."""
        sizes: dict[str, int] = {}
        objects: dict[str, set[str]] = {}
        problems: dict[str, str] = {}
        for savepoint in self.tail.savepoints:
            try:
                record = read_savepoint(self._objects, savepoint)
            except CorruptStateError as error:
                problems[savepoint.name] = error.problem
                continue
            objects[savepoint.name] = savepoint_objects(record)
            for name, size in object_sizes(record).items():
                sizes[name] = max(size, sizes.get(name, 0))
        retained_names = self._retained_objects() if objects else set()
        only = set[str]().union(*objects.values()) - retained_names
        measured_savepoints = (
            SavepointOnRoot(savepoint, problem=problems[savepoint.name])
            if savepoint.name in problems
            else _measured(savepoint, objects, retained_names, sizes)
            for savepoint in self.tail.savepoints
        )
        return SavepointCosts(tuple(measured_savepoints), len(only), sum(sizes[name] for name in only))

    def _retained_objects(self) -> set[str]:
        """Return the names of all objects that retained records list."""
        records = chain.from_iterable(self._blocks(self.tail.promised))
        return set[str]().union(*self._log.listed_objects(records, self._log.first))

    def _blocks(self, first: int) -> Iterator[Sequence[Record]]:
        """Yield the readable records from ``first`` on, several at once, in their order."""
        for start in range(first, self.tail.sequence + 1, _BLOCK):
            block = read_intact(self._log, range(start, min(start + _BLOCK, self.tail.sequence + 1)))
            yield [block[sequence] for sequence in sorted(block)]


def _measured(
    savepoint: RecordedSavepoint, objects: Mapping[str, set[str]], retained: set[str], sizes: Mapping[str, int]
) -> SavepointOnRoot:
    """Return a savepoint with its cost. ``objects`` are those of each savepoint, ``retained`` those of all records."""
    own_objects = objects[savepoint.name]
    other_savepoints = (names for name, names in objects.items() if name != savepoint.name)
    exclusive_objects = own_objects - retained - set[str]().union(*other_savepoints)
    return SavepointOnRoot(
        savepoint,
        len(own_objects),
        sum(sizes[name] for name in own_objects),
        len(exclusive_objects),
        sum(sizes[name] for name in exclusive_objects),
    )


def object_sizes(record: Record) -> dict[str, int]:
    """Return the size of each object that a whole record lists, up to the last part that the record lists."""
    sizes: dict[str, int] = {}
    links = [link for entry in record.entries.values() for link in entry.chain]
    for link in (*links, *(link for _, link in record.outputs)):
        sizes[link.object] = max(sizes.get(link.object, 0), link.byte_range[1])
    for (store, key_group), entry in record.entries.items():
        if entry.snapshot is not None:
            sizes[paths.snapshot_name(store, key_group, entry.snapshot.id)] = entry.snapshot.length
    return sizes
