"""``transformWithState`` on riffle: a pyspark ``StatefulProcessor`` as an operator. Knows how its parts come together.
Does not know any of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DataType

from riffle_spark.batch_times import TimeMode, Times, parse_time_mode
from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import USUAL_INITIAL
from riffle_spark.process.blocks.block import Declared
from riffle_spark.process.processors.processing import Processing
from riffle_spark.process.processors.processor import Form
from riffle_spark.process.types.spark_schemas import schema_of_ddl, schema_of_json
from riffle_spark.settings import Settings
from riffle_spark.spark.processors.pandas_conf import SETTINGS, pandas_options
from riffle_spark.spark.processors.row_form import EventTimeForm, RowForm
from riffle_spark.spark.processors.spark_processor import SparkProcessor, declare, declared_with_rows
from riffle_spark.spark.stateful import Stateful
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = ["TransformWithState", "transform_with_state", "transform_with_state_in_pandas"]

OutputType: TypeAlias = str | DataType | pa.Schema
_STORE: Final = "transform_with_state"
_OUTPUT_MODES: Final = ("append", "update")
_METHODS: Final = ("init", "handleInputRows", "close")


@dataclass(frozen=True)
class TransformWithState:
    """A ``ProcessorComputation`` of a user's ``StatefulProcessor``; made by ``transform_with_state``.

    ``pandas`` is what Spark's configuration says of conversions, and ``None`` for the form of rows. ``event_time`` is
    the column of output that is the event time of what follows: it has to be ahead of the watermark.
    """

    processor: StatefulProcessor
    output: pa.Schema
    time_mode: TimeMode
    pandas: Mapping[str, object] | None = None
    event_time: str | None = None

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - a processor may read any column
        """Run ``init`` as Spark does on its driver, and declare the variables that it asks for."""
        variables = declare(self.processor, self.time_mode).variables
        return Declared(
            pa.schema([]), self.output, columns=None, per_key_group=False, time_mode=self.time_mode, variables=variables
        )

    def processing(self, schema: VariableColumns, times: Times, where: str) -> Processing:
        """See ``ProcessorComputation``."""
        processor = SparkProcessor(self.processor, schema.variables, schema.key.names, times)
        return Processing(schema, declared_with_rows(schema), processor, self._form(times), times, where=where)

    def counted(self) -> Mapping[str, int]:
        """Return how many state variables of each kind there are, by the names that Spark's progress has for them."""
        found = declare(self.processor, self.time_mode)
        counts = {f"num{kind}StateVars": 0 for kind in ("Value", "List", "Map")}
        counts |= {f"num{kind}StateWithTTLVars": 0 for kind in ("Value", "List", "Map")}
        for one in found.variables:
            counts[f"num{one.kind.capitalize()}StateVars"] += 1
            counts[f"num{one.kind.capitalize()}StateWithTTLVars"] += one.ttl_ms is not None
        return {**counts, "numDeletedStateVars": len(found.deleted)}

    def with_conf(self, conf: Mapping[str, str]) -> "TransformWithState":
        """Return the same under other settings of Spark's; those that are not given are as Spark has them."""
        return self if self.pandas is None else replace(self, pandas=pandas_options(conf))

    def _form(self, times: Times) -> Form:
        form: Form = RowForm(self.output)
        if self.pandas is not None:
            forms = import_module("riffle_spark.spark.processors.pandas_form")  # pandas is for those who use it
            form = forms.PandasForm(self.output, forms.PandasOptions(**self.pandas))
        return form if self.event_time is None else EventTimeForm(form, self.event_time, times.late_ms or 0)


def transform_with_state(  # noqa: PLR0913 - Spark's own arguments, and an operator's
    processor: StatefulProcessor, *, key: str | Sequence[str], output: OutputType, output_mode: str = "append",
    time_mode: str = "None", initial_state: DataFrame | None = None,
    initial_state_name: str = USUAL_INITIAL, store: str = _STORE,
    watermark: tuple[str, str] | None = None, order_by: str | Sequence[str] = (), settings: Settings | None = None,
) -> Stateful:  # fmt: skip
    """Return the operator of a processor that takes and gives ``Row`` objects (PySpark 4.1's ``transformWithState``).

    ``processor`` is used unchanged. ``output`` is the schema of its output: DDL, a ``StructType`` or an Arrow schema.
    ``output_mode`` is ``append`` or ``update``, which are the same here: every row goes to the sink. ``time_mode`` is
    ``None``, ``ProcessingTime`` or ``EventTime``; event time needs a watermark, that of the input's ``withWatermark``
    or ``watermark`` (a column and a delay). ``initial_state`` is a frame with the key's columns, for
    ``handleInitialState`` with the first batch of this ``store``, whenever that is. One that has an
    ``initial_state_name`` of its own comes with the next batch, once, also to keys that have state by then. Raises
    ``ConfigError`` for what is none of these; what the processor raises fails the batch as ``UserFunctionError``.

    >>> visits = transform_with_state(Visits(), key="user", output="user string, visits long")  # doctest: +SKIP
    >>> events.writeStream.foreachBatch(visits.into(write)).start()  # doctest: +SKIP
    """
    compute = TransformWithState(_processor(processor), _columns(output), _checked(output_mode, time_mode))
    return Stateful(
        store, key, compute, settings=settings, order_by=order_by, watermark=watermark, initial_state=initial_state,
        initial_state_name=initial_state_name,
    )  # fmt: skip


def transform_with_state_in_pandas(  # noqa: PLR0913 - as above
    processor: StatefulProcessor, *, key: str | Sequence[str], output: OutputType, output_mode: str = "append",
    time_mode: str = "None", initial_state: DataFrame | None = None,
    initial_state_name: str = USUAL_INITIAL, store: str = _STORE,
    watermark: tuple[str, str] | None = None, order_by: str | Sequence[str] = (), settings: Settings | None = None,
) -> Stateful:  # fmt: skip
    """Return the operator of a processor that takes and gives pandas DataFrames (``transformWithStateInPandas``).

    All else is as with ``transform_with_state``. Spark's own settings of conversions to and from pandas hold, as they
    are when this is called.
    """
    mode = _checked(output_mode, time_mode)
    compute = TransformWithState(_processor(processor), _columns(output), mode, _pandas_settings())
    return Stateful(
        store, key, compute, settings=settings, order_by=order_by, watermark=watermark, initial_state=initial_state,
        initial_state_name=initial_state_name,
    )  # fmt: skip


def _processor(processor: StatefulProcessor) -> StatefulProcessor:
    """Return what is a processor. As in Spark, all that counts are its methods."""
    missing = [name for name in _METHODS if not callable(getattr(processor, name, None))]
    if missing or isinstance(processor, type):
        told = f"the class {processor.__name__}" if isinstance(processor, type) else f"a {type(processor).__name__}"
        raise ConfigError(
            f"the processor is {told}" + (f", and has no {', '.join(missing)}" if missing else ", and none is made"),
            remedy="give an object of a class below pyspark.sql.streaming.StatefulProcessor",
            where="processor",
            id="RIFFLE-0382",
        )
    return processor


def _columns(output: OutputType) -> pa.Schema:
    if isinstance(output, pa.Schema):
        return output
    return schema_of_ddl(output) if isinstance(output, str) else schema_of_json(output.json())


def _checked(output_mode: str, time_mode: str) -> TimeMode:
    if output_mode.lower() not in _OUTPUT_MODES:
        raise ConfigError(
            f"output_mode = {output_mode!r} is not one that a processor can have",
            remedy=f"use one of {', '.join(_OUTPUT_MODES)}",
            where="output_mode",
            id="RIFFLE-0383",
        )
    return parse_time_mode(time_mode)


def _pandas_settings() -> dict[str, object]:
    """Return what the active session says of conversions to and from pandas; without one, what Spark does by itself."""
    spark = SparkSession.getActiveSession()
    said = {} if spark is None else {setting: spark.conf.get(setting, None) for setting in SETTINGS.values()}
    return pandas_options({setting: str(value) for setting, value in said.items() if value is not None})
