"""Provide the data source ``riffle_state`` on Spark 4: the state of a root, and its changes as batch and stream."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from riffle_spark.errors import ConfigError
from riffle_spark.spark.engine.routing import spark_schema
from riffle_spark.spark.state_request import StateRequest, parse_options, read_pieces

_BATCH = "batch"
_ROLLBACKS = "rollbacks"
_QUERY = "query"
_Offset = dict[str, Any]
"""The last batch whose changes were read, the number of the query's rollbacks, and the id of the query."""


class StateSource(DataSource):
    """The data source ``riffle_state``. Its options are those of docs/read-state.md."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "riffle_state"

    def schema(self) -> StructType:
        """Return the columns. Reads the newest record of the log."""
        return spark_schema(self._request().schema)

    def reader(self, schema: StructType) -> "StateReader":  # noqa: ARG002 - the signature of pyspark
        """Return the reader of a batch query."""
        return StateReader(self._request())

    def streamReader(self, schema: StructType) -> "ChangesReader":  # noqa: ARG002, N802 - the signature of pyspark
        """Return the reader of a stream of changes."""
        request = self._request()
        if not request.has_changes:
            # Cause: A stream has new rows only, and a state has changed ones.
            raise ConfigError(
                "A stream of state is a stream of its changes.",
                remedy='Set the option readChangeFeed to "true".',
                where="readChangeFeed",
                id="RIFFLE-1568",
            )
        return ChangesReader(replace(request, last_batch=None))

    def _request(self) -> StateRequest:
        """Return the request in the options."""
        return parse_options(dict(self.options))


class StateReader(DataSourceReader):
    """Reads a version of state, or the changes between two batches."""

    def __init__(self, request: StateRequest) -> None:
        self._request = request

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each piece of the state."""
        return [InputPartition(piece) for piece in self._request.split()]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of a piece. Without a partition there is nothing to read."""
        return iter(()) if partition is None else read_pieces([partition.value])

    def __getstate__(self) -> Mapping[str, Any]:
        """Pickle the request without its open objects."""
        return {"_request": replace(self._request)}


class ChangesReader(DataSourceStreamReader):
    """Reads the changes of each batch of a query once. An offset is the last batch whose changes were read."""

    def __init__(self, request: StateRequest) -> None:
        self._request = request

    def initialOffset(self) -> _Offset:  # noqa: N802 - the signature of pyspark
        """Return the batch before ``changeStartBatchId``, or the newest batch: then only later changes are read."""
        newest = self.latestOffset()
        first = self._request.first_batch
        return newest if first is None else {**newest, _BATCH: first - 1}

    def latestOffset(self) -> _Offset:  # noqa: N802 - the signature of pyspark
        """Return the newest batch, the number of the query's rollbacks, and the query's id."""
        record = replace(self._request).table.view.record
        return {_BATCH: record.version, _ROLLBACKS: record.rollbacks, _QUERY: record.query_id}

    def partitions(self, start: _Offset, end: _Offset) -> list[InputPartition]:
        """Return a partition for each piece of the changes after ``start``, up to ``end``."""
        if start[_ROLLBACKS] != end[_ROLLBACKS]:
            # Cause: Changes of batches that were rolled back may have been read.
            raise ConfigError(
                "The query was rolled back after this stream read its changes.",
                remedy="Start another stream, with a new checkpoint, from the state or from a retained batch.",
                where=self._request.root,
                id="RIFFLE-1569",
            )
        query = start.get(_QUERY, end[_QUERY])  # earlier versions did not store it
        if query != end[_QUERY] or start[_BATCH] > end[_BATCH]:
            # Cause: `riffle adopt` bound the state to another query, which numbers its batches anew. Or the root was
            # restored from a backup.
            raise ConfigError(
                f"This stream has read the changes up to batch {start[_BATCH]} of query {query}, but the state is at "
                f"batch {end[_BATCH]} of query {end[_QUERY]}.",
                remedy="Start another stream, with a new checkpoint, from the state or from a retained batch.",
                where=self._request.root,
                id="RIFFLE-1791",
            )
        if start[_BATCH] == end[_BATCH]:
            return []
        return [InputPartition(piece) for piece in self._request.between(start[_BATCH] + 1, end[_BATCH]).split()]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the changes of a piece."""
        return read_pieces([partition.value])

    def __getstate__(self) -> Mapping[str, Any]:
        """Pickle the request without its open objects."""
        return {"_request": replace(self._request)}
