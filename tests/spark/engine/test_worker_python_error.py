"""Which of Spark's errors mean that the executors' Python lacks a module or has another version of riffle."""

from __future__ import annotations

import sys

import pytest

from riffle_spark.errors import ConfigError, UserFunctionError
from riffle_spark.spark.engine.worker_python import check_driver_packages, worker_python_error

TRACEBACK = 'Traceback (most recent call last):\n  File "serializers.py", line 500, in loads\n'


@pytest.mark.parametrize(
    "last_line",
    [
        "ModuleNotFoundError: No module named 'riffle_spark.worker.slots'",
        "AttributeError: Can't get attribute '_run' on <module 'riffle_spark.spark.engine.task' from 'task.py'>",
        "ImportError: cannot import name 'Receipt' from 'riffle_spark.messages.slot_orders' (slot_orders.py)",
    ],
)
def test_another_version_on_executors_is_named(last_line: str) -> None:
    """If executors lack a module or name of riffle, the error says that they have another version."""
    explained = worker_python_error(RuntimeError(f"{TRACEBACK}{last_line}\n"))
    assert explained is not None
    assert "another version of riffle_spark" in explained.problem
    assert "the driver's version of riffle_spark on every executor" in explained.remedy


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'psycopg'"),
        UserFunctionError(f"f raised ModuleNotFoundError:\n{TRACEBACK}ModuleNotFoundError: No module named 'mine'"),
        OSError('Cannot run program "chmod": error=2, No such file or directory'),
        RuntimeError(f"{TRACEBACK}ValueError: the text says ModuleNotFoundError: No module named 'x'"),
    ],
    ids=["a sink's import on the driver", "a function's import", "a missing program", "a quoted message"],
)
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    """Errors of the driver, of riffle itself or with another cause are not explained as a missing module."""
    assert worker_python_error(error) is None


@pytest.mark.parametrize(
    ("module", "advice"),
    [
        ("pandas", "pip install 'pandas>="),
        ("pyarrow.lib", "pip install 'pyarrow>="),
        ("mine.helpers", "'mine' is your own module, send it with the query"),
        ("riffle_spark", "riffle_spark.zip"),
    ],
)
def test_a_missing_module_is_named_with_its_package(module: str, advice: str) -> None:
    """The error names the missing module and how to provide its package."""
    explained = worker_python_error(RuntimeError(f"{TRACEBACK}ModuleNotFoundError: No module named '{module}'\n"))
    assert explained is not None
    assert f"has no module '{module}'" in explained.problem
    assert advice in explained.remedy


NO_PROGRAM = """java.io.IOException: Cannot run program "/opt/python3": error=2, No such file or directory
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:181)"""


@pytest.mark.parametrize(
    ("text", "problem", "advice"),
    [
        (
            "[UNSUPPORTED_PACKAGE_VERSION] PyArrow >= 11.0.0 must be installed; however, your version is 8.0.0.",
            "does not have pyarrow>=11.0.0",
            "pip install 'pyarrow>=11.0.0'",
        ),
        (
            "Python in worker has different version: 3.9 than that in driver: 3.11, PySpark cannot run",
            "executors have Python 3.9, the driver has Python 3.11",
            "PYSPARK_PYTHON",
        ),
        (NO_PROGRAM, "cannot start '/opt/python3': error=2, No such file or directory", "PYSPARK_PYTHON"),
    ],
    ids=["an old package", "another Python", "no Python"],
)
def test_an_unsuitable_python_on_executors_is_named(text: str, problem: str, advice: str) -> None:
    """An old package, another version of Python and a missing Python are named, and the remedy names what to change."""
    explained = worker_python_error(RuntimeError(text))
    assert explained is not None
    assert explained.id == "RIFFLE-0300"
    assert problem in explained.problem
    assert advice in explained.remedy


@pytest.mark.parametrize("package", ["pandas", "pyarrow"])
def test_a_package_that_the_driver_lacks_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that PySpark needs and the driver's Python lacks is named, with the command that installs it."""
    check_driver_packages()
    monkeypatch.setitem(sys.modules, package, None)  # as if it was not installed
    with pytest.raises(ConfigError, match="RIFFLE-0299") as refused:
        check_driver_packages()
    assert refused.value.where == package
    assert f"pip install '{package}>=" in refused.value.remedy
