"""Explain why Python workers cannot run a task: a module is missing there, or their Python is not the driver's."""

import re
from collections.abc import Callable, Mapping

from riffle_spark.errors import ConfigError, RiffleError
from riffle_spark.process.types.missing_modules import install_remedy, missing_module_remedy

__all__ = ["worker_python_error"]

_SAME_PYTHON = (
    "set PYSPARK_PYTHON, or spark.pyspark.python, to a Python of the driver's version that exists under this path on "
    "every executor"
)


def _other_release(found: re.Match[str]) -> tuple[str, str]:
    return (
        f"the executors have another version of riffle_spark than the driver: {found[0]}",
        "install the driver's version of riffle_spark on every executor, or send it with --py-files",
    )


def _missing(found: re.Match[str]) -> tuple[str, str]:
    return f"the executors' Python has no module {found[1]!r}", missing_module_remedy(found[1])


def _too_old(found: re.Match[str]) -> tuple[str, str]:
    requirement = f"{found[1].lower()}>={found[2]}"
    return f"the executors' Python does not have {requirement}", install_remedy(requirement)


def _other_python(found: re.Match[str]) -> tuple[str, str]:
    return f"the executors have Python {found[1]}, the driver has Python {found[2]}", _SAME_PYTHON


def _no_python(found: re.Match[str]) -> tuple[str, str]:
    return f"executors cannot start {found[1]!r}: {found[2]}", _SAME_PYTHON


_SIGNS: Mapping[re.Pattern[str], Callable[[re.Match[str]], tuple[str, str]]] = {
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


def worker_python_error(error: BaseException) -> ConfigError | None:
    """Return an error with a remedy if Spark reports that Python workers could not run a task.

    Return ``None`` if ``error`` has another cause, or is not Spark's: a sink may import a missing module on the driver.
    """
    if isinstance(error, RiffleError | ImportError):
        return None
    text = str(error)
    for sign, explain in _SIGNS.items():
        if found := sign.search(text):
            problem, remedy = explain(found)
            return ConfigError(problem, remedy=remedy, where="executors")
    return None
