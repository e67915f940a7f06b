"""What an operator is told where the query goes on beside a command. Knows the log's errors, which speak to a driver.
Does not know any command.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from riffle_spark.errors import CorruptStateError, FencedError, RefusedError, RiffleError, UnavailableError
from riffle_spark.state.log.log import Log

__all__ = ["clocks", "stopped"]


@contextmanager
def stopped(log: Log, tries: str, raised: type[RiffleError] = FencedError) -> Iterator[None]:
    """Tell an operator, not a driver or a reader, where a query goes on beside a command: it takes the number of the
    command's record, or deletes what that reads. ``tries`` is what the command would have done, with its last step.

    An error is ``raised`` then; what a store that was away, or refused, said is told with what may have been done.
    """
    before = log.tail
    try:
        yield
    except (FencedError, CorruptStateError) as error:
        if isinstance(error, CorruptStateError) and log.next_is_absent():
            raise
        problem = f"the query went on while a command tried to {tries}; nothing was changed: {error.problem}"
        remedy = "stop the query, wait until it has ended, and run the command again"
        raise raised(problem, remedy=remedy, where=error.where, id="RIFFLE-0508") from error
    except (RefusedError, UnavailableError) as error:
        is_refused = isinstance(error, RefusedError)
        if log.tail is before and (is_refused or not log.unclear):
            raise
        problem = f"a command tried to {tries}, and the store did not say whether it did: {error.problem}"
        refusal = error if is_refused else error.__cause__
        first = refusal.remedy if isinstance(refusal, RefusedError) else "make the store reachable"
        remedy = f"{first}; run the command again, before the query is started: if its record is in the log, that is "
        remedy += "seen, and harms nothing"
        raise type(error)(problem, remedy=remedy, where=error.where, id="RIFFLE-0509") from error


def clocks() -> tuple[float, ...]:
    """Return the seconds of this machine's clocks, for a log: a query that went on may have swept its next number."""
    return time.monotonic(), time.time()
