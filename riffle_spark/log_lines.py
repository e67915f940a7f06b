"""What the package's logger says, as a log may have it: whoever reads it does so in a terminal. Knows no message."""

import logging
import traceback

from riffle_spark.printable import LINES, shown

__all__ = ["keep_printable"]


def keep_printable() -> None:
    """Have all that the package logs written in printable characters. Idempotent."""
    logging.getLogger("riffle_spark").addFilter(_printable)


def _printable(record: logging.LogRecord) -> bool:
    said = record.getMessage()
    if shown(said, LINES) != said:
        record.msg, record.args = shown(said, LINES), ()
    if record.exc_info and record.exc_text is None:  # which handlers write, once it is there, and do not make anew
        record.exc_text = shown("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"), LINES)
    return True
