"""Putting a record under its number, once: whose it is comes out, whatever a store answers, or does not. Knows records
and stores. Does not know what came before.
"""

from riffle_spark.errors import ConfigError, FencedError, UnavailableError
from riffle_spark.state.log import paths
from riffle_spark.state.log.record import Record, is_record
from riffle_spark.state.objects.store import ObjectStore, overwriting

__all__ = ["RECORD_BYTES_MAX", "RecordCommits"]

RECORD_BYTES_MAX = 1 << 29
_APPEND_TRIES = 5


class RecordCommits:
    """Puts the records of one root, and gets them."""

    def __init__(self, store: ObjectStore, root: str) -> None:
        self._store = store
        self._root = root

    def got(self, name: str) -> bytes | None:
        """Return what there is of a record, as far as one can be: whatever was put in its place."""
        return self._store.get(name, 0, RECORD_BYTES_MAX)

    def put(self, record: Record, data: bytes) -> None:
        """Put a record. Raises ``FencedError`` where another one has its number, and ``UnavailableError`` where that
        stays unclear.
        """
        name, seen = paths.record(record.sequence), None
        trouble: ConfigError | UnavailableError | None = None
        for _ in range(_APPEND_TRIES):
            try:
                if self._store.put_if_absent(name, data):
                    return
                found = self.got(name)
            except (ConfigError, UnavailableError) as error:
                if trouble is None and isinstance(error, ConfigError):
                    raise  # else what had no answer may have been done, whatever the store refuses since
                trouble = error
                continue
            if found == data:
                return
            if found is not None and (found == seen or is_record(found, name)):  # else damaged on its way: look again
                raise self.fenced(record)
            seen = found
        problem = f"it is unclear whether record {record.sequence} was committed to {self._root}"
        first = trouble.remedy if isinstance(trouble, ConfigError) else "make the store reachable"
        remedy = f"{first}; then restart the query: the record is read before anything is run again"
        raise UnavailableError(problem, remedy=remedy, where=name, id="RIFFLE-0421") from trouble

    def check_refused(self, record: Record, data: bytes) -> None:
        """Put a record that is there once more: the same bytes, so that a store that takes them is harmed by nothing.

        All that keeps two drivers apart is that a store refuses the second put of a name. One that takes it overwrites,
        or the record was swept by who went on: then there are later ones, where an answer was lost on the way, too.
        """
        name, trouble = paths.record(record.sequence), None
        for _ in range(_APPEND_TRIES):
            try:
                is_taken = self._store.put_if_absent(name, data)
                goes_on = (is_taken or trouble) and any(later > name for later in self._store.list(paths.LOG))
            except UnavailableError as error:
                trouble = error
                continue
            if is_taken and goes_on:
                self._store.delete([name])
            if goes_on:
                raise self.fenced(record)
            if not is_taken:
                return
            raise overwriting(self._store, f"{self._root} ({name})")
        assert trouble is not None
        raise trouble

    def fenced(self, record: Record) -> FencedError:
        """Return the error for who finds another one's record under a number."""
        told, name = f"another driver appended record {record.sequence} of {self._root}", paths.record(record.sequence)
        return FencedError(told, remedy="stop this query: a newer driver owns its state", where=name, id="RIFFLE-0422")
