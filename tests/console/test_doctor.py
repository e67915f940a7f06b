"""The command `riffle doctor`, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from riffle_spark.console.main import main
from tests.kit.folders import CHECKOUT
from tests.kit.servers.object_server import ObjectServer


def run(*options: str, **environment: str) -> tuple[int, Mapping[str, Mapping[str, str]]]:
    """Run the command in a new process. Return its exit code and its results by check."""
    variables = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(CHECKOUT), **environment}
    command = [sys.executable, "-m", "riffle_spark", "doctor", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120, check=False)
    answer = json.loads(done.stdout)
    assert answer["exit_code"] == done.returncode, done.stderr
    return done.returncode, {result["check"]: result for result in answer["checks"]}


def test_a_ready_machine_passes(tmp_path: Path) -> None:
    """All checks pass on a ready machine with a root on a local disk and the slots of a small cluster."""
    code, results = run(
        "--root", f"file://{tmp_path}/state", "--conf", "spark.executor.instances=2", "--conf", "spark.executor.cores=1"
    )
    assert {name: result["level"] for name, result in results.items() if result["level"] != "ok"} == {}
    assert code == 0
    assert set(results) >= {"python", "workers", "java", "spark", "pandas", "store", "clock", "disk", "slots", "memory"}


def test_a_missing_java_is_an_error_with_the_package_to_install(tmp_path: Path) -> None:
    """A missing Java is an error with the package to install, and no JVM is started."""
    code, results = run(JAVA_HOME=str(tmp_path))
    assert (code, results["java"]["level"]) == (1, "error")
    assert "openjdk-17-jre-headless" in results["java"]["remedy"]


def test_an_unsupported_pandas_is_an_error(tmp_path: Path) -> None:
    """An unsupported version of pandas is an error, found without importing pandas."""
    metadata = tmp_path / "pandas-3.0.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: pandas\nVersion: 3.0.0\n")
    code, results = run(PYTHONPATH=f"{tmp_path}{os.pathsep}{CHECKOUT}")
    assert (code, results["pandas"]["level"]) == (1, "error")
    assert "'pandas>=2.2" in results["pandas"]["remedy"]


@pytest.mark.long
def test_an_s3_root_is_probed_with_the_querys_credentials(object_server: ObjectServer) -> None:
    """An S3 root is probed with the credentials and the endpoint that a query would use."""
    endpoint = ("--s3-endpoint", object_server.endpoint)
    _, results = run("--root", object_server.new_root(), *endpoint, AWS_DEFAULT_REGION="us-east-1")
    assert (results["store"]["level"], results["clock"]["level"]) == ("ok", "ok")
    assert "hadoop-aws:" in results["s3a-connector"]["remedy"]


def test_the_text_has_a_line_for_each_check_and_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The text has a line for each check and a line below it for the remedy. Without Spark, no connectors are asked."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    done = CliRunner().invoke(
        main, ["doctor", "--root", f"file://{tmp_path}/state", "--bootstrap-servers", "127.0.0.1:9"]
    )
    assert done.exit_code == 1
    lines = done.output.splitlines()
    (java,) = [number for number, line in enumerate(lines) if line.startswith("error       java:")]
    assert "What to do: Install Java 17." in lines[java + 1]
    assert any(line.startswith("unreachable kafka:") for line in lines)
    assert not any("connector" in line for line in lines)


@pytest.mark.parametrize(
    "options", [("--conf", "spark.master"), ("--root", "/no/url"), ("--conf", "spark.riffle.key_groups=0")]
)
def test_wrong_arguments_exit_with_2(options: tuple[str, ...]) -> None:
    """Wrong arguments exit with 2 before any check."""
    assert CliRunner().invoke(main, ["doctor", *options]).exit_code == 2
