"""Put a record under its number exactly once. If the answer is lost, find out which driver's record has the number.

Records are also read here. Bytes that are damaged in transit are fetched again.
"""

from pathlib import Path
from typing import NamedTuple

from riffle_spark.errors import ConfigError, CorruptStateError, FencedError, UnavailableError
from riffle_spark.state.log import paths
from riffle_spark.state.log.record import Record, decode, is_record
from riffle_spark.state.objects.store import ObjectStore, overwrite_error

RECORD_BYTES_MAX = 1 << 29
_TRIES = 5


class FetchedRecord(NamedTuple):
    """A record and its bytes."""

    record: Record
    data: bytes


def fetch_record(store: ObjectStore, name: str, *, changed_only: bool = False) -> FetchedRecord | None:
    """Return the record with this object name, or ``None`` if it does not exist.

    ``decode`` describes ``changed_only``. Bytes that cannot be read are fetched once more, because they may have been
    damaged in transit. Raises ``CorruptStateError`` if these cannot be read either.
    """
    try:
        return _fetch_record_once(store, name, changed_only=changed_only)
    except CorruptStateError:
        return _fetch_record_once(store, name, changed_only=changed_only)


def _fetch_record_once(store: ObjectStore, name: str, *, changed_only: bool) -> FetchedRecord | None:
    """Return the record with this object name as ``fetch_record`` does, but with a single GET."""
    data = store.get(name, 0, RECORD_BYTES_MAX)
    return None if data is None else FetchedRecord(decode(data, name, changed_only=changed_only), data)


def check_folder_has_log(root: str, sequence: int) -> None:
    """Raise ``UnavailableError`` if ``root`` is a folder without a log on this host, although a record was written.

    ``sequence`` is the number of that record. A put would create the missing folders on this host alone, so call this
    first. Sends no request.
    """
    if not root.startswith("file:"):
        return
    folder = Path("/", root.removeprefix("file:").lstrip("/"))  # file:///path and file:/path are the same
    try:
        if (folder / paths.record_name(sequence)).exists() or any((folder / paths.LOG).iterdir()):
            return
    except FileNotFoundError:
        pass
    except OSError:
        return  # the next call of the store raises the error
    # Cause: The shared file system is not mounted on this host, or it was unmounted, or the folder was moved.
    raise UnavailableError(
        f"The folder of the root has no log on this host, but record {sequence} was written.",
        remedy="Mount the shared folder on this host and on each other host with an executor, or restore the folder. "
        "Then start the query again.",
        where=root,
        id="RIFFLE-1820",
    )


class RecordCommits:
    """Puts and gets the records of a root."""

    def __init__(self, store: ObjectStore, root: str) -> None:
        self._store = store
        self._root = root

    def get(self, name: str) -> bytes | None:
        """Return the bytes of the record with this object name, or ``None`` if it does not exist."""
        return self._store.get(name, 0, RECORD_BYTES_MAX)

    def fetch(self, name: str) -> FetchedRecord | None:
        """Return the record with this object name, or ``None`` if it does not exist.

        Damaged bytes are fetched once more. Raises ``CorruptStateError`` if they are damaged again.
        """
        return fetch_record(self._store, name)

    def put(self, record: Record, data: bytes) -> None:
        """Put a record if its number is free.

        Raises ``FencedError`` if another record has the number, ``UnavailableError`` if that stays unknown.
        """
        name = paths.record_name(record.sequence)
        damaged: bytes | None = None
        failure: ConfigError | UnavailableError | None = None
        for _ in range(_TRIES):
            try:
                if self._store.put_if_absent(name, data):
                    return
                stored = self.get(name)
            except (ConfigError, UnavailableError) as error:
                if failure is None and isinstance(error, ConfigError):
                    raise  # without a lost answer before it, a refusal means that nothing was put
                failure = error
                continue
            if stored == data:
                return
            # Bytes that are not a record may be damaged in transit, so they count only if they arrive twice.
            if stored is not None and (stored == damaged or is_record(stored, name)):
                raise self.fenced_error(record)
            damaged = stored
        first = failure.remedy if isinstance(failure, ConfigError) else "Make the store reachable."
        # Cause: The store stopped answering during the commit.
        raise UnavailableError(
            f"It is unknown whether record {record.sequence} was committed to {self._root}.",
            remedy=f"{first} Then restart the query: it reads the record before it runs a batch.",
            where=name,
            id="RIFFLE-0421",
        ) from failure

    def check_store_refuses(self, record: Record, data: bytes) -> None:
        """Put an existing record again, and raise ``ConfigError`` if the store overwrites it.

        Fencing needs a store that refuses the second put of a name. If the second put succeeds, either the store
        overwrites objects, or another driver has continued and swept the record. In the second case later records
        exist.
        """
        name = paths.record_name(record.sequence)
        failure: UnavailableError | None = None
        for _ in range(_TRIES):
            try:
                was_put = self._store.put_if_absent(name, data)
                has_later = (was_put or failure) and any(later > name for later in self._store.list(paths.LOG))
            except UnavailableError as error:
                failure = error
                continue
            if was_put and has_later:
                self._store.delete([name])
            if has_later:
                raise self.fenced_error(record)
            if not was_put:
                return
            raise overwrite_error(self._store, f"{self._root} ({name})")
        assert failure is not None
        raise failure

    def fenced_error(self, record: Record) -> FencedError:
        """Return the error for a record whose number is that of another driver's record."""
        # Cause: A second driver was started on this root, or a command with --execute ran on it.
        return FencedError(
            f"Another driver appended record {record.sequence} to {self._root}.",
            remedy="Stop this query: a newer driver owns its state.",
            where=paths.record_name(record.sequence),
            id="RIFFLE-0422",
        )
