"""A missing optional package is reported with its install command before a query starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from riffle_spark.settings import Settings
from tests.kit.folders import CHECKOUT

HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""
REFUSED = """
from riffle_spark.errors import ConfigError
try:
    {call}
except ConfigError as error:
    print(f"{{error.where}}|{{error}}|{{error.remedy}}")
else:
    print("accepted")
"""


def without(package: str, code: str) -> str:
    """Run code in a Python that cannot import a package. Return its output."""
    paths = os.pathsep.join(path for path in (str(CHECKOUT), *sys.path) if path)
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN.format(package=package) + code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rack_aware_assignment_strategy", "'min_cost'"),
        ("rack_aware_assignment_strategy", "'balance_subtopology'"),
    ],
)
@pytest.mark.parametrize("requirement", ["Settings({0}={1})", "Settings().but({0}={1})"], ids=["made", "changed"])
def test_a_setting_that_needs_scipy_is_refused_without_it(setting: str, value: str, requirement: str) -> None:
    """A setting that needs SciPy is refused without it, at construction and when a running query changes it."""
    call = requirement.format(setting, value)
    message = without("scipy", "from riffle_spark.settings import Settings\n" + REFUSED.format(call=call))
    where, problem, remedy = message.split("|")
    assert where == setting
    assert "needs scipy.optimize, which cannot be imported" in problem
    assert "pip install 'scipy>=1.11'" in remedy


def test_settings_that_need_no_scipy_are_accepted_without_it() -> None:
    """Settings that do not need SciPy are accepted without it."""
    code = "from riffle_spark.settings import Settings\n" + REFUSED.format(call="Settings(num_standbys=1)")
    assert without("scipy", code) == "accepted\n"


@pytest.mark.parametrize(("assigns", "outcome"), [(False, "accepted"), (True, "needs scipy.optimize")])
def test_verify_reads_a_rack_strategy_without_scipy(tmp_path: Path, assigns: bool, outcome: str) -> None:
    """`riffle verify` reads a settings file with a rack strategy without SciPy, because it computes no assignment."""
    file = tmp_path / "riffle.toml"
    file.write_text('rack_aware_assignment_strategy = "min_cost"\n')
    code = f"""
import click
from pathlib import Path
from riffle_spark.console.options import read_settings
try:
    read_settings(Path({str(file)!r}), None, assigns={assigns})
    print("accepted")
except click.UsageError as error:
    print(error)
"""
    assert outcome in without("scipy", code)


def test_the_rack_strategy_is_accepted_with_scipy() -> None:
    """With SciPy installed the rack strategy is accepted."""
    assert Settings(rack_aware_assignment_strategy="min_cost").rack_aware_assignment_strategy == "min_cost"


@pytest.mark.parametrize(
    ("package", "prepared", "call", "requirement"),
    [
        (
            "cryptography",
            "from riffle_spark.state.objects.encryption import Keys",
            "Keys({'one': b'1' * 32}, 'one', reads_plain=False)",
            "cryptography>=42",
        ),
        (
            "datasketches",
            "from riffle_spark.process.merging.shared_sketches import import_sketches_library",
            "import_sketches_library()",
            "datasketches>=5.0",
        ),
        (
            "opentelemetry",
            "from riffle_spark.settings import Settings\nfrom riffle_spark.spark.job_exporters import check_exporters",
            "check_exporters(Settings(otlp_endpoint='http://127.0.0.1:4318'))",
            "opentelemetry-exporter-otlp-proto-http>=1.45",
        ),
    ],
    ids=["cryptography", "datasketches", "opentelemetry"],
)
@pytest.mark.sample(step=2)
def test_other_missing_packages_are_reported_before_their_use(
    package: str, prepared: str, call: str, requirement: str
) -> None:
    """Each other missing package is reported when keys are created or functions are planned."""
    message = without(package, prepared + "\n" + REFUSED.format(call=call))
    assert f"pip install '{requirement}'" in message


@pytest.mark.parametrize("package", ["scipy", "datasketches", "cryptography", "rich", "matplotlib", "pandas"])
@pytest.mark.sample(step=3)
def test_the_package_can_be_imported_without_any_optional_one(package: str) -> None:
    """riffle_spark can be imported without any optional package."""
    names = "Settings, Stateful, aggregate, count, on, sum_, together"
    assert without(package, f"from riffle_spark import {names}\nprint('imported')") == "imported\n"


@pytest.mark.long
@pytest.mark.spark
def test_jobs_without_pandas_are_refused_with_its_command() -> None:
    """Without pandas, which PySpark needs for Arrow functions, jobs and wrapped streams are refused."""
    code = """
from pyspark.sql import SparkSession
import riffle_spark as riffle
from riffle_spark.errors import ConfigError
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
job = riffle.Stateful("t", "k", riffle.aggregate(n=riffle.count()), settings=riffle.Settings(root="file:///nowhere"))
for act in (
    lambda: job.into(print)(spark.range(1).selectExpr("id k"), 0),
    lambda: riffle.on(spark.readStream.format("rate").load(), root="file:///nowhere"),
):
    try:
        act()
    except ConfigError as error:
        print(f"{error.problem}|{error.remedy}")
"""
    refused = without("pandas", code).splitlines()
    assert len(refused) == 2
    for line in refused:
        problem, remedy = line.split("|")
        assert "PySpark does not accept the driver's pandas" in problem
        assert "pip install 'pandas>=2.2,<3'" in remedy
