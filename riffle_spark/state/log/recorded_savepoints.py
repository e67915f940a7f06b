"""The savepoints that each record of the log lists."""

import re
from dataclasses import dataclass
from typing import Final

from riffle_spark.errors import ConfigError

SAVEPOINTS_MAX: Final = 64
"""A query has at most this many savepoints, because each record lists all of them."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_ID: Final = re.compile(r"\d{20}-\d{1,18}-[0-9a-f]{32}\Z")


@dataclass(frozen=True, slots=True)
class RecordedSavepoint:
    """A record of the log that is kept until its savepoint is deleted. Times are milliseconds since the epoch.

    Attributes:
        name: the name that the user gave.
        id: the last part of the name of its object, ``<version>-<epoch>-<random id>``.
        sequence: the number of the kept record.
        version: the newest batch of that record, -1 for none.
        committed_ms: when that batch was committed.
        created_ms: when the savepoint was created.
        user: who created it, as ``user@host``.
    """

    name: str
    id: str
    sequence: int
    version: int
    committed_ms: int
    created_ms: int
    user: str

    def to_json(self) -> list[object]:
        """Return the savepoint as a row of a record."""
        return [self.name, self.id, self.sequence, self.version, self.committed_ms, self.created_ms, self.user]

    @classmethod
    def from_json(cls, row: list[object]) -> "RecordedSavepoint":
        """Return the savepoint of a row. Raises ``TypeError`` or ``ValueError`` for other rows."""
        if type(row) is not list or [type(value) for value in row] != [str, str, int, int, int, int, str]:
            raise TypeError(f"invalid savepoint {row!r}")
        savepoint = cls(*row)  # type: ignore[arg-type]
        if not _NAME.match(savepoint.name) or not _ID.match(savepoint.id) or not savepoint.user.isprintable():
            raise ValueError(f"invalid savepoint {row!r}")
        return savepoint


def check_savepoint_name(name: str) -> str:
    """Return ``name``. Raises ``ConfigError`` if no savepoint can have it."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise ConfigError(
            f"{str(name)[:80]!r} is not a name of a savepoint.",
            remedy="Use 1 to 64 letters, digits, '.', '_' or '-', with a letter or digit first.",
            where="--name",
            id="RIFFLE-1570",
        )
    return name


def find_savepoint(savepoints: tuple[RecordedSavepoint, ...], name: str) -> RecordedSavepoint:
    """Return the savepoint with this name. Raises ``ConfigError`` if there is none."""
    for savepoint in savepoints:
        if savepoint.name == name:
            return savepoint
    names = ", ".join(savepoint.name for savepoint in savepoints) or "none"
    # Cause: The name is misspelt, or the savepoint was deleted.
    raise ConfigError(
        f"The query has no savepoint {name[:80]!r}. Its savepoints: {names}.",
        remedy="Name one of them. riffle savepoint list ROOT shows them with their batches.",
        where=name[:80],
        id="RIFFLE-1571",
    )
