"""The driver's side of savepoints: create and delete them on request, and carry them from record to record."""

from collections.abc import Callable, Mapping

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ports import Clock
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.log.recorded_savepoints import RecordedSavepoint, find_savepoint
from riffle_spark.state.log.savepoints import NewSavepoint, check_addition, put_savepoint, without_savepoint
from riffle_spark.state.objects.store import ObjectStore


class SavepointRequests:
    """The savepoints of a query as its driver knows them.

    ``current`` are the savepoints that the next record lists. Not thread-safe: the driver calls it from one thread at a
    time.
    """

    def __init__(self, objects: ObjectStore, log: Log, clock: Clock, new_id: Callable[[], str]) -> None:
        """Create it without savepoints. Sends no request."""
        self._objects = objects
        self._log = log
        self._clock = clock
        self._new_id = new_id
        self._epoch: int | None = None
        self.current: tuple[RecordedSavepoint, ...] = ()

    def for_claim(self, tail: Record | None) -> tuple[RecordedSavepoint, ...]:
        """Return the savepoints that a claim after ``tail`` lists.

        They are those of ``tail``. If this driver wrote it, they are the current ones, which no record may list yet.
        """
        if tail is None:
            return ()
        return self.current if tail.epoch == self._epoch else tail.savepoints

    def start(self, claim: Record) -> None:
        """Continue with the savepoints of this driver's claim."""
        self._epoch = claim.epoch
        self.current = claim.savepoints

    def create(self, name: str, user: str, record_id: Mapping[str, object]) -> str:
        """Put the object of a savepoint, so that the next record lists it. Return what it keeps, as a sentence.

        ``record_id`` has the ``sequence`` and the ``commit_id`` of the record to keep. Without them it is the newest
        record. Sends one PUT and up to a few GETs. Raises ``ConfigError`` if the savepoint is refused, other errors of
        this package if a record cannot be read or the store does not answer.
        """
        check_addition(self.current, name)
        tail = self._log.tail
        assert tail is not None, "requests are read after the claim"
        record = tail
        if "sequence" in record_id:
            record = self._read_record(record_id["sequence"], record_id["commit_id"], name)
        new_savepoint = NewSavepoint(name, self._new_id(), self._clock.wall_ms(), user)
        savepoint = put_savepoint(self._objects, self._log, record, new_savepoint, tail.epoch)
        self.current = (*self.current, savepoint)
        return f"The savepoint keeps batch {savepoint.version}."

    def _read_record(self, sequence: object, commit_id: object, name: str) -> Record:
        """Return the record with this number and commit id. Raises ``ConfigError`` if it is gone or another one."""
        if type(sequence) is not int or sequence < 0:
            raise TypeError("sequence")
        record = self._log.find(sequence)
        if record is None or record.commit_id != commit_id:
            # Cause: Retention deleted the record after the command had read it.
            raise ConfigError(
                f"Record {sequence} is no longer in the log.",
                remedy="Choose a newer batch. riffle log ROOT shows those that are retained.",
                where=name,
                id="RIFFLE-1579",
            )
        return record

    def delete(self, name: str) -> str:
        """Delete a savepoint with the next record. Return what it no longer keeps, as a sentence.

        Raises ``ConfigError`` if there is none of this name.
        """
        savepoint = find_savepoint(self.current, name)
        self.current = without_savepoint(self.current, savepoint)
        return f"The savepoint no longer keeps batch {savepoint.version}."
