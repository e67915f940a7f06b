"""Read the job's batch reports from its file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Batch", "ReportFile", "Run"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The displayed figures of a batch. ``moves`` counts the moves before it, by role and reason."""

    version: int
    rows: int
    started_seconds: float
    seconds: float
    requests: int
    upkeep_requests: int
    slots: int
    misses: int
    restores: int
    standbys: int
    warmups: int
    probes: int
    moves: Mapping[tuple[str, str], int] = field(default_factory=dict)
    owners: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows_per_second(self) -> float:
        """Rows per second of the batch's duration."""
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """All batches of a run so far."""

    batches: tuple[Batch, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows in committed batches."""
        return sum(batch.rows for batch in self.batches)

    @property
    def filled(self) -> tuple[Batch, ...]:
        """The batches that had rows."""
        return tuple(batch for batch in self.batches if batch.rows)

    @property
    def rows_per_second(self) -> float:
        """Rows per second from the start of the first batch with rows to the end of the last."""
        if not self.filled:
            return 0.0
        first = self.filled[0]
        last = self.filled[-1]
        return self.rows / max(last.started_seconds + last.seconds - first.started_seconds, 1e-9)

    @property
    def requests_per_batch(self) -> float:
        """The average number of requests to the object store per batch with rows, without upkeep."""
        return sum(batch.requests for batch in self.filled) / max(len(self.filled), 1)


class ReportFile:
    """A file to which a job appends one JSON line per batch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._batches: dict[int, Batch] = {}

    def read(self) -> Run:
        """Return the run with all batches so far. An incomplete last line is read by the next call."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                appended = file.read()
            complete_lines = appended[: appended.rfind(b"\n") + 1]
            self._offset += len(complete_lines)
            self._take(complete_lines.splitlines())
        return Run(tuple(self._batches.values()))

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            report = json.loads(line)
            if report["decision"] == "run":
                batch = _batch_of(report)
                self._batches[batch.version] = batch


def _batch_of(report: Mapping[str, object]) -> Batch:
    seconds = _numbers(report, "seconds")
    return Batch(
        version=_whole(report, "version"),
        rows=_whole(report, "rows"),
        started_seconds=_whole(report, "started_ms") / 1000,
        seconds=seconds.get("total", 0.0),
        requests=int(sum(_numbers(report, "requests").values())),
        upkeep_requests=int(sum(_numbers(report, "upkeep_requests").values())),
        slots=_whole(report, "slots"),
        misses=_whole(report, "misses"),
        restores=_whole(report, "restores"),
        standbys=int(sum(_numbers(report, "standbys").values())),
        warmups=int(sum(_numbers(report, "warmups").values())),
        probes=_whole(report, "probes_run"),
        moves=_moves(report),
        owners={member: int(count) for member, count in _numbers(report, "owners").items()},
    )


def _whole(report: Mapping[str, object], name: str) -> int:
    value = report.get(name, 0)
    assert isinstance(value, int), f"{name} is {value!r}"
    return value


def _moves(report: Mapping[str, object]) -> dict[tuple[str, str], int]:
    value = report.get("moves", ())
    assert isinstance(value, (list, tuple)), f"moves is {value!r}"
    return dict(Counter((str(move["role"]), str(move["reason"])) for move in value))


def _numbers(report: Mapping[str, object], name: str) -> dict[str, float]:
    value = report.get(name, {})
    assert isinstance(value, dict), f"{name} is {value!r}"
    return {str(key): float(number) for key, number in value.items()}
