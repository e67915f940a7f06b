"""The examples of the docs type-check with mypy and pyright, as in a user's editor and CI."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import riffle_spark
from tests.kit.pages import CHECKOUT, PAGES, Block, blocks

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

EXAMPLES = [block for page in PAGES for block in blocks(page) if block.info.startswith("python")]
FREE_NAMES = {
    "spark": "spark = SparkSession.builder.getOrCreate()",
    "events": "events = SparkSession.builder.getOrCreate().readStream.load()",
}
"""Definitions of names that fragments use without defining them. Other undefined names have the type Any."""
NOT_OURS = re.compile(
    r'DataFrameLike|module named "(airflow|duckdb|polars)|Import "(airflow|duckdb|polars)|of module "pyarrow.compute"'
)
"""Errors that are ignored.

They are about a type of PySpark that mypy does not know without stubs of pandas, packages that tests do not install,
and functions that PyArrow creates when it is imported.
"""
MYPY = [
    *("--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-calls"),  # for the examples' functions
    *("--disable-error-code", "var-annotated", "--disable-error-code", "no-redef"),  # for their variables
    *("--disable-error-code", "name-defined", "--disable-error-code", "used-before-def"),  # for fragments
]
PYRIGHT = {
    "pythonVersion": "3.11",
    "extraPaths": [str(CHECKOUT)],
    "reportUndefinedVariable": False,
    "reportPossiblyUnbound": False,
    # PySpark's types: documented names that it does not export, and methods whose declared return types are too wide.
    "reportPrivateImportUsage": False,
    "reportIncompatibleMethodOverride": False,
    "reportOptionalSubscript": False,
}


def module(block: Block) -> str:
    """Return an example as a module.

    A fragment gets imports of riffle_spark and Spark, and definitions of free names.
    """
    if block.info == "python runnable":
        return block.code
    own = set(re.findall(r"(?m)^\s*(?:def |class |for )?(\w+)(?:, \w+)*\s*(?:=|\(|in )", block.code))
    own |= set(re.findall(r"\w+", " ".join(re.findall(r"(?m)^(?:from \S+ )?import .*", block.code))))
    used = set(re.findall(r"(?<![.\w])(\w+)", block.code)) - own
    lines = ["import riffle_spark", "from pyspark.sql import SparkSession, functions as F"]
    lines += [f"from riffle_spark import {name}" for name in riffle_spark.__all__ if name in used]
    lines += [line for name, line in FREE_NAMES.items() if name in used or re.search(rf"= .*\b{name}\b", block.code)]
    return "\n".join([*lines, block.code])


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write each example to a file named by its page and line."""
    folder = tmp_path_factory.mktemp("examples")
    for block in EXAMPLES:
        (folder / f"{block.page.stem.replace('-', '_')}_{block.line}.py").write_text(module(block))
    (folder / "wrong_call.py").write_text('import riffle_spark\nriffle_spark.Settings(retained_for=["2 h"])\n')
    return folder


def test_mypy_accepts_every_example(examples: Path) -> None:
    """mypy accepts every example by its strict rules, and reports the planted type error."""
    files = sorted(map(str, examples.glob("*.py")))
    command = [sys.executable, "-m", "mypy", *MYPY, "--cache-dir", str(examples / "cache"), *files]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=500, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line and not NOT_OURS.search(line)]
    assert [error for error in errors if "wrong_call.py" not in error] == []
    assert ['Argument "retained_for"' in error for error in errors] == [True], done.stdout + done.stderr


def test_pyright_accepts_every_example(examples: Path) -> None:
    """pyright accepts every example. The test is skipped if pyright is not on the path."""
    program = shutil.which("pyright")
    if program is None:
        pytest.skip("pyright is not installed")
    (examples / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    command = [program, "--pythonpath", sys.executable, "--outputjson", "."]
    done = subprocess.run(command, cwd=examples, capture_output=True, text=True, timeout=500, check=False)
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    errors = [
        f"{Path(error['file']).name}: {error['message']}" for error in diagnostics if error["severity"] == "error"
    ]
    errors = [error for error in errors if not NOT_OURS.search(error)]
    assert [error for error in errors if "wrong_call.py" not in error] == []
    assert ['"retained_for"' in error for error in errors] == [True]
