"""What a frame says of its rows: their slots, and event time as `withWatermark` set it. Knows the key's hash, the
partitions' shards and the layout in SQL. Does not know who runs what, or what a watermark does.
"""

import inspect
import json
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from riffle_spark import keygroups
from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import HASH, INITIAL, KEY_GROUP, SLOT, Order, Watermark
from riffle_spark.process.types.kept_types import check_columns
from riffle_spark.protocol.input_columns import Column, check_fields, input_of, source_of
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ports import SlotLayout, WatermarkPolicy
from riffle_spark.protocol.shards import Partition, Shards
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.worker.input import newest_ms

__all__ = [
    "PARTITION_COLUMNS",
    "arrow_of",
    "arrow_schema",
    "has_partition_columns",
    "is_case_sensitive",
    "newest_event_times",
    "partition_columns",
    "partitions_of",
    "policy_in",
    "prepared",
    "quoted",
    "routed",
    "slot_by_key_group",
    "spark_schema",
    "watermark_in",
    "with_initial",
]

# Since Spark 4.1 the zone of timestamps has to be said; before, it always was this one.
_ZONE = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
_UNKNOWN = (
    "riffle: dispatch is by partition, and a row is of none that Spark says the query reads. Topic and partition must "
    "be those of the source, unchanged. The row is of "
)
PARTITION_COLUMNS = ("topic", "partition")
"""The columns of a row's topic and partition, as Kafka's source names them."""
_DELAY = "spark.watermarkDelayMs"
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def arrow_schema(frame: DataFrame, where: str = "", shown: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the Arrow schema in which a frame's rows reach a Python worker. See ``arrow_of``."""
    return arrow_of(frame.schema, where, shown)


def arrow_of(schema: T.StructType, where: str = "", shown: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the Arrow schema in which Spark takes rows of a Spark schema.

    ``shown`` maps internal column names to the user's names. Raises ``ConfigError`` for the first column of a type that
    state cannot keep.
    """
    check_columns(schema.jsonValue()["fields"], where=where, display_names=shown)
    return pa.schema([_arrow_field(field, where, shown or {}) for field in schema])


def _arrow_field(field: T.StructField, where: str, shown: Mapping[str, str]) -> pa.Field:
    try:
        found = to_arrow_schema(T.StructType([field]), **_ZONE)  # type: ignore[arg-type] # of 4.0, which knows no zone
    except (PySparkTypeError, ValueError) as refused:  # pyarrow raises the latter
        name = shown.get(field.name, field.name)
        raise ConfigError(
            f"column {name!r} has type {field.dataType.simpleString()}, which Spark passes to no Python process",
            remedy=f"Cast it before the operator: CAST({name} AS STRING).",
            where=where,
            id="RIFFLE-0282",
        ) from refused
    return found.field(0).remove_metadata()


def spark_schema(schema: pa.Schema) -> T.StructType:
    """Return the Spark schema of rows of an Arrow schema.

    Raises ``ConfigError`` for the first column of a type that Spark has not.
    """
    return T.StructType([_spark_field(field) for field in schema])


def _spark_field(field: pa.Field) -> T.StructField:
    try:
        return from_arrow_schema(pa.schema([field])).fields[0]
    except PySparkTypeError as refused:
        raise ConfigError(
            f"column {field.name!r} has type {field.type}, which Spark does not have",
            remedy="declare another type for the column of output, such as pa.int64() or pa.string(), and cast to it",
            id="RIFFLE-0283",
        ) from refused


def routed(batch: DataFrame, order: Order, layout: SlotLayout) -> DataFrame:
    """Return each row's slot, its key-group, its key's hash and the needed columns, in their order but under plain
    names.

    Spark's way to Python looks columns up by name, and fails if the name has a dot or a backtick in it.
    """
    if layout.shards is None:
        key_group = keygroups.spark_expression(order.routing, order.total)
    else:
        shard = _shard(layout.shards, partition_columns(batch))
        batch, key_group = batch.selectExpr("*", f"{shard} as {KEY_GROUP}"), KEY_GROUP
    given = [] if order.initial is None else [INITIAL]
    plain = [f"{quoted(name)} as __riffle_{at}" for at, name in enumerate([*order.rows.names, *given])]
    # Texts, in one frame: each frame is analysed anew, and each `Column` costs ten calls to the JVM.
    # One literal array, folded once a query, so that no call is made per key-group.
    slot = f"element_at(from_json('{slot_by_key_group(layout, order.total)}', 'array<int>'), {key_group} + 1) as {SLOT}"
    hashed = f"{keygroups.spark_hash(order.key)} as {HASH}"
    return handles.selected(batch, [slot, f"{key_group} as {KEY_GROUP}", hashed, *plain])


def prepared(batch: DataFrame, operators: Sequence[Operator]) -> DataFrame:
    """Return the batch with the columns that operators go by: each under a name of its own, and fields of others.

    Raises ``ConfigError`` where two operators go by fields of one name.
    """
    names = list(input_of(pa.schema([(name, pa.null()) for name in batch.columns])).shown)
    fields = dict.fromkeys(column for operator in operators for column in operator.fields)
    if names != batch.columns:
        batch = batch.toDF(*names)
    if not fields:
        return batch
    check_fields(fields)
    return batch.select("*", *[F.col(".".join(map(quoted, one.path))).alias(one.name) for one in fields])


def with_initial(batch: DataFrame, order: Order, initial: DataFrame) -> DataFrame:
    """Return the rows that an order needs and, after them, those of its initial state, which have keys alone."""
    names, kinds = order.rows.names, {field.name: field.dataType for field in batch.schema.fields}
    keys = set(order.key)
    nothing = F.lit(None).cast(T.StructType(initial.schema.fields))
    rows = batch.select(*[F.col(quoted(name)) for name in names], nothing.alias(INITIAL))
    states = initial.select(
        *[(F.col(quoted(name)) if name in keys else F.lit(None)).cast(kinds[name]).alias(name) for name in names],
        F.struct(*[F.col(quoted(field.name)) for field in initial.schema.fields]).alias(INITIAL),
    )
    return rows.union(states)


def partition_columns(batch: DataFrame) -> tuple[str, str]:
    """Return the columns of topic and partition as SQL takes them. Raises ``ConfigError`` if the batch lacks them."""
    columns = PARTITION_COLUMNS
    paths = [".".join(map(quoted, column.path)) for column in _partition_sources(batch) if column is not None]
    kinds = [field.dataType for field in batch.select(*map(F.col, paths)).schema.fields]
    whole = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
    if len(kinds) != len(columns):
        problem = f"rows are dispatched by the columns {' and '.join(columns)}, and the batch has not got both"
    elif not isinstance(kinds[0], T.StringType) or not isinstance(kinds[1], whole):
        told = " and ".join(f"{name} {kind.simpleString()}" for name, kind in zip(columns, kinds, strict=True))
        problem = f"rows are dispatched by a topic (string) and a partition (int), and the batch has {told}"
    else:
        return paths[0], paths[1]
    raise ConfigError(
        problem,
        remedy="select the source's columns into the batch as `topic` and `partition` (as Kafka names them), or keep "
        "dispatch = key_group",
        where="dispatch",
        id="RIFFLE-0284",
    )


def has_partition_columns(frame: DataFrame) -> bool:
    """Return whether a frame has the columns of topic and partition. Raises ``ConfigError`` for names of several."""
    return None not in _partition_sources(frame)


def _partition_sources(frame: DataFrame) -> list[Column | None]:
    rows, case_sensitive = arrow_schema(frame), is_case_sensitive(frame.sparkSession)
    return [source_of(name, rows, "dispatch", case_sensitive=case_sensitive) for name in PARTITION_COLUMNS]


def is_case_sensitive(spark: SparkSession) -> bool:
    """Tell whether names of columns that differ in case are of different columns."""
    return str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"


def partitions_of(batch: DataFrame, most: int) -> list[Partition]:
    """Return the distinct (topic, partition) of the rows, or ``most`` of them: one job over the input.

    Raises ``ConfigError`` if one is null.
    """
    topic, partition = partition_columns(batch)
    rows = batch.selectExpr(topic, f"cast({partition} as long)").distinct().limit(most).collect()
    if any(value is None for row in rows for value in row):
        raise ConfigError(
            f"a row has no topic or no partition: {' or '.join(PARTITION_COLUMNS)} is null",
            remedy="leave such rows out, or give them a topic and a partition that are always the same",
            where="dispatch",
            id="RIFFLE-0285",
        )
    return [(row[0], row[1]) for row in rows]


def _shard(shards: Shards, columns: tuple[str, str]) -> str:
    """Return the SQL text of a row's shard: a look-up by partition in a literal array a topic, folded once a query.

    A row of a partition that is not registered fails with a sentence that names it.
    """
    topic, partition = columns
    number = f"try_cast({partition} as int)"
    whens = "".join(
        f" when {topic} = cast(X'{name.encode().hex()}' as string) then "
        f"get(from_json('{json.dumps(numbers)}', 'array<int>'), {number})"
        for name, numbers in shards.by_topic().items()
    )
    found = f"case{whens} end" if whens else "cast(null as int)"
    named = f"coalesce({topic}, 'no topic'), '/', coalesce(cast({partition} as string), 'no partition')"
    return f"coalesce({found}, cast(raise_error(concat('{_UNKNOWN}', {named})) as int))"


def slot_by_key_group(layout: SlotLayout, total: int) -> str:
    """Return the number of each key-group's slot, as JSON."""
    numbers = [0] * total
    for slot in layout.slots:
        for each in slot.key_groups:
            numbers[each] = slot.number
    return json.dumps(numbers)


def quoted(name: str) -> str:
    """Return a column name as SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def watermark_in(schema: T.StructType, store: str) -> Watermark:
    """Return the watermark that ``withWatermark`` left in a batch's schema: the first timestamp column's that has one.

    Raises ``ConfigError`` if there is none.
    """
    for field in schema.fields:
        if _DELAY in (field.metadata or {}) and isinstance(field.dataType, (T.TimestampType, T.TimestampNTZType)):
            return Watermark(field.name, int(field.metadata[_DELAY]))
    raise ConfigError(
        "timers go by event time, and no timestamp column of the input has a watermark",
        remedy="call withWatermark on the events and keep that column, or give the operator "
        'watermark=(column, "10 minutes"). A union takes the watermark of its first frame',
        where=store,
        id="RIFFLE-0286",
    )


def policy_in(spark: SparkSession) -> WatermarkPolicy:
    """Return which of several watermarks is the query's. In a batch's session Spark keeps what the checkpoint says."""
    said = spark.conf.get(_POLICY, "min") or "min"
    return "max" if said.lower() == "max" else "min"


def newest_event_times(batch: DataFrame, columns: Sequence[str]) -> dict[str, int]:
    """Return the newest event time (ms) of each timestamp column that has any: one job over the input."""
    newest = batch.agg(*[F.max(quoted(name)).alias(f"c{at}") for at, name in enumerate(columns)]).toArrow()
    found = {name: newest_ms(column) for name, column in zip(columns, newest.columns, strict=True)}
    return {name: ms for name, ms in found.items() if ms is not None}
