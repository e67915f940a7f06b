"""The results of `riffle verify`."""

from dataclasses import dataclass
from typing import Literal

from riffle_spark.printable import escape_unprintable

Level = Literal["state", "rollback", "unread", "note"]
"""The effect of a finding: it breaks the newest ``state``, only a ``rollback`` to an older batch, or nothing
(``note``). ``unread``: the object could not be checked, because its encryption key is missing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of an object, store or checkpoint."""

    level: Level
    where: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        """Return the finding as ``riffle verify`` prints it."""
        problem, where, remedy = map(escape_unprintable, (self.problem, self.where, self.remedy))
        return f"{self.level}: {problem} [{where}]\n  What to do: {remedy}"


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of `riffle verify`. ``version`` is the newest batch whose record can be read."""

    records: int
    objects: int
    checked_bytes: int
    version: int | None
    findings: tuple[Finding, ...]
    way_back: str | None = None
    """If the newest state is damaged: the newest undamaged batch, and the command that returns to it."""

    @property
    def is_damaged(self) -> bool:
        """Whether an object that could be read is damaged."""
        return any(finding.level in ("state", "rollback") for finding in self.findings)

    @property
    def is_whole(self) -> bool:
        """Whether everything was read and nothing is damaged."""
        return all(finding.level == "note" for finding in self.findings)
