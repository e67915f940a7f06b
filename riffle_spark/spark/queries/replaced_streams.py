"""Replace the streams of a query while its function runs, so that `riffle shadow` runs the query on recorded rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from pyspark.sql import DataFrame

from riffle_spark.errors import ConfigError
from riffle_spark.spark.queries.stream_options import StreamOptions

Replace: TypeAlias = Callable[[DataFrame, StreamOptions], tuple[DataFrame, StreamOptions | None]]
"""Gets the frame and the options of a call of ``riffle_spark.on``. Returns another frame and its options. With the
options ``None`` Spark's own operators run on the frame.
"""

_replace: ContextVar[Replace | None] = ContextVar("replace", default=None)


@contextmanager
def replacing_streams(replace: Replace) -> Iterator[None]:
    """Let ``riffle_spark.on`` use the frame and the options that ``replace`` returns, in this thread."""
    token = _replace.set(replace)
    try:
        yield
    finally:
        _replace.reset(token)


def replaced_stream(frame: DataFrame, options: StreamOptions) -> tuple[DataFrame, StreamOptions | None]:
    """Return the frame and the options to use for a call of ``riffle_spark.on``."""
    replace = _replace.get()
    return (frame, options) if replace is None else replace(frame, options)


def check_not_replacing(function: str) -> None:
    """Raise ``ConfigError`` while streams are replaced. ``function`` is the public function that was called."""
    if _replace.get() is not None:
        raise ConfigError(
            f"The query calls riffle_spark.{function}, which Spark's own operators do not support.",
            remedy="Compare a query that Spark alone can run, too.",
            where=function,
            id="RIFFLE-1680",
        )
