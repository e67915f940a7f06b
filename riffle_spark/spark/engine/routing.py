"""Compute each row's slot in SQL, and read a frame's schema, partitions and watermarks."""

import inspect
import json
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.errors import PySparkTypeError, PySparkValueError
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
from riffle_spark.spark import compat
from riffle_spark.spark.engine import jvm
from riffle_spark.worker.input import newest_ms

# Since 4.1 Spark requires the time zone of timestamps. Earlier versions always used UTC.
_ZONE = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
_UNKNOWN = (
    "riffle: dispatch is by partition, but a row has a partition that the query does not read. Topic and partition "
    "must be the unchanged columns of the source. The row has "
)
PARTITION_COLUMNS = ("topic", "partition")
"""The columns of a row's topic and partition, as Kafka's source names them."""
_DELAY = "spark.watermarkDelayMs"
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def arrow_schema(frame: DataFrame, shown: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the Arrow schema of a frame's rows in a Python worker. See ``arrow_of`` for arguments and errors."""
    return arrow_of(_schema_of(frame, shown or {}), shown=shown)


def _schema_of(frame: DataFrame, shown: Mapping[str, str]) -> T.StructType:
    """Return a frame's schema. Raise ``ConfigError`` for the first column with a type that PySpark cannot read."""
    try:
        return frame.schema
    except PySparkValueError:
        check_columns(json.loads(jvm.schema_json_of(frame))["fields"], display_names=shown)
        raise


def arrow_of(
    schema: T.StructType, where: str = "", shown: Mapping[str, str] | None = None, *, large: bool = False
) -> pa.Schema:
    """Return the Arrow schema of a Spark schema. With ``large`` it has Arrow's large types of strings and binaries.

    ``where`` is the place in errors. ``shown`` maps internal column names to the user's names. Raise ``ConfigError``
    for the first column with a type that cannot be stored.
    """
    check_columns(schema.jsonValue()["fields"], where=where, display_names=shown)
    return pa.schema([_arrow_field(field, where, shown or {}, large) for field in schema])


def _arrow_field(field: T.StructField, where: str, shown: Mapping[str, str], large: bool) -> pa.Field:
    """Return the Arrow field of a Spark field. Raise ``ConfigError`` for a type that Spark cannot pass to Python."""
    options = {**_ZONE, "prefers_large_types": True} if large else _ZONE
    try:
        arrow = to_arrow_schema(T.StructType([field]), **options)
    except (PySparkTypeError, ValueError) as refused:  # pyarrow raises ValueError
        name = shown.get(field.name, field.name)
        raise ConfigError(
            f"Column {name!r} has type {field.dataType.simpleString()}, which Spark cannot pass to Python.",
            remedy=f"Cast it before the operator: CAST({name} AS STRING).",
            where=where,
            id="RIFFLE-0282",
        ) from refused
    return arrow.field(0).remove_metadata()


def spark_schema(schema: pa.Schema) -> T.StructType:
    """Return the Spark schema of an Arrow schema. Raise ``ConfigError`` for the first type that Spark lacks."""
    return T.StructType([_spark_field(field) for field in schema])


def _spark_field(field: pa.Field) -> T.StructField:
    """Return the Spark field of an Arrow field. Raise ``ConfigError`` for a type that Spark lacks."""
    try:
        return from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True).fields[0]
    except PySparkTypeError as refused:
        raise ConfigError(
            f"Column {field.name!r} has type {field.type}, which Spark does not have.",
            remedy="Declare another type for the output column, such as pa.int64() or pa.string(), and cast to it.",
            id="RIFFLE-0283",
        ) from refused


def routed(batch: DataFrame, order: Order, layout: SlotLayout) -> DataFrame:
    """Return the rows of a batch for the slots: slot, key-group, key hash, and the columns that an order needs.

    The columns are renamed to ``__riffle_<number>``, because Spark finds columns by name when it passes them to Python,
    and fails for names with a dot or a backtick.
    """
    if layout.shards is None:
        key_group = keygroups.spark_expression(order.routing, order.total)
    else:
        shard = _shard(layout.shards, partition_columns(batch))
        batch = batch.selectExpr("*", f"{shard} as {KEY_GROUP}")
        key_group = KEY_GROUP
    names = [*order.rows.names, *([] if order.initial is None else [INITIAL])]
    columns = [f"{quoted(name)} as __riffle_{index}" for index, name in enumerate(names)]
    # One frame with SQL texts, because each frame is analysed, and each `Column` takes ten JVM calls. The array of
    # slots is one literal that Spark folds once per query, so there is no call per key-group.
    slot = f"element_at(from_json('{slot_by_key_group(layout, order.total)}', 'array<int>'), {key_group} + 1) as {SLOT}"
    hashed = f"{keygroups.spark_hash(order.key)} as {HASH}"
    return batch.selectExpr(slot, f"{key_group} as {KEY_GROUP}", hashed, *columns)


def prepared(batch: DataFrame, operators: Sequence[Operator]) -> DataFrame:
    """Return the batch with unique column names, and with a column for each struct field that operators use.

    Raise ``ConfigError`` if two operators use fields with the same name.
    """
    names = list(input_of(pa.schema([(name, pa.null()) for name in batch.columns])).shown)
    fields = dict.fromkeys(column for operator in operators for column in operator.fields)
    if names != batch.columns:
        batch = batch.toDF(*names)
    if not fields:
        return batch
    check_fields(fields)
    return batch.select("*", *[F.col(".".join(map(quoted, field.path))).alias(field.name) for field in fields])


def union_initial_state(batch: DataFrame, order: Order, initial: DataFrame) -> DataFrame:
    """Return the rows that an order needs, followed by one row per row of the initial state.

    A row of initial state has only its keys and, in column ``INITIAL``, the state. That column is null in rows of the
    batch.
    """
    names = order.rows.names
    types = {field.name: field.dataType for field in batch.schema.fields}
    keys = set(order.key)
    no_state = F.lit(None).cast(T.StructType(initial.schema.fields))
    rows = batch.select(*[F.col(quoted(name)) for name in names], no_state.alias(INITIAL))
    states = initial.select(
        *[(F.col(quoted(name)) if name in keys else F.lit(None)).cast(types[name]).alias(name) for name in names],
        F.struct(*[F.col(quoted(field.name)) for field in initial.schema.fields]).alias(INITIAL),
    )
    return rows.union(states)


def partition_columns(batch: DataFrame) -> tuple[str, str]:
    """Return the SQL of the topic and partition columns. Raise ``ConfigError`` if the batch lacks them."""
    paths = [".".join(map(quoted, column.path)) for column in _partition_sources(batch) if column is not None]
    types = [field.dataType for field in batch.select(*map(F.col, paths)).schema.fields]
    integers = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
    if len(types) == len(PARTITION_COLUMNS) and isinstance(types[0], T.StringType) and isinstance(types[1], integers):
        return paths[0], paths[1]
    present = ", ".join(f"{path} {kind.simpleString()}" for path, kind in zip(paths, types, strict=True))
    raise ConfigError(
        f"Dispatch by partition needs columns topic (string) and partition (int), but the batch has "
        f"{present or 'none'}.",
        remedy="Select the source's columns as `topic` and `partition`, or keep dispatch = key_group.",
        where="dispatch",
        id="RIFFLE-0284",
    )


def has_partition_columns(frame: DataFrame) -> bool:
    """Return whether a frame has the columns of topic and partition. Raise ``ConfigError`` for ambiguous names."""
    return None not in _partition_sources(frame)


def _partition_sources(frame: DataFrame) -> list[Column | None]:
    """Return the columns of topic and partition in a frame, with ``None`` for a missing column."""
    rows = arrow_schema(frame)
    case_sensitive = is_case_sensitive(frame.sparkSession)
    return [source_of(name, rows, "dispatch", case_sensitive=case_sensitive) for name in PARTITION_COLUMNS]


def is_case_sensitive(spark: SparkSession) -> bool:
    """Return whether column names are case-sensitive."""
    return str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"


def partitions_of(batch: DataFrame, limit: int) -> list[Partition]:
    """Return the distinct (topic, partition) of the rows, at most ``limit``. Runs one job over the input.

    Raise ``ConfigError`` if a topic or partition is null.
    """
    topic, partition = partition_columns(batch)
    rows = batch.selectExpr(topic, f"cast({partition} as long)").distinct().limit(limit).collect()
    if any(value is None for row in rows for value in row):
        # Cause: With dispatch by partition, every row needs the topic and partition that it came from.
        raise ConfigError(
            f"{' or '.join(PARTITION_COLUMNS)} is null in a row.",
            remedy="Drop such rows, or give them a constant topic and partition.",
            where="dispatch",
            id="RIFFLE-0285",
        )
    return [(row[0], row[1]) for row in rows]


def _shard(shards: Shards, columns: tuple[str, str]) -> str:
    """Return the SQL of a row's shard, which is looked up by partition in a literal array per topic.

    ``columns`` are the SQL of the topic and partition. A row of an unregistered partition raises an error with the
    partition.
    """
    topic, partition = columns
    number = f"try_cast({partition} as int)"
    whens = "".join(
        f" when {topic} = cast(X'{name.encode().hex()}' as string) then "
        f"get(from_json('{json.dumps(numbers)}', 'array<int>'), {number})"
        for name, numbers in shards.by_topic().items()
    )
    shard = f"case{whens} end" if whens else "cast(null as int)"
    label = f"coalesce({topic}, 'no topic'), '/', coalesce(cast({partition} as string), 'no partition')"
    return f"coalesce({shard}, cast(raise_error(concat('{_UNKNOWN}', {label})) as int))"


def slot_by_key_group(layout: SlotLayout, total: int) -> str:
    """Return a JSON array with the slot number of each key-group. ``total`` is the number of key-groups."""
    numbers = [0] * total
    for slot in layout.slots:
        for key_group in slot.key_groups:
            numbers[key_group] = slot.number
    return json.dumps(numbers)


def quoted(name: str) -> str:
    """Return a column name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def watermark_in(schema: T.StructType, store: str) -> Watermark:
    """Return the watermark of the first timestamp column of ``schema`` that has one from ``withWatermark``.

    Raise ``ConfigError`` for the operator of ``store`` if no column has one.
    """
    for field in schema.fields:
        if _DELAY in (field.metadata or {}) and isinstance(field.dataType, (T.TimestampType, T.TimestampNTZType)):
            return Watermark(field.name, int(field.metadata[_DELAY]))
    raise ConfigError(
        "The operator has event-time timers, but no timestamp column of its input has a watermark.",
        remedy="Call withWatermark on the events and keep that column, or pass the operator "
        'watermark=(column, "10 minutes"). A union has the watermark of its first frame.',
        where=store,
        id="RIFFLE-0286",
    )


def policy_in(spark: SparkSession) -> WatermarkPolicy:
    """Return whether Spark uses the minimum or the maximum of several watermarks.

    The session of a batch has the value from the checkpoint.
    """
    policy = spark.conf.get(_POLICY, "min") or "min"
    return "max" if policy.lower() == "max" else "min"


def newest_event_times(batch: DataFrame, columns: Sequence[str]) -> dict[str, int]:
    """Return the newest event time (ms) of each timestamp column that is not all null. Runs one job over the input."""
    aggregates = [F.max(quoted(name)).alias(f"c{index}") for index, name in enumerate(columns)]
    newest = compat.to_arrow(batch.agg(*aggregates))
    times_ms = {name: newest_ms(column) for name, column in zip(columns, newest.columns, strict=True)}
    return {name: ms for name, ms in times_ms.items() if ms is not None}
