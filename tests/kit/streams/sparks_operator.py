"""Run a case's processor on Spark's own operator, and return the output of each batch and the final state.

Spark takes the time of a batch from the clock. To set it, the helper runs each batch in three steps:

1. A query whose sink fails plans the batch.
2. The time of the case is written into the offset log of the checkpoint.
3. The query starts again. Spark repeats the planned batch with the values of the offset log.

So a query with batch times restarts in each batch. Other queries restart once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import DataStreamWriter

from tests.kit.processors.both_forms import sparks_own
from tests.kit.processors.processor_case import Case

__all__ = ["CONF", "NO_DATA", "ProcessorQuery", "encoded", "in_key_order", "in_state_order", "run_native"]

CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.executorEnv.TZ": "UTC",
}
"""The configuration of a session that runs cases, without its master."""
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
END_SECONDS = 120
FIRST_FILE_AGE = 1_700_000_000

Rows = list[list[Any]]
State = dict[str, Rows]


def run_native(spark: SparkSession, case: Case, form: str, folder: Path) -> dict[str, Any]:
    """Run a case in a form and return JSON data: ``steady`` and ``state``.

    With event-time timers, the data also has ``last_pass`` and ``last_pass_state``.

    - ``steady`` has the rows of each batch. Each file is a batch, and nothing runs between batches.
    - ``last_pass`` has for each file the rows of its batch, and those of the batch without data that ends a run under
      AvailableNow.
    - ``state`` has the elements of each variable: [key, value, due] for a value or a list, and
      [key, map key, value, due] for a map. ``timers`` are [key, due]. ``due`` is None if an element does not expire.
    """
    steady = ProcessorQuery(spark, case, form, folder / "steady")
    spark.conf.set(NO_DATA, "false")
    steady.play_dated(range(len(case.batches))) if case.times_ms else steady.play()
    outcome = {"steady": [rows for _, rows in sorted(steady.outputs.items())], "state": steady.state()}
    if case.time_mode == "EventTime":
        spark.conf.set(NO_DATA, "true")
        passing = ProcessorQuery(spark, case, form, folder / "last_pass")
        passes = [passing.play_file(number) for number in range(len(case.batches))]
        outcome |= {"last_pass": passes, "last_pass_state": passing.state()}
    return outcome


def encoded(value: Any) -> Any:
    """Return the JSON form of a value of an Arrow table. A struct becomes the list of its fields."""
    if isinstance(value, dict):
        return [encoded(each) for each in value.values()]
    if isinstance(value, (list, tuple)):
        return [encoded(each) for each in value]
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, Decimal) else value


def in_key_order(rows: Iterable[Iterable[Any]], width: int) -> Rows:
    """Return encoded rows sorted by key, which is their first ``width`` columns. Rows of one key keep their order."""
    return sorted((encoded(list(row)) for row in rows), key=lambda row: json.dumps(row[:width]))


def in_state_order(entries: Iterable[list[Any]]) -> Rows:
    """Return encoded elements of a variable, sorted by key and by map key or timer.

    Elements of a list keep their order.
    """
    return sorted(map(encoded, entries), key=lambda entry: json.dumps(entry[: len(entry) - 2] or entry))


class _Planned(Exception):
    """The error with which a sink leaves a batch planned but not committed."""


class ProcessorQuery:
    """A query with its source folder, its checkpoint, and its output by batch.

    ``wrap`` gets the stream and returns the frame that the query reads. On Spark's own operator this is the stream
    itself.
    """

    def __init__(
        self,
        spark: SparkSession,
        case: Case,
        form: str,
        folder: Path,
        wrap: Callable[[DataFrame], DataFrame] = lambda stream: stream,
        checkpoint: str = "checkpoint",
    ) -> None:
        self.outputs: dict[int, Rows] = {}
        self._spark, self._case, self._form, self._wrap = spark, case, form, wrap
        self._source, self._checkpoint = folder / "source", folder / checkpoint
        self._source.mkdir(parents=True, exist_ok=True)

    def play(self) -> None:
        """Run all batches, with one restart."""
        cut, batch_numbers = self._case.restart_after, range(len(self._case.batches))
        for part in (batch_numbers[:cut], batch_numbers[cut:]):
            self.play_some(part)

    def play_some(self, numbers: range) -> None:
        """Run some of the batches in one run or, if they have times, each in a separate run."""
        if self._case.times_ms:
            self.play_dated(numbers)
            return
        for number in numbers:
            self._add(number)
        self._run(self._keep)

    def play_dated(self, numbers: range) -> None:
        """Run each batch at the time of its case."""
        for number in numbers:
            self._add(number)
            self._plan()
            self._date(number, self._case.times_ms[number])
            self._run(self._keep)

    def play_file(self, number: int) -> list[Rows]:
        """Run one file, and the batch without data after it. Return the rows of each batch."""
        before = len(self.outputs)
        self._add(number)
        self._run(self._keep)
        return [rows for _, rows in sorted(self.outputs.items())[before:]]

    def state(self) -> State:
        """Return the state that Spark's own reader finds in the checkpoint."""
        variables = {name: self._variable(name, kind) for name, kind in self._case.variables.items()}
        if self._case.time_mode != "None":
            variables["timers"] = in_state_order(
                [[row["key"], row["expiration_timestamp_ms"]] for row in self._read(readRegisteredTimers="true")]
            )
        return variables

    def _add(self, number: int) -> None:
        path = self._source / f"{number:04d}.parquet"
        pq.write_table(self._case.batches[number], path)
        os.utime(path, (FIRST_FILE_AGE + number,) * 2)

    def _plan(self) -> None:
        def refuse(frame: DataFrame, batch: int) -> None:
            raise _Planned

        try:
            self._run(refuse)
        except StreamingQueryException as error:
            if _Planned.__name__ not in str(error):
                raise

    def _date(self, number: int, time_ms: int) -> None:
        """Change the time of a batch in the offset log, whose second line is the metadata."""
        path = self._checkpoint / "offsets" / str(number)
        version, metadata, *offsets = path.read_text().split("\n")
        dated = json.dumps({**json.loads(metadata), "batchTimestampMs": time_ms})
        path.write_text("\n".join([version, dated, *offsets]))
        path.with_name(f".{number}.crc").unlink(missing_ok=True)

    def writer(self) -> DataStreamWriter:
        """Return the writer of the query, with its output mode."""
        return self._transformed().writeStream.outputMode(self._case.output_mode)

    def _run(self, sink: Callable[[DataFrame, int], None]) -> None:
        writer = self.writer().foreachBatch(sink)
        query = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True).start()
        if not query.awaitTermination(END_SECONDS):
            query.stop()
            raise TimeoutError(f"{self._case.name} did not end: {query.status}")

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.outputs[batch] = in_key_order((row.values() for row in _pylist(frame)), len(self._case.key))

    def _transformed(self) -> DataFrame:
        case = self._case
        reader = self._spark.readStream.schema(from_arrow_schema(case.input)).option("maxFilesPerTrigger", 1)
        stream = self._wrap(reader.parquet(str(self._source)))
        if case.watermark is not None:
            stream = stream.withWatermark(*case.watermark)
        transform = sparks_own(stream.groupBy(*case.key), self._form)
        initial = None
        if case.initial is not None:
            initial = self._spark.createDataFrame(case.initial).groupBy(*case.key)
        return transform(case.processor(self._form), case.output, case.output_mode, case.time_mode, initial)

    def _variable(self, name: str, kind: str) -> Rows:
        rows = self._read(stateVarName=name)
        if kind == "map":
            return in_state_order(
                [[row["key"], row["user_map_key"], *_with_due(row["user_map_value"])] for row in rows]
            )
        column = "value" if kind == "value" else "list_element"
        return in_state_order([[row["key"], *_with_due(row[column])] for row in rows])

    def _read(self, **options: str) -> list[dict[str, Any]]:
        return _pylist(self._spark.read.format("statestore").options(**options).load(str(self._checkpoint)))


def _pylist(frame: DataFrame) -> list[dict[str, Any]]:
    table: pa.Table = frame.toArrow()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _with_due(stored: dict[str, Any]) -> list[Any]:
    """Return the value and the due time of stored data.

    A variable with a TTL stores both in a struct. Other variables have no due time.
    """
    if list(stored) == ["value", "ttlExpirationMs"]:
        return [stored["value"], stored["ttlExpirationMs"]]
    return [stored, None]
