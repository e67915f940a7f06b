"""Escape unprintable characters in the log of ``riffle_spark``, because logs are read in terminals."""

import logging
import traceback

from riffle_spark.printable import LINE_BREAKS, escape_unprintable


def escape_log_records() -> None:
    """Escape unprintable characters in everything that the logger ``riffle_spark`` writes.

    Calling it again has no effect.
    """
    logging.getLogger("riffle_spark").addFilter(_escape)


def _escape(record: logging.LogRecord) -> bool:
    """Escape the message and the traceback of a log record in place.

    Always return true, so that the record is logged.
    """
    message = record.getMessage()
    escaped_text = escape_unprintable(message, LINE_BREAKS)
    if escaped_text != message:
        record.msg = escaped_text
        record.args = ()
    if record.exc_info and record.exc_text is None:  # handlers reuse exc_text and do not format the traceback again
        trace = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        record.exc_text = escape_unprintable(trace, LINE_BREAKS)
    return True
