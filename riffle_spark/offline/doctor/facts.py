"""The facts that `riffle doctor` judges, and the results of its checks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from riffle_spark.printable import escape_unprintable

Level = Literal["ok", "skipped", "warning", "unreachable", "error"]
"""``error``: a query fails until this is corrected. ``warning``: it runs, but slower or with a risk. ``unreachable``: a
service did not answer, so it is unknown. ``skipped``: an option or setting that the check needs is missing."""

_UNREACHABLE_CODE = 3


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check. ``check`` is its stable name. Every level but ``ok`` has a remedy."""

    check: str
    level: Level
    fact: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"\n{'':<12}What to do: {escape_unprintable(self.remedy)}" if self.remedy else ""
        return f"{self.level:<12}{self.check}: {escape_unprintable(self.fact)}{remedy}"


def exit_code(results: Iterable[Result]) -> int:
    """Return 1 if a check failed, else 3 if a service did not answer, else 0."""
    levels = {result.level for result in results}
    return 1 if "error" in levels else _UNREACHABLE_CODE if "unreachable" in levels else 0


@dataclass(frozen=True, slots=True)
class PythonFacts:
    """A Python: its command, its version, and the versions of installed packages by name.

    ``problem`` is set, and the version empty, if it cannot be started.
    """

    command: str
    version: tuple[int, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def dotted(self) -> str:
        """Return the version as text."""
        return ".".join(map(str, self.version))


@dataclass(frozen=True, slots=True)
class JavaFacts:
    """The Java that Spark would start. ``major`` is ``None`` if it cannot be started; ``problem`` is the reason."""

    command: str
    major: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The local folder for copies: the used share and the free bytes of its disk, or why it cannot be used."""

    folder: str
    used_share: float = 0.0
    free_bytes: int = 0
    problem: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The results of the operations on a probe object below the root.

    ``steps`` are the operations that succeeded, in order. If one failed, ``failed`` names it, and ``problem``,
    ``remedy`` and ``is_reachable`` describe the failure. ``overwrites``: a second put replaced the object.
    ``clock_ahead_seconds`` is by how much the store's clock is ahead of this machine's, ``None`` if unknown.
    ``left_over`` is the name of the probe if it could not be deleted.
    """

    steps: tuple[str, ...] = ()
    failed: str = ""
    problem: str = ""
    remedy: str = ""
    is_reachable: bool = True
    overwrites: bool = False
    clock_ahead_seconds: float | None = None
    left_over: str = ""


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """The servers that accept connections and those that do not, and whether the cluster described itself.

    ``unreachable_brokers`` are addresses that the cluster advertises and that do not accept connections from here.
    """

    connected: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    brokers: tuple[str, ...] = ()
    unreachable_brokers: tuple[str, ...] = ()
    problem: str = ""
