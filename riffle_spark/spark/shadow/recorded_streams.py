"""Record the streams of a query batch by batch, and feed the recorded batches to the compared queries.

Both queries must see the same rows in the same batches, but two queries on one source choose their own batches. So each
stream that the query passes to ``riffle_spark.on`` is read once, and each of its batches is stored. A batch that is fed
to a query becomes one file of a folder from which that query streams.
"""

import math
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

_WAITING_MAX: Final = 4
"""How many batches a stream is recorded ahead."""
_POLL_SECONDS: Final = 0.1
_COMPANION_SECONDS: Final = 1.0
"""How long a batch waits for batches of the other streams. They are then fed together."""
_WATERMARK_DELAY: Final = "spark.watermarkDelayMs"
"""Spark's name of the metadata of a column with a watermark."""


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """A batch of a stream: the folder with its rows, and their number."""

    stream: "RecordedStream"
    folder: str
    rows: int

    def feed(self, side: str) -> None:
        """Copy the rows, as one file, into the folder from which a side streams."""
        stream = self.stream
        rows = stream.frame.sparkSession.read.schema(stream.plain_schema).parquet(self.folder)
        rows.coalesce(1).write.mode("append").parquet(stream.fed_folder(side))


@dataclass(eq=False)
class RecordedStream:
    """A stream of the query, and its recorded batches.

    ``frame`` is the frame that was passed to ``riffle_spark.on``, ``folder`` the folder of all files of this stream.
    """

    frame: DataFrame
    folder: str
    _waiting: "queue.Queue[RecordedBatch]" = field(default_factory=lambda: queue.Queue(_WAITING_MAX))
    _stopping: threading.Event = field(default_factory=threading.Event)
    _query: StreamingQuery | None = None

    def start(self, follow: bool) -> None:
        """Start recording: until the source has no more rows, or with ``follow`` until ``stop``."""
        writer = self.frame.writeStream.foreachBatch(self._record)
        writer = writer.option("checkpointLocation", f"{self.folder}/checkpoint")
        self._query = (writer if follow else writer.trigger(availableNow=True)).start()

    def stop(self) -> None:
        """Stop recording. Waiting batches can still be taken."""
        if self._query is not None and not self._stopping.is_set():
            self._stopping.set()
            self._query.stop()

    def take(self) -> RecordedBatch | None:
        """Return the next recorded batch, ``None`` if none waits."""
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

    @property
    def is_recording(self) -> bool:
        """Whether more batches may follow. Raises the error that ended the recording."""
        assert self._query is not None
        error = self._query.exception()
        if error is not None:
            raise error
        return self._query.isActive or not self._waiting.empty()

    def stream(self, side: str) -> DataFrame:
        """Return the stream of the batches that are fed to a side, with the watermark of the recorded frame."""
        spark = self.frame.sparkSession
        folder = self.fed_folder(side)
        # The folder must exist. Spark ignores names with a dot.
        spark.createDataFrame([], self.plain_schema).write.mode("ignore").parquet(f"{folder}/.created")
        stream = spark.readStream.schema(self.plain_schema).parquet(folder)
        for column in self.frame.schema:
            delay = column.metadata.get(_WATERMARK_DELAY)
            if delay is not None:
                stream = stream.withWatermark(column.name, f"{delay} milliseconds")
        return stream

    @property
    def plain_schema(self) -> StructType:
        """The schema of the frame without the metadata of its columns."""
        schema = StructType()
        for column in self.frame.schema:
            schema.add(column.name, column.dataType, column.nullable)
        return schema

    def fed_folder(self, side: str) -> str:
        """Return the folder from which a side streams."""
        return f"{self.folder}/{side}"

    def _record(self, rows: DataFrame, batch_id: int) -> None:
        """Store a batch, and wait until few others are waiting. A batch without rows is left out."""
        folder = f"{self.folder}/batch-{batch_id}"
        rows.write.mode("overwrite").parquet(folder)
        count = rows.sparkSession.read.schema(self.plain_schema).parquet(folder).count()
        while count and self._waiting.full() and not self._stopping.is_set():
            time.sleep(_POLL_SECONDS)
        if count and not self._stopping.is_set():
            self._waiting.put(RecordedBatch(self, folder, count))


class Recordings:
    """All streams of a query while they are recorded. A context manager."""

    def __init__(self, streams: Sequence[RecordedStream], seconds: float | None) -> None:
        """Prepare the recording of streams.

        With ``seconds`` the sources are followed for this time. Otherwise they are read up to their present end.
        """
        self._streams = streams
        self._seconds = seconds
        self._end = 0.0

    def __enter__(self) -> "Recordings":
        """Start recording all streams."""
        self._end = time.monotonic() + (self._seconds or 0.0)
        for stream in self._streams:
            stream.start(self._seconds is not None)
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop to record."""
        self._stop()

    def next_batch(self) -> list[RecordedBatch]:
        """Wait for the next batch. Return the batch of each stream that has one. Return an empty list at the end.

        If a stream has rows, each other stream gets a second to have rows for the same batch. Raises the error of a
        source.
        """
        taken: dict[int, RecordedBatch] = {}
        companions_end = math.inf
        while True:
            is_over = self._seconds is not None and time.monotonic() >= self._end
            if is_over:  # A busy source would never end.
                self._stop()
            recording = [number for number, stream in enumerate(self._streams) if stream.is_recording]
            for number, stream in enumerate(self._streams):
                if number not in taken and (batch := stream.take()) is not None:
                    taken[number] = batch
            if taken:
                companions_end = min(companions_end, time.monotonic() + _COMPANION_SECONDS)
            has_all = all(number in taken for number in recording)
            if has_all or time.monotonic() >= companions_end or (is_over and not taken):
                return list(taken.values())
            time.sleep(_POLL_SECONDS)

    def _stop(self) -> None:
        """Stop recording. Waiting batches are still returned."""
        for stream in self._streams:
            stream.stop()
