"""The operators of a job: as its user declared them, and as they are on the columns of a batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame

from riffle_spark.messages.slot_orders import USUAL_INITIAL, LateRule, Watermark
from riffle_spark.process.blocks.block import Computation
from riffle_spark.process.types.kept_types import Position, check_columns
from riffle_spark.protocol.batch.initial import with_initial
from riffle_spark.protocol.input_columns import is_same_name
from riffle_spark.protocol.operator import Operator, operator_of, with_dead_letters, with_late, with_watermark
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.protocol.ports import Delivery, WatermarkSource
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import routing
from riffle_spark.spark.engine.spark_batch import DeliverySink, Sink
from riffle_spark.spark.engine.stage_frames import StageInput

__all__ = ["JobOperator", "JobOperators"]

_PARTITION = "partition"


@dataclass(frozen=True)
class JobOperator:
    """One operator of a job as its user declared it, and its sink.

    ``late`` and ``shift_ms`` (``Operator``) are for jobs that use Spark's watermark, ``watermark`` for those that make
    their own. ``shown`` are the columns that a processor sees, by those of the input, unless it sees all. ``reads``
    names the operator whose results it reads, if it does not read the batch. An operator whose results only another
    operator reads has no ``sink``. If ``closes`` is false, nothing in its state ever ends, so it needs no batch without
    rows, as in Spark. ``dead_letters`` takes the rows of keys that its function fails on; without it they fail the
    batch.
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
        """Return a frame of the columns that it reads: the batch, or one without rows."""
        return batch if self.reads is None else self.reads.empty


class JobOperators:
    """A job's operators on the columns of its batches. They are built again when these columns change.

    ``weights`` tell whether slots should count the partitions that rows came from. ``current`` are the operators of the
    last batch; there are none before the first one.
    """

    def __init__(
        self, declared: Sequence[JobOperator], settings: Settings, source: WatermarkSource, weights: Weights
    ) -> None:
        self.declared = declared
        self.current: list[Operator] = []
        self._settings = settings
        self._source = source
        self._weights = weights
        self._built_for: object = None

    def forget(self) -> None:
        """Build the operators anew with the next batch."""
        self._built_for = None

    def of_batch(self, batch: DataFrame) -> list[Operator]:
        """Return the operators on a batch's columns. Raises ``ConfigError`` for types that cannot be compared."""
        if self._built_for is None or self._built_for != batch.schema:
            built = [self._built(declared, declared.rows(batch)) for declared in self.declared]
            on_batch = [operator for each, operator in zip(self.declared, built, strict=True) if each.reads is None]
            _check_types(routing.prepared(batch, on_batch), on_batch)
            self.current = built
            self._built_for = batch.schema
        return self.current

    def initial_states(self, operators: Sequence[Operator]) -> dict[str, DataFrame]:
        """Return the initial states by store, with key columns named as the operators'."""
        initial = {each.store: each.initial for each in self.declared if each.initial is not None}
        return {o.store: _keyed_alike(initial[o.store], o) for o in operators if o.store in initial}

    def _built(self, declared: JobOperator, frame: DataFrame) -> Operator:
        rows = routing.arrow_schema(frame)
        operator = _operator(declared, frame, rows, self._source)
        operator = operator if declared.dead_letters is None else with_dead_letters(operator)
        delivers = declared.sink is not None or declared.dead_letters is not None
        return replace(operator, read_by=self._read_by(rows), delivers=delivers)

    def _read_by(self, rows: pa.Schema) -> str | None:
        """Return the column by which slots count the partitions that rows came from, if racks are known."""
        counts = self._weights.racks_of and self._settings.dispatch == "key_group"
        return _PARTITION if counts and _PARTITION in rows.names else None


def _operator(declared: JobOperator, batch: DataFrame, rows: pa.Schema, source: WatermarkSource) -> Operator:
    """Return an operator on a batch. Timers by event time use the batch's watermark unless another one is named."""
    case_sensitive = routing.is_case_sensitive(batch.sparkSession)
    operator = operator_of(
        declared.store, declared.key, declared.compute, declared.order_by, rows, case_sensitive=case_sensitive
    )
    shown = operator.shown if declared.shown is None else declared.shown
    operator = replace(operator, durable=declared.durable, meanings=declared.meanings, shown=shown)
    watermark = declared.watermark
    if watermark is None and operator.declared.time_mode == "EventTime" and source == "rows":
        watermark = routing.watermark_in(batch.schema, declared.store)
    initial = None if declared.initial is None else routing.arrow_schema(_keyed_alike(declared.initial, operator))
    operator = with_late(with_initial(operator, initial, declared.initial_name), declared.late, declared.shift_ms)
    return with_watermark(operator, watermark)


def _keyed_alike(initial: DataFrame, operator: Operator) -> DataFrame:
    """Return an initial state whose key columns are named as the operator's, if only their case differs."""
    keys = [name for name in operator.schema.key.names if name not in initial.columns]
    names = [_named_alike(name, keys, case_sensitive=operator.case_sensitive) for name in initial.columns]
    return initial if names == initial.columns or len(set(names)) < len(names) else initial.toDF(*names)


def _named_alike(name: str, keys: Sequence[str], *, case_sensitive: bool) -> str:
    return next((key for key in keys if is_same_name(key, name, case_sensitive=case_sensitive)), name)


def _check_types(batch: DataFrame, operators: Sequence[Operator]) -> None:
    """Refuse columns that operators group by or compare, and whose types Spark does not compare by their bytes."""
    columns = batch.schema.jsonValue()["fields"]
    for operator in operators:
        compared = [*operator.order_by, *operator.compared]
        positions: list[tuple[Position, Sequence[str]]] = [("key", operator.schema.key.names), ("order", compared)]
        for position, names in positions:
            check_columns([column for column in columns if column["name"] in names], position, where=operator.store)
