"""Read the state of a stopped Spark query from its checkpoint, through Spark's ``statestore`` source."""

import re
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from riffle_spark.errors import ConfigError
from riffle_spark.state.objects.open import masked

_KEY: Final = "key"
_VALUE: Final = "value"
_EXCEPTION: Final = re.compile(r": [\w.]+(Exception|Error)\b|\[[A-Z_.]+\]")
"""The line with the problem, in the text of an error of Spark."""


@dataclass(frozen=True)
class NativeState:
    """The state of an operator of Spark's after a batch. ``store`` is riffle's store that gets it, for errors."""

    spark: SparkSession
    checkpoint: str
    batch: int
    operator: int
    store: str

    def rows(self, **options: str) -> DataFrame:
        """Return the rows of a state store of the operator, with the structs ``key`` and ``value``.

        The names of their fields are replaced by ``f0``, ``f1`` and so on, also in structs inside them, because Spark
        allows equal names there. ``options`` are further options of the source.
        """
        frame = self._load(options)
        columns = {field.name: field.dataType for field in frame.schema}
        return frame.select(*[F.col(name).cast(_numbered(kind)).alias(name) for name, kind in columns.items()])

    def names(self, column: str = _VALUE, **options: str) -> list[str]:
        """Return the names that Spark stored for the fields of a column: ``key`` or ``value``."""
        kind = self._load(options).schema[column].dataType
        return kind.names if isinstance(kind, T.StructType) else []

    def _load(self, options: dict[str, str]) -> DataFrame:
        """Return the frame of the ``statestore`` source."""
        reader = self.spark.read.format("statestore").options(batchId=self.batch, operatorId=self.operator, **options)
        try:
            return reader.load(self.checkpoint)
        except Exception as error:
            # Cause: Files of the state are missing, or this version of Spark does not know their format.
            raise ConfigError(
                f"Spark cannot read the state of operator {self.operator} in {self.checkpoint}: {error}",
                remedy="Run the command with the version of Spark that wrote the checkpoint, or a newer one.",
                where=self.store,
                id="RIFFLE-1612",
            ) from error


def operators_in(spark: SparkSession, checkpoint: str) -> dict[int, str]:
    """Return Spark's name of each operator in a checkpoint by its number; empty if the checkpoint has no metadata.

    Raises ``ConfigError`` if Spark has no connector for the checkpoint's file system, or does not know its format.
    """
    try:
        rows = spark.read.format("state-metadata").load(checkpoint).select("operatorId", "operatorName").distinct()
        return {int(row[0]): str(row[1]) for row in rows.collect()}
    except Exception as error:
        problem = next((line for line in str(error).splitlines() if _EXCEPTION.match(line)), str(error))
        remedy = (
            "Run the command with the version of Spark that wrote the checkpoint, or a newer one. Spark 4.0 cannot "
            "read state of spark.sql.streaming.stateStore.checkpointFormatVersion = 2."
        )
        if "://" in checkpoint and not checkpoint.startswith("file:"):
            remedy = (
                "For S3, name it s3a://, and run the command in a new Spark session, which has the connector. "
                "For another file system, set its connector: PYSPARK_SUBMIT_ARGS='--packages CONNECTOR pyspark-shell'."
            )
        # Cause: Spark has no connector for the object store, or does not know the format of the checkpoint.
        raise ConfigError(
            f"Spark cannot read the checkpoint {masked(checkpoint)}: {problem.strip(': ')}",
            remedy=remedy,
            where=masked(checkpoint),
            id="RIFFLE-1700",
        ) from error


def _numbered(kind: T.DataType) -> T.DataType:
    """Return a struct type with the names ``f0``, ``f1`` and so on, also in the structs inside it."""
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_numbered(kind.elementType))
    if not isinstance(kind, T.StructType):
        return kind
    return T.StructType([T.StructField(f"f{index}", _numbered(field.dataType)) for index, field in enumerate(kind)])
