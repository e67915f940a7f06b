"""Spark's frames as users hold them once a stream is wrapped, and what starts their queries: each method is Spark's,
and its result is wrapped too. Knows PySpark's classes, and which Python calls a plan does not tell in full. Does not
know what is in plans, or what becomes of them.

A wrapped frame's plan carries a mark, so that whatever Spark's own hands make of it (``spark.sql`` over a view, a join
of a plain frame with it) is known for ours, and fails with a sentence where it is started without us.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from riffle_spark.errors import ConfigError
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import jvm, spark_batch
from riffle_spark.spark.engine.worker_python import check_driver_packages
from riffle_spark.spark.plans.plan_nodes import analysed, function_id
from riffle_spark.spark.queries.group_stages import GroupsCall, keep_call
from riffle_spark.spark.queries.query_start import explained, started
from riffle_spark.spark.queries.stream_options import Place, StreamOptions, latest_rows, marked, options_in
from riffle_spark.spark.sinks.sink_choice import side_sink
from riffle_spark.spark.sinks.writer_settings import WriterCall, WriterSettings
from riffle_spark.spark.stateful import check_settings
from riffle_spark.state.objects.open import normalised

__all__ = ["StreamFrame", "StreamGroups", "StreamWriter", "latest", "on"]

_NOTED = ("clusterBy", "format", "option", "options", "outputMode", "partitionBy", "queryName", "trigger")
"""Methods that Spark's own writer checks; what they were given is remembered."""


class StreamWriter(DataStreamWriter):
    """A wrapped frame's writer: all of Spark's methods, and ``start`` runs stateful operators on riffle."""

    def __init__(self, frame: Any, options: StreamOptions) -> None:
        super().__init__(frame)
        self._frame = frame
        self._told = options
        self._calls: list[WriterCall] = []

    def foreach(self, f: Any) -> "StreamWriter":
        """Give each row to a function, or to an object with ``open``, ``process`` and ``close``."""
        DataStreamWriter._construct_foreach_function(f)  # It checks what it is given.
        return self._noted("foreach", (f,), {})

    def foreachBatch(self, func: Callable[..., object]) -> "StreamWriter":  # noqa: N802 - Spark's name
        """Give each batch to ``func(frame, batch_id)`` or, if a third parameter has no default, ``func(frame, batch_id,
        delivery_id)``: that id repeats exactly when the same rows come again.
        """
        spark_batch.arity(func)
        return self._noted("foreachBatch", (func,), {})

    def start(
        self, path: str | None = None, format: str | None = None, outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None, queryName: str | None = None, **options: Any,  # noqa: N803
    ) -> StreamingQuery:  # fmt: skip
        """Start the query, as Spark's own ``start`` does; return it with Spark's face.

        Raises what Spark raises for what it refuses, and ``ConfigError`` for what only riffle cannot do.
        """
        self._also(format, outputMode, partitionBy, queryName, options)
        return started(self._frame, WriterSettings(tuple(self._calls), path=path), self._told)

    def toTable(  # noqa: N802 - Spark's own name and arguments
        self, tableName: str, format: str | None = None, outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None, queryName: str | None = None, **options: Any,  # noqa: N803
    ) -> StreamingQuery:  # fmt: skip
        """Start the query into a table, which is made if it is not there."""
        self._also(format, outputMode, partitionBy, queryName, options)
        return started(self._frame, WriterSettings(tuple(self._calls), table=tableName), self._told)

    def _also(
        self, format_name: str | None, mode: str | None, by: str | list[str] | None, name: str | None,
        options: Mapping[str, object],
    ) -> None:  # fmt: skip
        """Take what ``start`` and ``toTable`` may be given, too."""
        self.options(**options)  # type: ignore[arg-type] # Spark checks them
        for method, given in (("outputMode", mode), ("partitionBy", by), ("format", format_name), ("queryName", name)):
            if given is not None:
                getattr(self, method)(given)

    def _noted(self, name: str, positional: tuple[object, ...], named: Mapping[str, object]) -> "StreamWriter":
        self._calls.append(WriterCall(name, positional, dict(named)))
        return self


class StreamFrame(ClassicFrame):
    """A stream's frame whose stateful operators run on riffle: a ``DataFrame`` with all its methods."""

    @property
    def writeStream(self) -> StreamWriter:  # noqa: N802 - Spark's name
        """Return what starts the query, as Spark's own is used."""
        return StreamWriter(self, options_in(self))

    def explain(self, extended: bool | str | None = None, mode: str | None = None) -> None:
        """Print what Spark runs of the query, a line for each stateful operator that riffle runs, and what follows."""
        print(explained(self, extended, mode))  # noqa: T201 - as Spark does


class StreamGroups(GroupedData):
    """A wrapped frame's groups."""


def _wrapped(given: object) -> object:
    """Return frames and groups of Spark's as ours, and all else as it is."""
    if isinstance(given, ClassicFrame) and not isinstance(given, StreamFrame):
        return StreamFrame(given._jdf, given.sparkSession)
    if isinstance(given, GroupedData) and not isinstance(given, StreamGroups):
        return StreamGroups(given._jgd, given._df)
    if isinstance(given, list) and given and isinstance(given[0], DataFrame):
        return [_wrapped(one) for one in given]
    return given


def _again(method: Callable[..., object]) -> Callable[..., object]:
    """Return a method whose result is wrapped."""

    @functools.wraps(method)
    def call(self: object, *positional: object, **named: object) -> object:
        return _wrapped(method(self, *positional, **named))

    return call


def _remembered(method: Callable[..., object], name: str) -> Callable[..., object]:
    """Return a method of groups of which is remembered what it was given."""

    @functools.wraps(method)
    def call(self: object, *positional: object, **named: object) -> object:
        frame = _wrapped(method(self, *positional, **named))
        assert isinstance(frame, StreamFrame), name
        function = function_id(analysed(frame))
        if function is not None:
            keep_call(function, GroupsCall(name, positional, named))
        return frame

    return call


def _methods(base: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the public methods of a class; a property or a method of the class itself is none."""
    for name in dir(base):
        if not name.startswith("_") and callable(member := getattr(base, name)):
            yield name, member


def _wrap(ours: type, base: type) -> None:
    """Give a class all methods of the one below it, so that they return what is wrapped."""
    for name, member in _methods(base):
        if name in vars(ours):
            continue
        is_told = name.startswith("transformWithState") or name == "applyInPandasWithState"
        setattr(ours, name, _remembered(member, name) if is_told else _again(member))


def _checked(name: str) -> Callable[..., StreamWriter]:
    """Return a method of Spark's that checks what it is given, which is then remembered."""
    method = getattr(DataStreamWriter, name)

    @functools.wraps(method)
    def call(self: StreamWriter, *positional: object, **named: object) -> StreamWriter:
        method(self, *positional, **named)
        return self._noted(name, positional, named)

    return call


for _name in _NOTED:
    if hasattr(DataStreamWriter, _name):
        setattr(StreamWriter, _name, _checked(_name))
_wrap(StreamFrame, ClassicFrame)
_wrap(StreamGroups, GroupedData)


def on(
    frame: DataFrame, *, root: str | None = None, settings: Settings | None = None,
    late_rows: Place | None = None, dead_letters: Place | None = None,
) -> StreamFrame:  # fmt: skip
    """Return a stream's frame with all methods of a ``DataFrame``, whose stateful operators run on riffle.

    ``root`` is where the query keeps its state, also where ``settings``, which has all else that can be set, names
    another one; several streams of one query share one root. A frame that Spark's own hands made of a wrapped one, as
    ``spark.sql`` over a view of it, is wrapped once more before it is started; it has its root from there.
    ``late_rows`` takes the rows that the query leaves out as too late, ``dead_letters`` those that a function of yours
    (``applyInPandasWithState``, ``transformWithState``, ``transformWithStateInPandas``) fails on, which else fail the
    query: each is a function as of ``foreachBatch``, or a folder for Parquet. Raises ``ConfigError`` for what is no
    stream's frame, for a root that is no URL of a root, and on Spark Connect.

    >>> events = riffle_spark.on(events, root="s3://bucket/state/visits")  # doctest: +SKIP
    """
    _check_stream(frame, "on")
    check_driver_packages()
    check_settings(settings, "on")
    if root:
        normalised(root)
    for place in (late_rows, dead_letters):
        if place is not None:
            side_sink(place)  # It checks what it is given.
    return _with_options(frame, StreamOptions(root or "", settings, late_rows or None, dead_letters or None))


def latest(changes: DataFrame, key: str | Sequence[str], *, by: str | Sequence[str]) -> StreamFrame:
    """Return a table of a stream of changes, to be joined with another stream: of each ``key``, one column or several,
    it has the row that is the last one in the order of the columns ``by``.

    Each row of the other stream is joined in its own batch, and not again, with what the table has for it once the
    changes of that batch are in it. ``select`` and ``where`` make a table of the table: a key whose last row does not
    pass is not there, which is how one is deleted. Raises ``ConfigError`` for what is no stream's frame or column.

    >>> users = riffle_spark.latest(changes, "user", by="changed_at").where("not deleted")  # doctest: +SKIP
    >>> events = riffle_spark.on(events).join(users, "user", "left")  # doctest: +SKIP
    """
    _check_stream(changes, "latest")
    names = [[one] if isinstance(one, str) else list(one) for one in (key, by)]
    if not all(names):
        raise ConfigError(
            "riffle_spark.latest was given no columns",
            remedy="name the table's key, and by what a change is the last one of its key: by='changed_at'",
            where="by" if names[0] else "key",
            id="RIFFLE-0301",
        )
    frame = latest_rows(changes, *names)
    return StreamFrame(frame._jdf, frame.sparkSession)


def _check_stream(frame: object, called: str) -> None:
    """Raise ``ConfigError`` for what is no stream's frame, and on Spark Connect."""
    if not isinstance(frame, DataFrame):
        raise ConfigError(
            f"riffle_spark.{called} was given a {type(frame).__name__}",
            remedy="give it the frame that spark.readStream...load() returned, or one that was made of it",
            where="frame",
            id="RIFFLE-0302",
        )
    if not jvm.is_classic(frame.sparkSession):
        raise ConfigError(
            f"Spark Connect shows no plans, so riffle_spark.{called} cannot read a query there",
            remedy="write the operator as riffle_spark.Stateful(...).into(sink) for foreachBatch, which needs none",
            where="frame",
            id="RIFFLE-0303",
        )
    if not frame.isStreaming:
        raise ConfigError(
            f"riffle_spark.{called} was given a static frame, which has no state to keep",
            remedy="give it the frame that spark.readStream...load() returned, and leave static frames as they are",
            where="frame",
            id="RIFFLE-0304",
        )


def _with_options(frame: DataFrame, options: StreamOptions) -> StreamFrame:
    given = options.root or (options.settings.root if options.settings is not None else None) or ""
    known = options_in(frame).root
    if given and known and given != known:
        raise ConfigError(
            f"the frame is made of one with the root {known}, and was wrapped again with {given}",
            remedy="give riffle_spark.on one root for all streams of a query, or none where a frame has it already",
            where="root",
            id="RIFFLE-0305",
        )
    frame = marked(frame, replace(options, root=given))
    return StreamFrame(frame._jdf, frame.sparkSession)
