"""The status of a query, as the object ``status.json`` below its root stores it (docs/formats.md).

The driver writes it at most once a minute, also while the query is idle. Commands read it without the driver. It has
names of stores, members, executors and topics, and never keys of user data.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from riffle_spark.errors import UNREADABLE, CorruptStateError
from riffle_spark.observe.json_values import from_plain, to_plain
from riffle_spark.protocol.facts import DriverFacts, MoveSummary

__all__ = [
    "BATCHES_MAX",
    "ENDED",
    "FORMAT",
    "MOVES_MAX",
    "WARNINGS_MAX",
    "BatchSummary",
    "MoveSummary",
    "RequestSummary",
    "State",
    "Status",
    "WarningSummary",
    "decode",
    "encode",
    "from_json",
    "to_json",
]

FORMAT: Final = 1
"""The format of ``status.json``. Later versions may add fields without a new format."""
BATCHES_MAX: Final = 60
MOVES_MAX: Final = 100
WARNINGS_MAX: Final = 20
_GZIP_FROM_BYTES: Final = 16 << 10
_GZIP_MAGIC: Final = b"\x1f\x8b"
_BYTES_MAX: Final = 64 << 20

State = Literal["running", "idle", "paused", "stopped", "failed"]
ENDED: Final = frozenset({"stopped", "failed"})
"""The states of a query that has ended."""


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A committed batch.

    Attributes:
        version: the batch id.
        time_ms: when it was committed, in milliseconds since the epoch.
        rows: its input rows.
        seconds: seconds by phase (``enter assign run deliver commit upkeep``) and in ``total``; empty if unknown.
        lag_records: records of the source that were unread after it; ``None`` if unknown.

    Raises ``ValueError`` if ``seconds`` has phases and no total.
    """

    version: int
    time_ms: int
    rows: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    lag_records: int | None = None

    def __post_init__(self) -> None:
        """Check that the seconds have a total."""
        if self.seconds and "total" not in self.seconds:
            raise ValueError(f"batch {self.version} has seconds of {', '.join(self.seconds)}, but no total")


@dataclass(frozen=True, slots=True)
class WarningSummary:
    """A warning of the query: its time in milliseconds since the epoch, its id (``RIFFLE-0123``) and its text."""

    time_ms: int
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """The requests to the object store in the last ``seconds`` before the status, by kind.

    Those of batches, upkeep, exporters and executors are included.
    """

    seconds: float
    by_kind: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a query.

    Attributes:
        facts: the facts of the driver.
        state: ``running`` during or shortly after a batch; ``idle``; ``paused`` by an operator
            (``facts.paused_since_ms``); ``stopped``; ``failed`` if an error ended it (``facts.failure``).
        product: the version of riffle_spark that wrote it.
        interval_seconds: how often the driver writes the status, in seconds.
        batches: the last ``BATCHES_MAX`` batches, oldest first.
        moves: the last ``MOVES_MAX`` moves, oldest first.
        warnings: the last ``WARNINGS_MAX`` warnings, oldest first.
        settings: the settings in effect that matter for an operator, as text by name.
        requests: the requests to the object store in the last ten minutes, or since the driver's first batch;
            ``None`` if that has just ended.
    """

    facts: DriverFacts
    state: State = "running"
    product: str = ""
    interval_seconds: float = 60.0
    batches: tuple[BatchSummary, ...] = ()
    moves: tuple[MoveSummary, ...] = ()
    warnings: tuple[WarningSummary, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    requests: RequestSummary | None = None


def to_json(status: Status) -> str:
    """Return a status as one line of JSON. Raises ``ValueError`` for a number that JSON does not have, such as NaN."""
    plain = {"format": FORMAT, **cast("dict[str, object]", to_plain(status))}
    return json.dumps(plain, separators=(",", ":"), allow_nan=False)


def from_json(text: str | bytes, where: str = "status.json") -> Status:
    """Return the status in ``to_json``'s text. ``where`` names its object.

    Raises ``CorruptStateError`` for other text, and for a format of a later version.
    """
    try:
        body = json.loads(text)
        if body["format"] == FORMAT:
            return from_plain(Status, body)
        problem = f"The status has format {str(body['format'])[:20]}, but this version reads {FORMAT}."
    except UNREADABLE as error:
        problem = f"The status cannot be read: {error}"
    # Cause: The bytes were altered, or another version of riffle-spark wrote them.
    raise CorruptStateError(
        problem,
        remedy="Run the version of riffle-spark that the query runs. If the object is damaged, delete it: the running "
        "query writes it again within a minute.",
        where=where,
        id="RIFFLE-1310",
    )


def encode(status: Status) -> bytes:
    """Return the bytes of ``status.json``: ``to_json``, compressed with gzip if it is long."""
    data = to_json(status).encode()
    return gzip.compress(data, compresslevel=6, mtime=0) if len(data) >= _GZIP_FROM_BYTES else data


def decode(data: bytes, where: str = "status.json") -> Status:
    """Return the status of ``encode``'s bytes. Raises ``CorruptStateError`` for other bytes."""
    if data.startswith(_GZIP_MAGIC):
        decompressor = zlib.decompressobj(wbits=31)
        try:
            data = decompressor.decompress(data, _BYTES_MAX)
        except zlib.error:
            data = b""
        if not decompressor.eof:
            data = b""
    return from_json(data, where)
