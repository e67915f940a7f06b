"""Wrapped streaming frames, and the writer that starts their queries.

1. Each method of a wrapped frame is Spark's, and its result is wrapped too.
2. A wrapped frame's plan has a mark. So a frame that Spark derives from it, for example by ``spark.sql`` over a view,
   is recognised. Its query fails with a remedy if it is started without riffle.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.cut import hide_marks
from riffle_spark.settings import Settings
from riffle_spark.spark.arguments import check_settings
from riffle_spark.spark.compat import ClassicFrame
from riffle_spark.spark.engine import jvm, spark_batch
from riffle_spark.spark.engine.worker_python import check_driver_packages
from riffle_spark.spark.plans.plan_nodes import analysed, function_id
from riffle_spark.spark.queries.group_stages import GroupsCall, keep_call
from riffle_spark.spark.queries.query_start import explain_query, start_query
from riffle_spark.spark.queries.replaced_streams import check_not_replacing, replaced_stream
from riffle_spark.spark.queries.stream_options import Place, StreamOptions, latest_rows, marked, options_in
from riffle_spark.spark.queries.stream_query import StreamJob
from riffle_spark.spark.sinks.sink_choice import side_sink
from riffle_spark.spark.sinks.writer_settings import WriterCall, WriterSettings
from riffle_spark.state.objects.open import normalised

_OF_PROCESSORS = ("transformWithState", "transformWithStateInPandas")
_RECORDED = ("clusterBy", "format", "option", "options", "outputMode", "partitionBy", "queryName", "trigger")
"""Methods whose arguments Spark's own writer checks, and which are recorded."""


class StreamWriter(DataStreamWriter):
    """A wrapped frame's writer, with all of Spark's methods. ``start`` runs stateful operators on riffle."""

    def __init__(self, frame: Any, options: StreamOptions) -> None:
        """Create the writer of a wrapped frame, with the options that ``riffle_spark.on`` got."""
        super().__init__(frame)
        self._frame = frame
        self._options = options
        self._calls: list[WriterCall] = []

    def foreach(self, f: Any) -> "StreamWriter":
        """Call a function, or an object with ``open``, ``process`` and ``close``, for each row."""
        DataStreamWriter._construct_foreach_function(f)  # Checks its argument.
        return self._record("foreach", (f,), {})

    def foreachBatch(self, func: Callable[..., object]) -> "StreamWriter":  # noqa: N802 - Spark's name
        """Call ``func(frame, batch_id)`` for each batch.

        If a third parameter has no default, ``func(frame, batch_id, delivery_id)`` is called. A delivery id repeats
        exactly when the same rows are delivered again.
        """
        spark_batch.arity(func)
        return self._record("foreachBatch", (func,), {})

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> StreamingQuery:
        """Start the query, as Spark's own ``start`` does.

        Raises Spark's errors for queries that Spark refuses, and ``ConfigError`` for queries that only riffle refuses.
        """
        self._set_arguments(format, outputMode, partitionBy, queryName, options)
        return start_query(self._frame, WriterSettings(tuple(self._calls), path=path), self._options)

    def toTable(  # noqa: N802 - Spark's own name and arguments
        self,
        tableName: str,  # noqa: N803
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> StreamingQuery:
        """Start the query into a table. The table is created if it does not exist."""
        self._set_arguments(format, outputMode, partitionBy, queryName, options)
        return start_query(self._frame, WriterSettings(tuple(self._calls), table=tableName), self._options)

    def _set_arguments(
        self,
        format_name: str | None,
        mode: str | None,
        partition_by: str | list[str] | None,
        query_name: str | None,
        options: Mapping[str, object],
    ) -> None:
        """Call the methods for the arguments of ``start`` and ``toTable``."""
        self.options(**options)  # type: ignore[arg-type] # Spark checks them.
        arguments = (
            ("outputMode", mode),
            ("partitionBy", partition_by),
            ("format", format_name),
            ("queryName", query_name),
        )
        for method, argument in arguments:
            if argument is not None:
                getattr(self, method)(argument)

    def _record(self, name: str, positional: tuple[object, ...], named: Mapping[str, object]) -> "StreamWriter":
        """Record a call of a writer's method, to be repeated at the start. Return the writer."""
        self._calls.append(WriterCall(name, positional, dict(named)))
        return self


def start_prepared(writer: StreamWriter, prepare: Callable[[StreamJob], object]) -> StreamingQuery:
    """Start a query as ``writer.start()`` does. Before the start, call ``prepare`` with its job."""
    return start_query(writer._frame, WriterSettings(tuple(writer._calls)), writer._options, prepare)


def query_parts(query: object) -> tuple[DataFrame, WriterSettings, StreamOptions] | None:
    """Return the frame, the writer's settings and the options of a wrapped frame or of its writer.

    ``None`` for any other object.
    """
    writer = query.writeStream if isinstance(query, StreamFrame) else query
    if not isinstance(writer, StreamWriter):
        return None
    return writer._frame, WriterSettings(tuple(writer._calls)), writer._options


class StreamFrame(ClassicFrame):
    """A streaming ``DataFrame`` with stateful operators that run on riffle."""

    @property
    def writeStream(self) -> StreamWriter:  # noqa: N802 - Spark's name
        """Return the writer that starts the query."""
        return StreamWriter(self, options_in(self))

    def explain(self, extended: bool | str | None = None, mode: str | None = None) -> None:
        """Print Spark's plan of the inputs, the stateful operators that riffle runs, and the plan after them."""
        print(explain_query(self, extended, mode))  # noqa: T201 - as Spark does


class StreamGroups(GroupedData):
    """The grouped data of a wrapped frame. Its methods return wrapped frames."""


def _wrap(result: object) -> object:
    """Return Spark's frames and grouped data as wrapped ones, lists of frames too, and any other object unchanged."""
    if isinstance(result, ClassicFrame) and not isinstance(result, StreamFrame):
        return StreamFrame(result._jdf, result.sparkSession)
    if isinstance(result, GroupedData) and not isinstance(result, StreamGroups):
        return StreamGroups(result._jgd, result._df)
    if isinstance(result, list) and result and isinstance(result[0], DataFrame):
        return [_wrap(frame) for frame in result]
    return result


def _wrap_result(method: Callable[..., object]) -> Callable[..., object]:
    """Return a method that calls ``method`` and wraps its result."""

    @functools.wraps(method)
    def call(self: object, *positional: object, **named: object) -> object:
        try:
            return _wrap(method(self, *positional, **named))
        except AnalysisException as error:
            _hide_marks_in(error)
            raise

    return call


def _hide_marks_in(error: AnalysisException) -> None:
    """Replace the marks in the plan that Spark shows in an error. A mark has the text of another error."""
    for name in ("_desc", "desc"):  # private: PySpark 4 and 3.5 keep the text that str() returns there
        text = getattr(error, name, None)
        if isinstance(text, str):
            setattr(error, name, hide_marks(text))


def _keep_arguments(method: Callable[..., object], name: str) -> Callable[..., object]:
    """Return a method of grouped data that calls ``method`` and keeps its arguments for the query's start.

    ``name`` is the name of the method.
    """

    @functools.wraps(method)
    def call(self: object, *positional: object, **named: object) -> object:
        frame = _wrap(method(self, *positional, **named))
        assert isinstance(frame, StreamFrame), name
        function = function_id(analysed(frame))
        if function is not None:
            keep_call(function, GroupsCall(name, positional, named))
        return frame

    return call


def _refused(name: str) -> Callable[..., object]:
    """Return a method of grouped data that raises ``ConfigError``."""

    def call(self: object, *_positional: object, **_named: object) -> object:  # noqa: ARG001 - a method
        # Cause: PySpark has transformWithStateInPandas since 4.0, and transformWithState since 4.1.
        raise ConfigError(
            f"PySpark {pyspark.__version__} has no {name}.",
            remedy="Install PySpark 4.1 or newer, or write the function for applyInPandasWithState.",
            where=name,
            id="RIFFLE-1030",
        )

    return call


def _public_methods(base: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the name and the function of each public method of a class."""
    for name in dir(base):
        if not name.startswith("_") and callable(member := getattr(base, name)):
            yield name, member


def _wrap_methods(wrapper: type, base: type) -> None:
    """Override all public methods that ``wrapper`` inherits from ``base``, so that their results are wrapped."""
    for name, member in _public_methods(base):
        if name in vars(wrapper):
            continue
        has_function = name in (*_OF_PROCESSORS, "applyInPandasWithState")
        setattr(wrapper, name, _keep_arguments(member, name) if has_function else _wrap_result(member))


def _recording_method(name: str) -> Callable[..., StreamWriter]:
    """Return a writer's method that records its call after Spark's own method has checked the arguments."""
    method = getattr(DataStreamWriter, name)

    @functools.wraps(method)
    def call(self: StreamWriter, *positional: object, **named: object) -> StreamWriter:
        method(self, *positional, **named)
        return self._record(name, positional, named)

    return call


for _name in _RECORDED:
    if hasattr(DataStreamWriter, _name):
        setattr(StreamWriter, _name, _recording_method(_name))
_wrap_methods(StreamFrame, ClassicFrame)
_wrap_methods(StreamGroups, GroupedData)
for _name in _OF_PROCESSORS:
    if not hasattr(GroupedData, _name):
        setattr(StreamGroups, _name, _refused(_name))


def on(
    frame: DataFrame,
    *,
    root: str | None = None,
    settings: Settings | None = None,
    late_rows: Place | None = None,
    dead_letters: Place | None = None,
    initial_state: Mapping[str, DataFrame] | None = None,
) -> StreamFrame:
    """Return a streaming frame whose stateful operators run on riffle. It has all methods of a ``DataFrame``.

    Wrap every stream of a query, with the same root. A frame that Spark derives from a wrapped one, for example by
    ``spark.sql`` over a view, must be wrapped again before it is started; it keeps the root.

    Parameters:

    - ``frame``: a streaming ``DataFrame`` of a classic Spark session.
    - ``root``: the URL of the state, such as ``s3://bucket/prefix`` or ``file:///path``. Each query that is started
      from the frame has its own root below it, named by ``queryName`` or else by its checkpoint. It overrides the root
      in ``settings``.
    - ``settings``: all other settings.
    - ``late_rows``: the destination of rows that the query drops as too late: a folder for Parquet, or a function like
      that of ``foreachBatch``.
    - ``dead_letters``: the destination of rows for which a function (``applyInPandasWithState``,
      ``transformWithState``, ``transformWithStateInPandas``) raises an error. Without it the query fails.
    - ``initial_state``: a static frame by store, from which an aggregate, a de-duplication or session windows start.
      It is written before the query's first batch if the root is empty, and ignored otherwise.

    Raises ``ConfigError`` if ``frame`` is not a streaming frame, if ``root`` is not the URL of a root, and on Spark
    Connect.

    >>> events = riffle_spark.on(events, root="s3://bucket/state/visits")  # doctest: +SKIP
    """
    _check_stream(frame, "on")
    check_driver_packages()
    check_settings(settings, "on")
    if root:
        normalised(root)
    for place in (late_rows, dead_letters):
        if place is not None:
            side_sink(place)  # Checks its argument.
    options = StreamOptions(root or "", settings, late_rows or None, dead_letters or None, initial_state or None)
    if initial_state is not None and not isinstance(initial_state, Mapping):
        raise ConfigError(
            f"initial_state is a {type(initial_state).__name__}, not a dictionary.",
            remedy="Pass a dictionary from the name of each store, such as 'aggregate.page', to its frame.",
            where="initial_state",
            id="RIFFLE-1782",
        )
    used_frame, used_options = replaced_stream(frame, options)
    if used_options is None:
        return cast(StreamFrame, used_frame)  # Only `riffle shadow` runs the query without this package.
    new_root = used_options.root or (used_options.settings and used_options.settings.root) or ""
    marked_frame = marked(used_frame, replace(used_options, root=new_root))
    return StreamFrame(marked_frame._jdf, marked_frame.sparkSession)


def latest(changes: DataFrame, key: str | Sequence[str], *, by: str | Sequence[str]) -> StreamFrame:
    """Return a stream of changes as a table of the last row per key, to be joined with another stream.

    A row of the other stream is joined once, in its own batch, after the changes of that batch. ``select`` and
    ``where`` on the table apply to its rows: if a key's last row does not pass, the table has no row for the key. So a
    change that does not pass deletes its key.

    Parameters:

    - ``changes``: a streaming ``DataFrame``.
    - ``key``: the name of the key column, or several.
    - ``by``: the name of the column that orders the changes of a key, or several.

    Raises ``ConfigError`` if ``changes`` is not a streaming frame or a name is not one of its columns.

    >>> users = riffle_spark.latest(changes, "user", by="changed_at").where("not deleted")  # doctest: +SKIP
    >>> events = riffle_spark.on(events).join(users, "user", "left")  # doctest: +SKIP
    """
    _check_stream(changes, "latest")
    check_not_replacing("latest")
    key_names = [key] if isinstance(key, str) else list(key)
    order_names = [by] if isinstance(by, str) else list(by)
    if not key_names or not order_names:
        raise ConfigError(
            "riffle_spark.latest got no columns.",
            remedy="Name the columns of the table's key, and those that order its changes: by='changed_at'.",
            where="by" if key_names else "key",
            id="RIFFLE-0301",
        )
    frame = latest_rows(changes, key_names, order_names)
    return StreamFrame(frame._jdf, frame.sparkSession)


def _check_stream(frame: object, function: str) -> None:
    """Raise ``ConfigError`` unless the argument is a streaming frame of a classic session."""
    if not isinstance(frame, DataFrame):
        raise ConfigError(
            f"riffle_spark.{function} got a {type(frame).__name__}, not a DataFrame.",
            remedy="Pass the frame that spark.readStream...load() returned, or one derived from it.",
            where="frame",
            id="RIFFLE-0302",
        )
    if not jvm.is_classic(frame.sparkSession):
        raise ConfigError(
            f"riffle_spark.{function} is not supported on Spark Connect, which does not expose query plans.",
            remedy="Write the operator as riffle_spark.Stateful(...).into(sink) for foreachBatch.",
            where="frame",
            id="RIFFLE-0303",
        )
    if not frame.isStreaming:
        raise ConfigError(
            f"riffle_spark.{function} got a static frame, which has no state to keep.",
            remedy="Pass the frame that spark.readStream...load() returned. Leave static frames unwrapped.",
            where="frame",
            id="RIFFLE-0304",
        )
