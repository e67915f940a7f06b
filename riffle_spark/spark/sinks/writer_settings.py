"""The settings of a stream writer, as the calls of its methods."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

_FUNCTION_METHODS: Final = ("foreach", "foreachBatch")
_NOT_OF_SINK: Final = ("checkpointlocation", "riffle.")


@dataclass(frozen=True, slots=True)
class WriterCall:
    """A recorded call of a method of a stream writer, with its arguments."""

    method: str
    positional: tuple[Any, ...]
    named: Mapping[str, Any]

    @property
    def first(self) -> object:
        """Return the first argument."""
        return next(iter((*self.positional, *self.named.values())))


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """All settings of a writer: its calls in order, and the path of ``start`` or the table of ``toTable``."""

    calls: tuple[WriterCall, ...]
    path: str | None = None
    table: str | None = None

    def _last(self, *methods: str) -> WriterCall | None:
        """Return the last call of one of these methods, or ``None``."""
        return next((call for call in reversed(self.calls) if call.method in methods), None)

    def _text(self, method: str) -> str | None:
        """Return the first argument of the last call of a method as text, or ``None`` if it was not called."""
        call = self._last(method)
        return None if call is None else str(call.first)

    @property
    def mode(self) -> str:
        """Return the output mode in lower case, ``append`` if it is not set."""
        return (self._text("outputMode") or "append").lower()

    @property
    def name(self) -> str | None:
        """Return the query's name, ``None`` if it is not set."""
        return self._text("queryName")

    @property
    def function(self) -> tuple[str, Any] | None:
        """The method and argument of the last ``foreach`` or ``foreachBatch``, unless ``format`` was called later."""
        call = self._last("format", *_FUNCTION_METHODS)
        return None if call is None or call.method == "format" else (call.method, call.first)

    @property
    def format(self) -> str | None:
        """The format, or ``None`` if it is not set."""
        return self._text("format")

    @property
    def trigger(self) -> Mapping[str, object]:
        """The trigger's arguments, by Spark's names. Empty means batches without a pause."""
        call = self._last("trigger")
        return {} if call is None else {kind: value for kind, value in call.named.items() if value is not None}

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that files are partitioned by."""
        return self._columns("partitionBy")

    @property
    def cluster_by(self) -> tuple[str, ...]:
        """The columns that a table is clustered by."""
        return self._columns("clusterBy")

    def _columns(self, method: str) -> tuple[str, ...]:
        """Return the column names of the last call of a method, empty if it was not called."""
        call = self._last(method)
        columns = () if call is None else call.positional
        if len(columns) == 1 and isinstance(columns[0], list | tuple):
            columns = tuple(columns[0])
        return tuple(map(str, columns))

    @property
    def options(self) -> dict[str, str]:
        """The options. If names differ only in case, the last one counts."""
        options = dict[str, tuple[str, str]]()
        for call in self.calls:
            pairs = [_pair(*call.positional, **call.named)] if call.method == "option" else []
            pairs += call.named.items() if call.method == "options" else ()
            options |= {key.lower(): (key, _option_text(value)) for key, value in pairs if value is not None}
        return dict(options.values())

    def option(self, name: str) -> str | None:
        """Return the value of an option, ``None`` if it is not set. Upper and lower case of the name are the same."""
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), None)

    @property
    def sink_options(self) -> dict[str, str]:
        """The options for the sink, without riffle's own and the checkpoint."""
        return {key: value for key, value in self.options.items() if not key.lower().startswith(_NOT_OF_SINK)}

    def source(self, spark: SparkSession) -> str:
        """Return the format, or the session's default. It is in lower case unless it is a class name."""
        name = self.format or spark.conf.get("spark.sql.sources.default") or "parquet"
        return name if "." in name else name.lower()

    def apply_to(self, writer: DataStreamWriter, *methods: str) -> DataStreamWriter:
        """Repeat the calls on a writer of Spark's, or only those of some methods."""
        for call in self.calls:
            if not methods or call.method in methods:
                getattr(writer, call.method)(*call.positional, **call.named)
        return writer


def _pair(key: str, value: object) -> tuple[str, object]:
    """Return the arguments of ``option`` as a pair."""
    return key, value


def _option_text(value: object) -> str:
    """Return an option's value as text in Spark's form."""
    return str(value).lower() if isinstance(value, bool) else str(value)
