"""Convert errors of memory, threads and local disks in a slot to errors with a remedy."""

from pathlib import Path

from riffle_spark.errors import ConfigError, RiffleError
from riffle_spark.state.copies import disk
from riffle_spark.state.copies.mapped_bytes import NoRoomForCopies
from riffle_spark.state.formats.arrow_values import is_offset_overflow, offset_overflow_error

_NO_THREAD = "can't start new thread"
"""The text of Python's ``RuntimeError``."""


def out_of_memory_error(problem: str) -> ConfigError:
    """Return the error for a slot with rows or results that exceed the memory of its Python worker.

    ``problem`` is the text of the original error.
    """
    return ConfigError(
        f"A slot's rows do not fit into its Python worker: {problem}.",
        remedy="Read fewer rows per batch (maxOffsetsPerTrigger, maxFilesPerTrigger), raise "
        "spark.executor.pyspark.memory, or use fewer cores per executor.",
        where="memory",
        id="RIFFLE-0484",
    )


def out_of_addresses_error(problem: str) -> ConfigError:
    """Return the error for local copies that exceed a Python worker's address space."""
    return ConfigError(
        f"A slot's local copies do not fit into the address space of its Python worker: {problem}.",
        remedy="Raise spark.executor.pyspark.memory, or leave it unset, because it limits the address space. More "
        "executors leave fewer key-groups to each slot; fewer rows per batch do not help.",
        where="memory",
        id="RIFFLE-0485",
    )


def out_of_threads_error() -> ConfigError:
    """Return the error for a Python worker that cannot start a thread."""
    return ConfigError(
        "A Python worker cannot start a thread.",
        remedy="Raise spark.executor.pyspark.memory, or leave it unset, because each thread needs 8 MiB of the address "
        "space that it limits. If it is unset, raise the limit on processes of the executor's container or user.",
        where="memory",
        id="RIFFLE-0486",
    )


def as_riffle_error(error: Exception, folder: Path | None) -> RiffleError:
    """Return an error of memory, threads or local disks as a ``RiffleError``. Raise any other error.

    Errors of the user's function and of the object store are ``RiffleError`` already. So an ``OSError`` concerns local
    files. ``folder`` is the folder of local copies, ``None`` if it was not opened.
    """
    if isinstance(error, RiffleError):
        return error
    if isinstance(error, NoRoomForCopies):
        return out_of_addresses_error(str(error))
    if isinstance(error, MemoryError):
        return out_of_memory_error(str(error) or "out of memory")
    if type(error) is RuntimeError and str(error) == _NO_THREAD:
        return out_of_threads_error()
    if is_offset_overflow(error):
        return offset_overflow_error(error)
    if folder is None or not isinstance(error, OSError) or not disk.is_disk_refusal(error):
        raise error
    return disk.disk_refused_error(f"Cannot read or write local copies: {error}.", folder)
