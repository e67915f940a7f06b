"""Start the Spark session of `riffle import`, and run it."""

from collections.abc import Callable
from typing import Final

import pyspark

from riffle_spark.errors import ConfigError
from riffle_spark.offline.recovery import Plan
from riffle_spark.settings import Settings
from riffle_spark.spark.command_session import command_session
from riffle_spark.spark.imports.import_checkpoint import import_checkpoint

_OLDEST: Final = 4
"""The oldest major version of Spark that has the ``statestore`` source."""


def run_import(
    root: str,
    checkpoint: str,
    query: Callable[..., object],
    *,
    new_checkpoint: str | None,
    settings: Settings,
    execute: bool,
) -> Plan:
    """Run `riffle import` in the active session, or in a new one (``command_session``).

    See ``import_checkpoint`` for the arguments. Raises ``ConfigError`` with Spark 3.5.
    """
    if int(pyspark.__version__.partition(".")[0]) < _OLDEST:
        raise ConfigError(
            f"PySpark {pyspark.__version__} cannot read the state in a checkpoint.",
            remedy="Run the command with PySpark 4.0 or newer. It also reads checkpoints of Spark 3.5.",
            where="riffle import",
            id="RIFFLE-1624",
        )
    with command_session("riffle import", [checkpoint]) as spark:
        return import_checkpoint(
            root,
            checkpoint,
            query,
            spark=spark,
            new_checkpoint=new_checkpoint,
            settings=settings,
            execute=execute,
        )
