"""Run a PySpark ``StatefulProcessor`` as a stateful operator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from riffle_spark.batch_times import TimeMode, Times, parse_time_mode
from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import USUAL_INITIAL
from riffle_spark.process.blocks.block import Declared
from riffle_spark.process.processors.processing import Processing
from riffle_spark.process.processors.processor import Form
from riffle_spark.process.types.spark_schemas import schema_of_ddl, schema_of_json
from riffle_spark.settings import Settings
from riffle_spark.spark.compat import StatefulProcessor
from riffle_spark.spark.processors.pandas_conf import SETTINGS, pandas_options
from riffle_spark.spark.processors.row_form import EventTimeForm, RowForm
from riffle_spark.spark.processors.spark_processor import SparkProcessor, declare, declared_with_rows
from riffle_spark.spark.stateful import Stateful
from riffle_spark.state.schemas.variables import VariableColumns

OutputType: TypeAlias = str | DataType | pa.Schema
_STORE: Final = "transform_with_state"
_OUTPUT_MODES: Final = ("append", "update")
_METHODS: Final = ("init", "handleInputRows", "close")


@dataclass(frozen=True)
class TransformWithState:
    """A ``ProcessorComputation`` that calls a user's ``StatefulProcessor``; made by ``transform_with_state``.

    ``pandas`` holds Spark's settings for conversions to and from pandas, and is ``None`` if the processor takes ``Row``
    objects. ``event_time`` is the output column with the event time of the next operator. Its values must be after the
    watermark.
    """

    processor: StatefulProcessor
    output: pa.Schema
    time_mode: TimeMode
    pandas: Mapping[str, object] | None = None
    event_time: str | None = None

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - a processor may read all columns
        """Declare the state variables that ``init`` requests. Runs ``init`` as Spark does on its driver."""
        variables = declare(self.processor, self.time_mode).variables
        return Declared(
            pa.schema([]), self.output, columns=None, per_key_group=False, time_mode=self.time_mode, variables=variables
        )

    def make_processing(self, schema: VariableColumns, times: Times, where: str) -> Processing:
        """Return the running processor for a slot in a batch. ``where`` is the place in its errors."""
        processor = SparkProcessor(self.processor, schema.variables, schema.key.names, times)
        return Processing(schema, declared_with_rows(schema), processor, self._form(times), times, where=where)

    def counted(self) -> Mapping[str, int]:
        """Return the number of state variables of each kind, keyed by their names in Spark's query progress."""
        declaration = declare(self.processor, self.time_mode)
        counts = {f"num{kind}StateVars": 0 for kind in ("Value", "List", "Map")}
        counts |= {f"num{kind}StateWithTTLVars": 0 for kind in ("Value", "List", "Map")}
        for variable in declaration.variables:
            counts[f"num{variable.kind.capitalize()}StateVars"] += 1
            counts[f"num{variable.kind.capitalize()}StateWithTTLVars"] += variable.ttl_ms is not None
        return {**counts, "numDeletedStateVars": len(declaration.deleted)}

    def with_conf(self, conf: Mapping[str, str]) -> "TransformWithState":
        """Return the computation with the pandas settings of Spark's configuration ``conf``.

        Settings that ``conf`` lacks have Spark's defaults. A processor of ``Row`` objects is returned unchanged.
        """
        return self if self.pandas is None else replace(self, pandas=pandas_options(conf))

    def _form(self, times: Times) -> Form:
        """Return the form in which the processor gets and returns rows."""
        form: Form = RowForm(self.output)
        if self.pandas is not None:
            forms = import_module("riffle_spark.spark.processors.pandas_form")  # pandas is optional
            form = forms.PandasForm(self.output, forms.PandasOptions(**self.pandas))
        return form if self.event_time is None else EventTimeForm(form, self.event_time, times.late_ms or 0)


def transform_with_state(  # noqa: PLR0913 - the arguments of Spark's method and of an operator
    processor: StatefulProcessor,
    *,
    key: str | Sequence[str],
    output: OutputType,
    output_mode: str = "append",
    time_mode: str = "None",
    initial_state: DataFrame | None = None,
    initial_state_name: str = USUAL_INITIAL,
    store: str = _STORE,
    watermark: tuple[str, str] | None = None,
    order_by: str | Sequence[str] = (),
    settings: Settings | None = None,
) -> Stateful:
    """Return the operator of a processor that takes and returns ``Row`` objects, as PySpark's ``transformWithState``.

    Args:
        processor: The processor, unchanged. Every slot of every batch gets its own copy.
        key: Name of the key column, or names of several.
        output: Schema of the output: DDL, a ``StructType`` or an Arrow schema.
        output_mode: ``append`` or ``update``. Both pass every output row to the sink.
        time_mode: ``None``, ``ProcessingTime`` or ``EventTime``. Event time needs a watermark.
        initial_state: A frame with the key columns, for ``handleInitialState`` in the first batch of the store.
        initial_state_name: Name of the initial state. With a name, a query that already has state also loads it: once,
            with its next batch. Keys that already have state get it, too.
        store: Name of the state, unique within a query.
        watermark: A timestamp column and a delay, such as ``("at", "10 minutes")``. The default is the watermark that
            ``withWatermark`` set on the input.
        order_by: Columns that order the rows of a key.
        settings: Settings of the query.

    Returns:
        The operator. ``into(sink)`` makes it the function for ``foreachBatch``.

    Raises:
        ConfigError: If an argument is invalid. Errors of the processor fail the batch with ``UserFunctionError``.

    >>> from pyspark.sql import Row
    >>> from pyspark.sql.streaming import StatefulProcessor
    >>> from riffle_spark import Settings, transform_with_state
    >>> class Orders(StatefulProcessor):
    ...     def init(self, handle):
    ...         self.total = handle.getValueState("total", "orders long")
    ...
    ...     def handleInputRows(self, key, rows, timerValues):
    ...         orders = (self.total.get() or (0,))[0] + sum(1 for _ in rows)
    ...         self.total.update((orders,))
    ...         yield Row(user=key[0], orders=orders)
    ...
    ...     def close(self):
    ...         pass
    >>> orders = transform_with_state(
    ...     Orders(), key="user", output="user string, orders long", settings=Settings(root=f"{root}/transform")
    ... )
    >>> job = orders.into(lambda frame, batch_id: print(frame.collect()))
    >>> events.writeStream.foreachBatch(job).trigger(availableNow=True).start().awaitTermination()
    [Row(user='ann', orders=2)]
    """
    time = _check_modes(output_mode, time_mode)
    compute = TransformWithState(_check_processor(processor), _output_schema(output), time)
    return Stateful(
        store,
        key,
        compute,
        settings=settings,
        order_by=order_by,
        watermark=watermark,
        initial_state=initial_state,
        initial_state_name=initial_state_name,
    )


def transform_with_state_in_pandas(  # noqa: PLR0913 - the arguments of Spark's method and of an operator
    processor: StatefulProcessor,
    *,
    key: str | Sequence[str],
    output: OutputType,
    output_mode: str = "append",
    time_mode: str = "None",
    initial_state: DataFrame | None = None,
    initial_state_name: str = USUAL_INITIAL,
    store: str = _STORE,
    watermark: tuple[str, str] | None = None,
    order_by: str | Sequence[str] = (),
    settings: Settings | None = None,
) -> Stateful:
    """Return the operator of a processor that takes and returns pandas DataFrames (``transformWithStateInPandas``).

    Spark's settings for conversions to and from pandas are read from the active session when this function is called.

    Args:
        processor: The processor, unchanged. Every slot of every batch gets its own copy.
        key: Name of the key column, or names of several.
        output: Schema of the output: DDL, a ``StructType`` or an Arrow schema.
        output_mode: ``append`` or ``update``. Both pass every output row to the sink.
        time_mode: ``None``, ``ProcessingTime`` or ``EventTime``. Event time needs a watermark.
        initial_state: A frame with the key columns, for ``handleInitialState`` in the first batch of the store.
        initial_state_name: Name of the initial state. With a name, a query that already has state also loads it: once,
            with its next batch. Keys that already have state get it, too.
        store: Name of the state, unique within a query.
        watermark: A timestamp column and a delay, such as ``("at", "10 minutes")``. The default is the watermark that
            ``withWatermark`` set on the input.
        order_by: Columns that order the rows of a key.
        settings: Settings of the query.

    Returns:
        The operator. ``into(sink)`` makes it the function for ``foreachBatch``.

    Raises:
        ConfigError: If an argument is invalid. Errors of the processor fail the batch with ``UserFunctionError``.

    >>> import pandas as pd
    >>> from pyspark.sql.streaming import StatefulProcessor
    >>> from riffle_spark import transform_with_state_in_pandas
    >>> class Rows(StatefulProcessor):
    ...     def init(self, handle):
    ...         pass
    ...
    ...     def handleInputRows(self, key, rows, timerValues):
    ...         yield pd.DataFrame({"user": [key[0]], "orders": [sum(map(len, rows))]})
    ...
    ...     def close(self):
    ...         pass
    >>> job = transform_with_state_in_pandas(Rows(), key="user", output="user string, orders long").into(write)
    """
    time = _check_modes(output_mode, time_mode)
    compute = TransformWithState(_check_processor(processor), _output_schema(output), time, _pandas_settings())
    return Stateful(
        store,
        key,
        compute,
        settings=settings,
        order_by=order_by,
        watermark=watermark,
        initial_state=initial_state,
        initial_state_name=initial_state_name,
    )


def _check_processor(processor: StatefulProcessor) -> StatefulProcessor:
    """Return the processor. Raise ``ConfigError`` for a class or an object without the methods that Spark calls."""
    missing = [name for name in _METHODS if not callable(getattr(processor, name, None))]
    if missing or isinstance(processor, type):
        raise ConfigError(
            f"processor = {processor!r} is not a StatefulProcessor object.",
            remedy="Pass an object of a subclass of pyspark.sql.streaming.StatefulProcessor.",
            where="processor",
            id="RIFFLE-0382",
        )
    return processor


def _output_schema(output: OutputType) -> pa.Schema:
    """Return the Arrow schema of the declared output. Raise ``ConfigError`` for invalid DDL."""
    if isinstance(output, pa.Schema):
        return output
    return schema_of_ddl(output) if isinstance(output, str) else schema_of_json(output.json())


def _check_modes(output_mode: str, time_mode: str) -> TimeMode:
    """Return the time mode. Raise ``ConfigError`` for an unknown output mode or time mode."""
    if output_mode.lower() not in _OUTPUT_MODES:
        raise ConfigError(
            f"output_mode = {output_mode!r} is not supported for a processor.",
            remedy=f"Use {' or '.join(_OUTPUT_MODES)}.",
            where="output_mode",
            id="RIFFLE-0383",
        )
    return parse_time_mode(time_mode)


def _pandas_settings() -> dict[str, object]:
    """Return the pandas options of the active session, or Spark's defaults if there is no session."""
    spark = SparkSession.getActiveSession()
    conf = {} if spark is None else {setting: spark.conf.get(setting, None) for setting in SETTINGS.values()}
    return pandas_options({setting: str(value) for setting, value in conf.items() if value is not None})
