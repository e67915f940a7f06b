"""Explain why Python workers cannot run a task: a missing module, or different versions on driver and executors."""

import re
from collections.abc import Callable, Mapping

from pyspark.sql.pandas.utils import require_minimum_pandas_version, require_minimum_pyarrow_version

from riffle_spark.errors import ConfigError, RiffleError
from riffle_spark.process.types.missing_modules import REQUIREMENTS, install_remedy, missing_module_remedy

__all__ = ["check_driver_packages", "worker_python_error"]

_DRIVERS_PYARROW = "pyarrow>=18"
"""The requirement of the newest supported PySpark, as in the extra ``spark``."""
_SAME_PYTHON = (
    "Set PYSPARK_PYTHON, or spark.pyspark.python, to a Python of the driver's version that has this path on every "
    "executor."
)


def _other_release(match: re.Match[str]) -> tuple[str, str]:
    return (
        f"the executors have another version of riffle_spark than the driver: {match[0]}",
        "Install the driver's version of riffle_spark on every executor, or send it with --py-files.",
    )


def _missing(match: re.Match[str]) -> tuple[str, str]:
    return f"the executors' Python has no module {match[1]!r}", missing_module_remedy(match[1])


def _too_old(match: re.Match[str]) -> tuple[str, str]:
    requirement = f"{match[1].lower()}>={match[2]}"
    return f"the executors' Python does not have {requirement}", install_remedy(requirement)


def _other_python(match: re.Match[str]) -> tuple[str, str]:
    return f"the executors have Python {match[1]}, the driver has Python {match[2]}", _SAME_PYTHON


def _no_python(match: re.Match[str]) -> tuple[str, str]:
    return f"executors cannot start {match[1]!r}: {match[2]}", _SAME_PYTHON


_CAUSES: Mapping[re.Pattern[str], Callable[[re.Match[str]], tuple[str, str]]] = {
    re.compile(
        r"^(?:AttributeError: Can't get attribute '\w+' on <module|ImportError: cannot import name '\w+' from|"
        r"ModuleNotFoundError: No module named) 'riffle_spark\.[^\n]*",
        re.MULTILINE,
    ): _other_release,
    re.compile(r"^ModuleNotFoundError: No module named '([^']+)'", re.MULTILINE): _missing,
    re.compile(r"\[[A-Z_]*PACKAGE_[A-Z_]+\] (Pandas|PyArrow|NumPy) >= (\S+) must be installed"): _too_old,
    re.compile(r"Python in worker has different version: (\S+) than that in driver: ([\d.]+\d)"): _other_python,
    re.compile(r'Cannot run program "([^"\n]*)": ([^\n]*)(?=[^"]*PythonWorkerFactory)'): _no_python,
}
"""Patterns of Spark's error text, tried in this order, and the functions that return problem and remedy."""


def check_driver_packages() -> None:
    """Raise ``ConfigError`` if the driver's Python lacks pandas or pyarrow in a version that PySpark accepts.

    PySpark would refuse the first batch with an error that does not say how to install them.
    """
    for requirement, check in (
        (REQUIREMENTS["pandas"], require_minimum_pandas_version),
        (_DRIVERS_PYARROW, require_minimum_pyarrow_version),
    ):
        try:
            check()
        except ImportError as error:
            package = requirement.partition(">")[0]
            # Cause: The package is missing, or older than PySpark requires.
            raise ConfigError(
                f"PySpark does not accept the driver's {package}: {error}",
                remedy=f"Run pip install '{requirement}' for the driver's Python.",
                where=package,
                id="RIFFLE-0299",
            ) from error


def worker_python_error(error: BaseException) -> ConfigError | None:
    """Return an error with a remedy if Spark reports that Python workers cannot run a task, else ``None``.

    An ``ImportError`` is not Spark's: a sink may import a missing module on the driver.
    """
    if isinstance(error, RiffleError | ImportError):
        return None
    text = str(error)
    for pattern, explain in _CAUSES.items():
        if match := pattern.search(text):
            problem, remedy = explain(match)
            return ConfigError(problem, remedy=remedy, where="executors", id="RIFFLE-0300")
    return None
