"""Explain why Python workers cannot run a task: a missing module, or different versions on driver and executors."""

import re

from pyspark.sql.pandas.utils import require_minimum_pandas_version, require_minimum_pyarrow_version

from riffle_spark.errors import ConfigError, RiffleError
from riffle_spark.process.types.missing_modules import REQUIREMENTS, install_remedy, missing_module_remedy

_DRIVERS_PYARROW = "pyarrow>=18"
"""The requirement of the newest supported PySpark, as in the extra ``spark``."""
_SAME_PYTHON = (
    "Set PYSPARK_PYTHON, or spark.pyspark.python, to a Python of the driver's version that has this path on every "
    "executor."
)


_OTHER_RELEASE = re.compile(
    r"^(?:AttributeError: Can't get attribute '\w+' on <module|ImportError: cannot import name '\w+' from|"
    r"ModuleNotFoundError: No module named) 'riffle_spark\.[^\n]*",
    re.MULTILINE,
)
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '([^']+)'", re.MULTILINE)
_TOO_OLD = re.compile(r"\[[A-Z_]*PACKAGE_[A-Z_]+\] (Pandas|PyArrow|NumPy) >= (\S+) must be installed")
_OTHER_PYTHON = re.compile(r"Python in worker has different version: (\S+) than that in driver: ([\d.]+\d)")
_NO_PYTHON = re.compile(r'Cannot run program "([^"\n]*)": ([^\n]*)(?=[^"]*PythonWorkerFactory)')


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
    cause = _cause(str(error))
    if cause is None:
        return None
    problem, remedy = cause
    return ConfigError(problem, remedy=remedy, where="executors", id="RIFFLE-0300")


def _cause(text: str) -> tuple[str, str] | None:
    """Return the problem and the remedy for Spark's error text, or ``None`` if Python workers are not the cause."""
    if match := _OTHER_RELEASE.search(text):
        symptom = match[0]
        problem = f"The executors have another version of riffle_spark than the driver: {symptom}."
        return problem, "Install the driver's version of riffle_spark on every executor, or send it with --py-files."
    if match := _MISSING.search(text):
        module = match[1]
        return f"The executors' Python has no module {module!r}.", missing_module_remedy(module)
    if match := _TOO_OLD.search(text):
        package = match[1].lower()
        package_version = match[2]
        requirement = f"{package}>={package_version}"
        return f"The executors' Python does not have {requirement}.", install_remedy(requirement)
    if match := _OTHER_PYTHON.search(text):
        executor_version = match[1]
        driver_version = match[2]
        return f"The executors have Python {executor_version}, the driver has Python {driver_version}.", _SAME_PYTHON
    if match := _NO_PYTHON.search(text):
        path = match[1]
        reason = match[2]
        return f"The executors cannot start {path!r}: {reason}", _SAME_PYTHON
    return None
