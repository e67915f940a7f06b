"""A stop in the middle of a batch, told to Spark in words it understands. Knows how Spark recognises an interruption.

``query.stop()`` interrupts the batch; the error then comes back through py4j with a Java stack trace in its text.
Spark looks for an interruption in that text with a regular expression that overflows the stack on a long one, and the
stream's thread then dies instead of stopping. So the same fact is raised again, short. An InterruptedIOException is no
stop by itself: Hadoop raises it for time-outs.
"""

from __future__ import annotations

__all__ = ["Py4JJavaError", "is_interruption"]

_NAMES = ("java.lang.InterruptedException", "java.nio.channels.ClosedByInterruptException")


class Py4JJavaError(Exception):
    """Reads in a traceback like the error of the same name that Spark looks for."""

    def __str__(self) -> str:
        return "An error occurred while calling foreachBatch.\n: java.lang.InterruptedException: the query was stopped"


Py4JJavaError.__module__ = "py4j.protocol"


def is_interruption(error: BaseException) -> bool:
    """Tell whether an error, or what caused it, is Spark's interruption of the batch."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if any(name in str(link) for name in _NAMES):
            return True
        link = link.__cause__ or link.__context__
    return False
