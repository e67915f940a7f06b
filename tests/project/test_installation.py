"""The built wheel works in an empty environment, and each extra enables its documented feature."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from riffle_spark.spark_installation import python_problem
from tests.kit.folders import CHECKOUT
from tests.kit.pages import blocks
from tests.kit.spark_matrix import find_python

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
SPARKS = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
MADE_OF = ("riffle_spark", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
PAGES = ("README.md", "docs/getting-started.md")
FOLDER = "/tmp/riffle-quickstart"

RUN_BLOCKS = """
import json, pathlib, sys
import riffle_spark
assert pathlib.Path(riffle_spark.__file__).is_relative_to(sys.prefix), riffle_spark.__file__
for name, code in json.loads(pathlib.Path("blocks.json").read_text()):
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
    print("ran", name)
"""
SKETCHES = """
import pathlib, sys
from pyspark.sql import SparkSession, functions as F
import riffle_spark

builder = SparkSession.builder.master("local[1]").config("spark.riffle.key_groups", "4")
spark = riffle_spark.configure(builder, kafka=False).getOrCreate()
folder = pathlib.Path.cwd()
(folder / "in").mkdir()
(folder / "in" / "rows.json").write_text('{"page": "a", "who": 1}\\n{"page": "a", "who": 2}\\n')
visits = riffle_spark.on(spark.readStream.schema("page string, who long").json("in"), root=f"file://{folder}/state")
people = visits.groupBy("page").agg(F.hll_sketch_estimate(F.hll_sketch_agg("who")).alias("people"))
found = []
query = (
    people.writeStream.outputMode("complete").foreachBatch(lambda rows, batch_id: found.extend(rows.collect()))
    .option("checkpointLocation", "checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
assert [tuple(row) for row in found] == [("a", 2)], found
"""
ENCRYPTION = """
import base64, os
import pyarrow as pa
os.environ["STATE_KEYS"] = "first = " + base64.b64encode(bytes(32)).decode()
from riffle_spark import Stateful, aggregate, count
from riffle_spark.testing import Harness

visits = Stateful("visits", "user", aggregate(visits=count()))
with Harness(visits, pa.schema([("user", pa.string())]), encryption_keys="env:STATE_KEYS") as query:
    assert query.feed([{"user": "ann"}]) == [{"user": "ann", "visits": 1}]
"""
RACKS = {
    "name": "racks",
    "seconds": 600,
    "config": {"rack_aware_assignment_strategy": "min_cost"},
    "members": [{"id": "m{}", "count": 4, "racks": ["a", "b"]}],
    "tasks": [{"subtopology": "s", "count": 8, "state_bytes": 1e6, "rows_per_second": 100, "rows_from": ["a"]}],
    "events": [{"at": 60, "lose": ["m0"]}],
}
CONFTEST = 'pytest_plugins = ["riffle_spark.testing.fixtures"]\n'


def clean_environment() -> dict[str, str]:
    """Return the environment of this process without variables that point to another Spark, Python or checkout."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PY", "SPARK", "VIRTUAL_ENV"))
    }
    return {**inherited, "SPARK_LOCAL_IP": "127.0.0.1"}


def call(*arguments: object, cwd: Path, bin_folder: Path | None = None) -> str:
    """Run a program in a clean environment with this folder first on its path. Return its output."""
    environment = clean_environment()
    if bin_folder is not None:
        environment["PATH"] = f"{bin_folder}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        list(map(str, arguments)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as documented, from a copy without earlier build folders."""
    source = tmp_path_factory.mktemp("source")
    for name in MADE_OF:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CHECKOUT / name, source / name)
    call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "dist", ".", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Return a function that creates an environment with the wheel and some extras, and returns its folder of programs.

    The environment is removed after the test: pytest keeps folders, and each has Spark's 450 MB.
    """

    def install(extras: str, python: str = sys.executable, *versions: str) -> Path:
        call(python, "-m", "venv", tmp_path / "environment", cwd=tmp_path)
        programs = tmp_path / "environment" / "bin"
        # A compressed wheel of Spark would take longer than everything else.
        stored = "--config-settings=--build-option=--compression=stored"
        call(programs / "python", "-m", "pip", "install", "-q", stored, f"{wheel}[{extras}]", *versions, cwd=tmp_path)
        return programs

    yield install
    shutil.rmtree(tmp_path / "environment", ignore_errors=True)


def run_code(programs: Path, code: str, folder: Path) -> str:
    """Run code with the Python of an environment, activated as in the README."""
    return call(programs / "python", "-c", code, cwd=folder, bin_folder=programs)


def run_examples(programs: Path, folder: Path, pages: Sequence[str] = PAGES) -> None:
    """Run the examples of the first pages that a new user reads."""
    blocks_found = [block for page in pages for block in blocks(CHECKOUT / page) if block.info == "python runnable"]
    assert len({block.page.name for block in blocks_found}) == len(pages)
    examples = [(str(block), block.code.replace(FOLDER, str(folder / "quickstart"))) for block in blocks_found]
    (folder / "blocks.json").write_text(json.dumps(examples))
    assert run_code(programs, RUN_BLOCKS, folder).count("ran ") == len(blocks_found)


def test_the_extra_spark_runs_the_first_queries(installed: Callable[..., Path], tmp_path: Path) -> None:
    """With the extra ``spark`` the first documented queries run."""
    run_examples(installed("spark"), tmp_path)


@pytest.mark.parametrize("spark", SPARKS)
@pytest.mark.parametrize("version", PYTHONS)
def test_the_first_query_on_each_python_and_spark(
    installed: Callable[..., Path], tmp_path: Path, version: str, spark: str
) -> None:
    """The README's query runs with every pair of Python and Spark that Spark supports. Other pairs are refused."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    major, minor = map(int, spark.split(".")[:2])
    refused = python_problem((major, minor), tuple(map(int, version.split("."))), has_setuptools=True)
    if (major, minor) >= (4, 3) and refused:
        with pytest.raises(AssertionError, match="Requires-Python"):  # PySpark's metadata refuses the pair
            installed("spark", python, f"pyspark=={spark}")
        return
    programs = installed("spark", python, f"pyspark=={spark}")
    if refused:
        with pytest.raises(AssertionError, match=r"RIFFLE-1160.*does not support Python"):
            run_examples(programs, tmp_path, PAGES[:1])
    else:
        run_examples(programs, tmp_path, PAGES[:1])


def test_the_extra_sketches_enables_distinct_counts(installed: Callable[..., Path], tmp_path: Path) -> None:
    """With the extra ``sketches`` a query counts distinct values by sketches."""
    run_code(installed("spark,sketches"), SKETCHES, tmp_path)


def test_the_extra_encryption_enables_encrypted_state(installed: Callable[..., Path], tmp_path: Path) -> None:
    """With the extra ``encryption`` state can be encrypted."""
    run_code(installed("spark,encryption"), ENCRYPTION, tmp_path)


def test_the_extra_testing_runs_the_test_of_the_page(installed: Callable[..., Path], tmp_path: Path) -> None:
    """With the extra ``testing`` the page's test runs with the page's fixtures."""
    page = CHECKOUT / "docs" / "testing.md"
    operator = next(block.code for block in blocks(page) if block.info == "python runnable")
    tests = next(block.code for block in blocks(page) if block.code.startswith("def test_totals"))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_mine.py").write_text(f"{operator}\n\n{tests}")
    programs = installed("spark,testing")
    run = [programs / "python", "-m", "pytest", "-q", "test_mine.py", "-k", "test_totals and not spark"]
    assert "1 passed" in call(*run, cwd=tmp_path, bin_folder=programs)


def test_the_extra_racks_enables_rack_assignment(installed: Callable[..., Path], tmp_path: Path) -> None:
    """With the extra ``racks`` an assignment uses the racks of the source, without PySpark."""
    (tmp_path / "world.json").write_text(json.dumps(RACKS))
    played = call(installed("racks") / "riffle", "simulate", "world.json", "--policy", "riffle", cwd=tmp_path)
    assert "racks: 4 members, 8 tasks" in played
    assert "RIFFLE-0785" not in played
