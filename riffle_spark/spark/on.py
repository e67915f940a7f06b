"""``riffle_spark.on``: the one line that moves a query. Knows what a frame has to be, no more."""

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from riffle_spark.errors import ConfigError
from riffle_spark.settings import Settings
from riffle_spark.spark.engine.jvm import is_classic
from riffle_spark.unknown_names import checks_keywords

if TYPE_CHECKING:
    from riffle_spark.spark.frames.stream_frame import StreamFrame

__all__ = ["on"]


@checks_keywords
def on(frame: DataFrame, *, root: str | None = None, settings: Settings | None = None) -> "StreamFrame":
    """Return a stream's frame with all methods of a ``DataFrame``, whose stateful operators run on riffle.

    ``root`` is where the query keeps its state, ``settings`` all else that can be set; several streams of one query
    share one root. A frame that Spark's own hands made of a wrapped one, as ``spark.sql`` over a view of it, is wrapped
    once more before it is started; it has its root from there. Raises ``ConfigError`` for what is no stream's frame,
    and on Spark Connect.

    >>> events = riffle_spark.on(events, root="s3://bucket/state/visits")  # doctest: +SKIP
    """
    if not isinstance(frame, DataFrame):
        raise ConfigError(
            f"riffle_spark.on was given a {type(frame).__name__}",
            remedy="give it the frame that spark.readStream...load() returned, or one that was made of it",
            where="frame",
        )
    if not is_classic(frame.sparkSession):
        raise ConfigError(
            "Spark Connect shows no plans, so riffle_spark.on cannot read a query there",
            remedy="write the operator as riffle_spark.Stateful(...).into(sink) for foreachBatch, which needs none",
            where="frame",
        )
    if not frame.isStreaming:
        raise ConfigError(
            "riffle_spark.on was given a frame that is no stream: it has nothing to keep between batches",
            remedy="wrap the frame that spark.readStream...load() returned, and leave static frames as they are",
            where="frame",
        )
    return _wrapped(frame, root, settings)


def _wrapped(frame: DataFrame, root: str | None, settings: Settings | None) -> "StreamFrame":
    from riffle_spark.spark.frames.stream_frame import StreamOptions, marked, options_in

    given = root or (settings.root if settings is not None else None) or ""
    known = options_in(frame).root
    if given and known and given != known:
        raise ConfigError(
            f"the frame is made of one with the root {known}, and was wrapped again with {given}",
            remedy="give riffle_spark.on one root for all streams of a query, or none where a frame has it already",
            where="root",
        )
    return marked(frame, StreamOptions(given, settings))
