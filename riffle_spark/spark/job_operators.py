"""Build the operators of a job on the columns of a batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame

from riffle_spark.messages.slot_orders import USUAL_INITIAL, LateRule, Watermark
from riffle_spark.process.blocks.block import Computation
from riffle_spark.process.types.kept_types import Position, check_columns
from riffle_spark.protocol.batch.initial import with_initial_state
from riffle_spark.protocol.input_columns import is_same_name
from riffle_spark.protocol.operator import Operator, operator_of, with_dead_letters, with_late, with_watermark
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.protocol.ports import Delivery, WatermarkSource
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import routing
from riffle_spark.spark.engine.spark_batch import DeliverySink, Sink
from riffle_spark.spark.engine.stage_frames import StageInput

_PARTITION = "partition"


@dataclass(frozen=True)
class JobOperator:
    """An operator of a job, as declared, and its sink.

    ``late`` and ``shift_ms`` (``Operator``) are for jobs that use Spark's watermark, ``watermark`` for other jobs.
    ``shown`` maps input columns to the names that a processor sees; ``None`` shows all. ``reads`` is set if the
    operator reads the results of another one instead of the batch. An operator has no ``sink`` if only another
    operator reads its results. ``closes`` is false if its state never ends, so that it needs no batch without rows.
    ``dead_letters`` receives the rows of failed keys; without it they fail the batch.
    """

    store: str
    key: tuple[str, ...]
    compute: Computation
    order_by: tuple[str, ...]
    durable: bool
    sink: Sink | DeliverySink | None
    watermark: Watermark | None = None
    initial: DataFrame | None = None
    initial_name: str = USUAL_INITIAL
    late: LateRule | None = None
    shift_ms: int = 0
    meanings: Mapping[str, str] | None = None
    shown: Mapping[str, str] | None = None
    reads: StageInput | None = None
    closes: bool = True
    dead_letters: Callable[[DataFrame, Delivery], object] | None = None

    def rows(self, batch: DataFrame) -> DataFrame:
        """Return the batch. If the operator reads another one's results, return an empty frame with their columns."""
        return batch if self.reads is None else self.reads.empty


class JobOperators:
    """The operators of a job, built for the columns of its batches and rebuilt when the columns change.

    ``current`` holds the operators of the last batch. It is empty before the first.
    """

    def __init__(
        self, declared: Sequence[JobOperator], settings: Settings, source: WatermarkSource, weights: Weights
    ) -> None:
        """Create the operators of a job. ``weights`` decides whether rows are counted by source partition."""
        self.declared = declared
        self.current: list[Operator] = []
        self._settings = settings
        self._source = source
        self._weights = weights
        self._built_for: object = None

    def forget(self) -> None:
        """Rebuild the operators with the next batch."""
        self._built_for = None

    def of_batch(self, batch: DataFrame) -> list[Operator]:
        """Return the operators, built for a batch's columns.

        Raise ``ConfigError`` for types that cannot be compared.
        """
        if self._built_for is None or self._built_for != batch.schema:
            built = [self._build(declared, declared.rows(batch)) for declared in self.declared]
            pairs = zip(self.declared, built, strict=True)
            on_batch = [operator for declared, operator in pairs if declared.reads is None]
            _check_types(routing.prepared(batch, on_batch), on_batch)
            self.current = built
            self._built_for = batch.schema
        return self.current

    def initial_states(self, operators: Sequence[Operator]) -> dict[str, DataFrame]:
        """Return the frames of initial state by store, with the key names of the operators."""
        initial = {declared.store: declared.initial for declared in self.declared if declared.initial is not None}
        return {
            operator.store: _with_key_names(initial[operator.store], operator)
            for operator in operators
            if operator.store in initial
        }

    def _build(self, declared: JobOperator, frame: DataFrame) -> Operator:
        rows = routing.arrow_schema(frame)
        operator = _operator(declared, frame, rows, self._source)
        operator = operator if declared.dead_letters is None else with_dead_letters(operator)
        delivers = declared.sink is not None or declared.dead_letters is not None
        return replace(operator, read_by=self._read_by(rows), delivers=delivers)

    def _read_by(self, rows: pa.Schema) -> str | None:
        """Return the column for counting rows per source partition, if racks are known."""
        counts = self._weights.racks_of and self._settings.dispatch == "key_group"
        return _PARTITION if counts and _PARTITION in rows.names else None


def _operator(declared: JobOperator, batch: DataFrame, rows: pa.Schema, source: WatermarkSource) -> Operator:
    """Return an operator on a batch. Event-time timers use the batch's watermark unless it declares one."""
    case_sensitive = routing.is_case_sensitive(batch.sparkSession)
    operator = operator_of(
        declared.store, declared.key, declared.compute, declared.order_by, rows, case_sensitive=case_sensitive
    )
    shown = operator.shown if declared.shown is None else declared.shown
    operator = replace(operator, durable=declared.durable, meanings=declared.meanings, shown=shown)
    watermark = declared.watermark
    if watermark is None and operator.declared.time_mode == "EventTime" and source == "rows":
        watermark = routing.watermark_in(batch.schema, declared.store)
    initial = None if declared.initial is None else routing.arrow_schema(_with_key_names(declared.initial, operator))
    operator = with_late(with_initial_state(operator, initial, declared.initial_name), declared.late, declared.shift_ms)
    return with_watermark(operator, watermark)


def _with_key_names(initial: DataFrame, operator: Operator) -> DataFrame:
    """Return an initial state with the operator's key names if only their case differs."""
    keys = [name for name in operator.schema.key.names if name not in initial.columns]
    names = [_key_name(name, keys, case_sensitive=operator.case_sensitive) for name in initial.columns]
    return initial if names == initial.columns or len(set(names)) < len(names) else initial.toDF(*names)


def _key_name(name: str, keys: Sequence[str], *, case_sensitive: bool) -> str:
    """Return the element of ``keys`` that Spark treats as the same name, or ``name`` itself."""
    return next((key for key in keys if is_same_name(key, name, case_sensitive=case_sensitive)), name)


def _check_types(batch: DataFrame, operators: Sequence[Operator]) -> None:
    """Raise ``ConfigError`` for keys and compared columns of types that Spark does not compare by their bytes."""
    columns = batch.schema.jsonValue()["fields"]
    for operator in operators:
        compared = [*operator.order_by, *operator.compared_columns]
        positions: list[tuple[Position, Sequence[str]]] = [("key", operator.schema.key.names), ("order", compared)]
        for position, names in positions:
            check_columns([column for column in columns if column["name"] in names], position, where=operator.store)
