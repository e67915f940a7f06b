"""Gather facts about services: the object store below a root, and Kafka's brokers."""

import time
import uuid
from collections.abc import Callable, Sequence

from riffle_spark.errors import RiffleError, UnavailableError
from riffle_spark.offline.doctor.facts import KafkaFacts, StoreFacts
from riffle_spark.offline.kafka_client import accepts_connections, administrator
from riffle_spark.state.log import paths
from riffle_spark.state.objects.store import DatedStore, ObjectStore

_FIRST = b"riffle doctor"
_SECOND = b"riffle doctor overwrote its own object"
_TIMEOUT_SECONDS = 5.0


class _ProbeError(Exception):
    """The store answered with a wrong result."""


def store_facts(store: ObjectStore) -> StoreFacts:
    """Put, put again, read, list and delete an object below the root.

    The object has the name of a delta that no record lists. If this process is killed, the next driver deletes it.
    """
    name = paths.delta_name(0, f"0-{uuid.uuid4().hex}")
    probe = _Probe(store, name)
    for step, run in probe.steps.items():
        try:
            run()
        except _ProbeError as error:
            return probe.failed(step, str(error), "Use a store that is consistent after each write.")
        except RiffleError as error:
            return probe.failed(step, error.problem, error.remedy, not isinstance(error, UnavailableError))
        probe.succeeded_steps.append(step)
    return StoreFacts(tuple(probe.succeeded_steps), overwrites=probe.overwrites, clock_ahead_seconds=probe.ahead)


class _Probe:
    """The operations on one probe object, and their results so far."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        """Prepare the steps of a check of ``store`` with an object of this ``name``. Nothing is sent yet."""
        self._store = store
        self._name = name
        self.succeeded_steps: list[str] = []
        self.overwrites = False
        self.ahead: float | None = None
        self.steps: dict[str, Callable[[], None]] = {
            "put": self._put,
            "conditional put": self._put_again,
            "read": self._read,
            "list": self._list,
            "delete": self._delete,
        }

    def failed(self, step: str, problem: str, remedy: str, is_reachable: bool = True) -> StoreFacts:
        """Return the facts after a failed step. Try to delete the object."""
        left_over = ""
        if self.succeeded_steps:
            try:
                self._store.delete([self._name])
            except RiffleError:
                left_over = self._name
        return StoreFacts(
            tuple(self.succeeded_steps),
            step,
            problem,
            remedy,
            is_reachable,
            self.overwrites,
            self.ahead,
            left_over=left_over,
        )

    def _put(self) -> None:
        """Put the object, and compare the store's clock with this machine's."""
        before = time.time()
        self._store.put_if_absent(self._name, _FIRST)
        self.ahead = _clock_ahead(self._store, self._name, before, time.time())

    def _put_again(self) -> None:
        """Put other bytes under the same name, which the store has to refuse."""
        self.overwrites = self._store.put_if_absent(self._name, _SECOND)

    def _read(self) -> None:
        """Read the object. Raise ``_ProbeError`` if it has other bytes."""
        data = self._store.get(self._name)
        if data not in (_FIRST, _SECOND):
            raise _ProbeError("The object that was just written cannot be read.")
        self.overwrites = self.overwrites or data != _FIRST

    def _list(self) -> None:
        """List the object. Raise ``_ProbeError`` if it is missing."""
        folder, slash, _ = self._name.rpartition("/")  # directory buckets list only folders
        if self._name not in self._store.list(folder + slash):
            raise _ProbeError("The object that was just written is not listed.")

    def _delete(self) -> None:
        """Delete the object. Raise ``_ProbeError`` if it still exists."""
        self._store.delete([self._name])
        if self._store.exists(self._name):
            raise _ProbeError("The object still exists after its deletion.")


def _clock_ahead(store: ObjectStore, name: str, before: float, after: float) -> float | None:
    """Return by how many seconds the store's clock is ahead, ``None`` if it is unknown.

    It is 0 if the time of the put fits between ``before`` and ``after``. Stores round times down to a second.
    """
    try:
        modified_ms = store.modified(name) if isinstance(store, DatedStore) else None
    except RiffleError:
        modified_ms = None  # without the right to read; the next steps report it
    if modified_ms is None:
        return None
    return modified_ms - after if modified_ms > after else min(0.0, modified_ms + 1 - before)


def kafka_facts(servers: Sequence[str]) -> KafkaFacts:
    """Connect to each server, and to each broker that the cluster advertises."""
    connected_servers = tuple(server for server in servers if accepts_connections(server, _TIMEOUT_SECONDS))
    refused_servers = tuple(server for server in servers if server not in connected_servers)
    if not connected_servers:
        return KafkaFacts((), refused_servers)
    try:
        with administrator(connected_servers, _TIMEOUT_SECONDS) as admin:
            brokers = tuple(f"{broker['host']}:{broker['port']}" for broker in admin.describe_cluster()["brokers"])
    except Exception as error:  # noqa: BLE001 - Kafka's client raises errors of many kinds
        return KafkaFacts(connected_servers, refused_servers, problem=str(error) or type(error).__name__)
    lost = tuple(broker for broker in brokers if not accepts_connections(broker, _TIMEOUT_SECONDS))
    return KafkaFacts(connected_servers, refused_servers, brokers, lost)
