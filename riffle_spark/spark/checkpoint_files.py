"""Choose how Spark writes the files of a query's checkpoint.

Theory of operation. Spark writes each entry of a query's offset log and commit log to a temporary file, and renames it.
``spark.sql.streaming.checkpointFileManagerClass`` names the class that does so:

1. By default Spark uses Hadoop's ``FileContext``. On a local disk, without Hadoop's native library, it starts several
   processes (``chmod``) per entry.
2. ``FileSystemBasedCheckpointFileManager`` uses Hadoop's ``FileSystem``. It starts fewer processes, and writes the same
   files. On a local disk both rename with the same system call, which is atomic.
3. In an object store, such as ``s3a``, a rename is a copy and a delete with either class. Spark needs another class
   there, so nothing is set.
"""

import logging
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame

from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.jvm_errors import is_interruption
from riffle_spark.spark_installation import RENAMING_MANAGER, SparkInstallation

MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_PLACES: Final = ("spark.sql.streaming.checkpointLocation", "spark.hadoop.fs.defaultFS", "spark.hadoop.fs.default.name")
"""Settings of Spark that name the file system of checkpoints."""
_HADOOP_FOLDERS: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables of the environment. Hadoop's files there may name another default file system."""
_OBJECT_STORES: Final = frozenset({"cosn", "gs", "obs", "oss", "s3", "s3a", "s3n", "swift", "wasb", "wasbs"})
"""Hadoop's file systems that copy and delete an object to rename it."""
_logger = logging.getLogger("riffle_spark")


def manager_for(
    spark: SparkInstallation, conf: Mapping[str, str], environment: Mapping[str, str], *, s3a: bool
) -> str | None:
    """Return the class that writes checkpoint files faster, or ``None`` if Spark should use its default.

    ``conf`` is the configuration of the session, and ``s3a`` whether it has the ``s3a://`` file system. A class is
    returned only if checkpoints are on a local disk as far as this configuration shows.
    """
    if s3a or any(environment.get(name) for name in _HADOOP_FOLDERS):
        return None
    if any(_scheme(conf.get(name, "")) not in {"", "file"} for name in _PLACES):
        return None
    return spark.renaming_checkpoint_manager or None


def checkpoint_warning(batch: DataFrame) -> str | None:
    """Return the warning of ``unsafe_rename_warning`` for the running query. Call it inside ``foreachBatch``.

    Without a JVM and without a query there is no warning.
    """
    try:
        if not handles.is_classic(batch.sparkSession):
            return None
        manager = str(batch.sparkSession.conf.get(MANAGER, "") or "")
        return unsafe_rename_warning(manager, inventory.checkpoint_location(batch) if manager else "")
    except Exception as error:
        if is_interruption(error):
            raise
        _logger.debug("Cannot read the checkpoint location of the query: %s", error)
        return None


def unsafe_rename_warning(manager: str, location: str) -> str | None:
    """Return a warning if a class for local disks writes a checkpoint in an object store.

    ``manager`` is the name of the class, and ``location`` the URL of the checkpoint.
    """
    if not manager.endswith(f".{RENAMING_MANAGER}") or _scheme(location) not in _OBJECT_STORES:
        return None
    # Cause: An object store copies an object to rename it. If two drivers use the checkpoint, both may write an entry.
    return (
        f"[RIFFLE-1450] The checkpoint {location} is in an object store, but {MANAGER} is {manager}.\n"
        f"  What to do: Unset {MANAGER}, or set it to a class for this store. For s3a that is "
        "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager of spark-hadoop-cloud."
    )


def _scheme(location: str) -> str:
    """Return the scheme of a location, empty if it has none."""
    scheme, separator, _ = location.partition(":")
    return scheme.lower() if separator else ""
