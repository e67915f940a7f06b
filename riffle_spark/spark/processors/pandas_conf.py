"""Read Spark's settings for conversions to and from pandas."""

import re
from collections.abc import Mapping

import pyspark

SETTINGS = {
    "timezone": "spark.sql.session.timeZone",
    "rows_max": "spark.sql.execution.arrow.maxRecordsPerBatch",
    "bytes_max": "spark.sql.execution.arrow.maxBytesPerBatch",
    "by_name": "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName",
    "safe": "spark.sql.execution.pandas.convertToArrowArraySafely",
    "int_to_decimal": "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
}
"""Spark's settings by the fields of ``PandasOptions``."""
_SINCE = {"bytes_max": (4, 1), "int_to_decimal": (4, 1)}
"""The versions since which Spark's own operator uses a setting."""
_BYTES_MAX = 64 << 20
"""The default since Spark 4.1."""
_NUMBERS = {"rows_max", "bytes_max"}
_FLAGS = {"by_name", "safe", "int_to_decimal"}
_UNITS = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_BYTES = re.compile(r"\s*(-?\d+)\s*(?:([kmgtp])?i?b?)\s*", re.IGNORECASE)


def pandas_options(conf: Mapping[str, str], version: str = pyspark.__version__) -> dict[str, object]:
    """Return the fields of ``PandasOptions`` for Spark's settings in ``conf``.

    Settings that ``conf`` lacks have the default of Spark ``version``.
    """
    release = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    options: dict[str, object] = {"safe": False} if release < (4, 1) else {"safe": True, "bytes_max": _BYTES_MAX}
    for name, setting in SETTINGS.items():
        if setting in conf and release >= _SINCE.get(name, (3, 5)):
            options[name] = _value(name, str(conf[setting]))
    return options


def _value(name: str, text: str) -> object:
    """Return the value of the option ``name`` from the text of its setting."""
    if name in _NUMBERS:
        return _number(text)
    return text.lower() == "true" if name in _FLAGS else text


def _number(text: str) -> int:
    """Return a number with an optional unit of bytes (``64m``), as Spark reads it.

    Raise ``ValueError`` for other text.
    """
    match = _BYTES.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a number of bytes")
    number, unit = match.groups()
    return int(number) << (10 * _UNITS[(unit or "").lower()])
