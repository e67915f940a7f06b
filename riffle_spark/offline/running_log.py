"""Open the log of a query that may commit batches at the same time."""

import time
from contextlib import suppress

from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.offline.command_errors import machine_clocks
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.store import ObjectStore

_OPEN_TRIES = 5
_RETRY_SECONDS = 0.5


def open_running_log(objects: ObjectStore, root: str) -> tuple[Log, Record]:
    """Return the log of a query that may run, and its newest record. It is read again if the query commits at this
    time.

    Raises ``ConfigError`` if there is no log, ``UnavailableError`` if the query commits at each attempt.
    """
    log, tail = _open_log(objects, root)
    if tail is not None:
        return log, tail
    raise ConfigError(
        f"{root} holds no state.",
        remedy="Name the root of a query that has run a batch.",
        where=root,
        id="RIFFLE-1583",
    )


def _open_log(objects: ObjectStore, root: str) -> tuple[Log, Record | None]:
    for _ in range(_OPEN_TRIES - 1):
        log = Log(objects, root, machine_clocks)
        with suppress(UnavailableError):
            return log, log.open()
        time.sleep(_RETRY_SECONDS)
    log = Log(objects, root, machine_clocks)
    return log, log.open()
