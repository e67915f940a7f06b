"""What a writer was told, as the calls of its methods. Knows Spark's writers. Does not know what a sink does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

__all__ = ["WriterCall", "WriterSettings"]

_BY_FUNCTION: Final = ("foreach", "foreachBatch")
_OURS: Final = ("checkpointlocation", "riffle.")


@dataclass(frozen=True, slots=True)
class WriterCall:
    """A method of a writer, and what it was given."""

    method: str
    positional: tuple[Any, ...]
    named: Mapping[str, Any]

    @property
    def first(self) -> object:
        """What it was given first."""
        return next(iter((*self.positional, *self.named.values())))


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """All that a writer was told: the calls of its methods in their order, and where ``start`` or ``toTable`` go."""

    calls: tuple[WriterCall, ...]
    path: str | None = None
    table: str | None = None

    def _last(self, *methods: str) -> WriterCall | None:
        return next((call for call in reversed(self.calls) if call.method in methods), None)

    def _text(self, method: str) -> str | None:
        call = self._last(method)
        return None if call is None else str(call.first)

    @property
    def mode(self) -> str:
        """The output mode, in small letters."""
        return (self._text("outputMode") or "append").lower()

    @property
    def name(self) -> str | None:
        """The query's name."""
        return self._text("queryName")

    @property
    def function(self) -> tuple[str, Any] | None:
        """What ``foreach`` or ``foreachBatch`` was given last, unless a format was named after it."""
        call = self._last("format", *_BY_FUNCTION)
        return None if call is None or call.method == "format" else (call.method, call.first)

    @property
    def format(self) -> str | None:
        """The format, ``None`` where none was named."""
        return self._text("format")

    @property
    def trigger(self) -> Mapping[str, object]:
        """What the trigger is, by Spark's names of kinds; nothing: as fast as can be."""
        call = self._last("trigger")
        return {} if call is None else {kind: value for kind, value in call.named.items() if value is not None}

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that files are parted by."""
        return self._columns("partitionBy")

    @property
    def cluster_by(self) -> tuple[str, ...]:
        """The columns that a table is clustered by."""
        return self._columns("clusterBy")

    def _columns(self, method: str) -> tuple[str, ...]:
        call = self._last(method)
        given = () if call is None else call.positional
        return tuple(map(str, given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given))

    @property
    def options(self) -> dict[str, str]:
        """The options; of those whose names differ in case alone the last."""
        found = dict[str, tuple[str, str]]()
        for call in self.calls:
            pairs = [_pair(*call.positional, **call.named)] if call.method == "option" else []
            pairs += call.named.items() if call.method == "options" else ()
            found |= {key.lower(): (key, _text_of(value)) for key, value in pairs if value is not None}
        return dict(found.values())

    def option(self, name: str) -> str | None:
        """Return an option by its name, in whatever case."""
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), None)

    @property
    def of_sink(self) -> dict[str, str]:
        """The options that the sink gets."""
        return {key: value for key, value in self.options.items() if not key.lower().startswith(_OURS)}

    def source(self, spark: SparkSession) -> str:
        """Return the format, the session's usual one where none was named: in small letters but for a class's name."""
        named = self.format or spark.conf.get("spark.sql.sources.default") or "parquet"
        return named if "." in named else named.lower()

    def on(self, writer: DataStreamWriter, *methods: str) -> DataStreamWriter:
        """Tell a writer of Spark's the same: all, or what these methods were given."""
        for call in self.calls:
            if not methods or call.method in methods:
                getattr(writer, call.method)(*call.positional, **call.named)
        return writer


def _pair(key: str, value: object) -> tuple[str, object]:
    return key, value


def _text_of(value: object) -> str:
    """Return an option's value as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
