"""Executors whose Python lacks a package: the errors name a remedy that works, and riffle_spark can be sent as
documented.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from apps.demo.jars import spark_home
from apps.demo.servers import StandaloneCluster
from apps.demo.servers.cluster import WorkerSize
from riffle_spark.process.types.missing_modules import ARCHIVE_VARIABLES, ZIP_COMMAND
from tests.kit.folders import APPS, CHECKOUT
from tests.kit.pages import blocks
from tests.kit.servers.bare_python import bare_python, clean_environment

NEEDED = ("pyarrow", "numpy", "xxhash")
"""The packages that executors need, according to the page."""
FOR_DRIVER = (*NEEDED, "pandas", "dateutil", "six", "pytz", "tzdata", "kafka", "boto3", "botocore", "jmespath", "click")
"""The top-level modules of all requirements of riffle_spark."""
PAGE = CHECKOUT / "docs" / "getting-started.md"
Outcomes = Mapping[str, list[str]]


@pytest.fixture(scope="module")
def zip_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the zip file with the command that the error message prints."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(CHECKOUT / "riffle_spark", folder / "riffle_spark")
    command = shlex.split(ZIP_COMMAND)
    assert command[0] == "python"
    subprocess.run([sys.executable, *command[1:]], cwd=folder, check=True, timeout=60)
    return folder / "riffle_spark.zip"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, zip_file: Path) -> Outcomes:
    """Run a batch on executors with each kind of Python, and return the errors by case."""
    folder = tmp_path_factory.mktemp("workers")
    pythons = {
        name: bare_python(folder / f"without-{name}", [each for each in NEEDED if each != name])
        for name in ("", *NEEDED)
    }
    cases = [("riffle_spark", pythons[""], "counts", False), ("complete", pythons[""], "counts", True)]
    cases += [(name, pythons[name], "counts", False) for name in NEEDED]
    cases += [("mine", pythons[""], "mine", False), ("imports", pythons[""], "imports", False)]
    cases += [("no python", folder / "no" / "python", "counts", False)]
    other = next((Path.home() / ".pyenv" / "versions").glob("3.12.*/bin/python"), None)
    if other is not None:
        cases += [("other python", other, "counts", False)]
    command = [sys.executable, str(APPS / "worker_python_app.py"), str(CHECKOUT), str(folder), str(zip_file)]
    completed = subprocess.run(
        command, env=clean_environment(), input=json.dumps(cases, default=str), cwd=folder, capture_output=True,
        text=True, timeout=500, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-4000:]
    parsed: Outcomes = json.loads(completed.stdout.splitlines()[-1])
    return parsed


@pytest.mark.spark
@pytest.mark.newer_spark
@pytest.mark.long
def test_executors_run_a_batch_with_a_zip_file_of_the_package(outcomes: Outcomes) -> None:
    """Executors without riffle_spark run a batch once they get the zip file of the error message."""
    assert outcomes["complete"] == []


@pytest.mark.spark
@pytest.mark.newer_spark
@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "kind", "problem", "remedy"),
    [
        ("riffle_spark", "ConfigError", "has no module 'riffle_spark'", "--py-files riffle_spark.zip"),
        ("xxhash", "ConfigError", "has no module 'xxhash'", "pip install 'xxhash>=3.4'"),
        ("numpy", "ConfigError", "has no module 'numpy'", "pip install 'numpy>=1.26'"),
        ("pyarrow", "ConfigError", "pyarrow", "pip install 'pyarrow>="),
        ("mine", "ConfigError", "has no module 'my_functions'", "--py-files FILE"),
        ("imports", "UserFunctionError", "No module named 'my_functions'", "--py-files FILE"),
        ("no python", "ConfigError", "/no/python", "PYSPARK_PYTHON"),
        ("other python", "ConfigError", "have Python 3.12, the driver has Python 3.", "PYSPARK_PYTHON"),
    ],
)
def test_a_package_that_executors_lack_is_named(
    outcomes: Outcomes, case: str, kind: str, problem: str, remedy: str
) -> None:
    """The error names the missing package or Python, and how to provide it."""
    if case == "other python" and case not in outcomes:
        pytest.skip("this machine has no other Python")
    assert outcomes[case][0] == kind
    assert problem in outcomes[case][1]
    assert remedy in outcomes[case][2]


@pytest.fixture(scope="module")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster with one worker, which does not have the checkout on its Python path."""
    size = WorkerSize(cores=1)
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), 1, size, [{"PYTHONPATH": ""}]) as cluster:
        yield cluster


def submit(cluster: StandaloneCluster, folder: Path, *options: str, **environment: str) -> str:
    """Submit a query with spark-submit and return its output. ``options`` are those that send files."""
    (folder / "in").mkdir()
    (folder / "in" / "rows.json").write_text('{"k": 1}\n{"k": 1}\n{"k": 2}\n')
    python = str(bare_python(folder / "of-driver", FOR_DRIVER))
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", cluster.url, "--conf", "spark.ui.enabled=false"]
    command += ["--conf", "spark.executor.memory=500m", *options, str(APPS / "sent_app.py"), str(folder)]
    variables = clean_environment(**{"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, **environment})
    completed = subprocess.run(
        command, env=variables, cwd=folder, capture_output=True, text=True, timeout=250, check=False
    )
    return completed.stdout + completed.stderr


@pytest.mark.cluster
def test_spark_submit_sends_the_zip_file(bare_cluster: StandaloneCluster, zip_file: Path, tmp_path: Path) -> None:
    """With ``--py-files`` and the zip file neither the driver nor the executors need riffle_spark installed."""
    (documented,) = [block.code for block in blocks(PAGE) if "--py-files" in block.code]
    assert ZIP_COMMAND in documented
    printed = submit(bare_cluster, tmp_path, "--py-files", str(zip_file))
    assert "counted 0 [(1, 2), (2, 1)]" in printed, printed[-6000:]
    assert re.search(r"imported from \S+riffle_spark\.zip", printed)


@pytest.mark.cluster
def test_a_wheel_in_py_files_raises_an_error_that_names_the_zip_file(
    bare_cluster: StandaloneCluster, zip_file: Path, tmp_path: Path
) -> None:
    """A wheel given to ``--py-files`` works for the driver but not for executors: the error names the zip file."""
    wheel = tmp_path / "riffle_spark-0.1.0-py3-none-any.whl"
    shutil.copy(zip_file, wheel)
    printed = submit(bare_cluster, tmp_path, "--py-files", str(wheel))
    assert "ConfigError: [RIFFLE-0300] The executors' Python has no module 'riffle_spark'" in printed, printed[-6000:]
    assert ZIP_COMMAND in printed


@pytest.mark.cluster
def test_spark_submit_sends_an_environment(bare_cluster: StandaloneCluster, zip_file: Path, tmp_path: Path) -> None:
    """Executors run in the environment that Spark sends as an archive, while the driver keeps its own Python."""
    bare_python(tmp_path / "sent", NEEDED)
    (site,) = (tmp_path / "sent").glob("lib/python3.*/site-packages")
    shutil.copytree(CHECKOUT / "riffle_spark", site / "riffle_spark")
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "sent", "")
    variables = dict(each.split("=") for each in ARCHIVE_VARIABLES.split())
    assert variables.pop("PYSPARK_DRIVER_PYTHON") == "python"  # the driver's Python has another path here
    archive_option = ["--archives", "environment.tar.gz#environment"]
    printed = submit(bare_cluster, tmp_path, *archive_option, **variables, PYTHONPATH=str(zip_file))
    assert "counted 0 [(1, 2), (2, 1)]" in printed, printed[-6000:]
