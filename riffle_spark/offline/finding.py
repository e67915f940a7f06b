"""What `riffle verify` says: findings, and what was looked at. Knows no object."""

from dataclasses import dataclass
from typing import Literal

from riffle_spark.printable import escape_unprintable

__all__ = ["Finding", "Level", "Verified"]

Level = Literal["state", "rollback", "unread", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with an object. ``level``: it keeps the query from its ``state``; or only from a
    ``rollback`` to some older batch; or it is ``unread`` for want of a key; or it is a ``note``, and harms nothing.
    """

    level: Level
    where: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        problem, where, remedy = map(escape_unprintable, (self.problem, self.where, self.remedy))
        return f"{self.level}: {problem} [{where}]\n  What to do: {remedy}"


@dataclass(frozen=True, slots=True)
class Verified:
    """What was looked at, and what was found. ``version`` is the newest batch whose record can be read."""

    records: int
    objects: int
    checked_bytes: int
    version: int | None
    findings: tuple[Finding, ...]
    way_back: str | None = None
    """Where the newest batch's state is damaged, the newest one that is whole, with the command that leads there."""

    @property
    def is_damaged(self) -> bool:
        """Whether something is wrong with what could be read."""
        return any(finding.level in ("state", "rollback") for finding in self.findings)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.level == "note" for finding in self.findings)
