"""Gather facts about this machine: Python, Java, local disk, Spark's configuration files."""

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from riffle_spark.errors import ConfigError
from riffle_spark.offline.doctor.facts import DiskFacts, JavaFacts, PythonFacts
from riffle_spark.state.copies.disk import read_disk_use, refuse_network

_PACKAGES = ("riffle-spark", "pyspark", "pandas", "pyarrow", "numpy", "xxhash", "boto3", "setuptools")
_TIMEOUT_SECONDS = 60
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_DISK_REMEDY = "Set `local_dir` (spark.riffle.local_dir) to a folder on a local disk that Spark's user may write to."
_ASK_PYTHON = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
packages = {}
for name in sys.argv[1:]:
    try:
        packages[name] = version(name)
    except PackageNotFoundError:
        module = name.replace("-", "_")
        if find_spec(module):
            packages[name] = ""
print(json.dumps([list(sys.version_info[:3]), packages]))
"""


def driver_python() -> PythonFacts:
    """Return the Python that runs this command."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return PythonFacts(sys.executable, tuple(sys.version_info[:3]), packages)


def worker_python(environment: Mapping[str, str], conf: Mapping[str, str]) -> PythonFacts:
    """Return the Python that Spark starts as a worker on this machine: ``PYSPARK_PYTHON``, or else ``python3``."""
    command = conf.get("spark.pyspark.python") or environment.get("PYSPARK_PYTHON") or "python3"
    try:
        answer = _output([command, "-c", _ASK_PYTHON, *_PACKAGES])
        numbers, packages = json.loads(answer)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return PythonFacts(command, problem=_reason(error))
    return PythonFacts(command, tuple(numbers), packages)


def java_facts(environment: Mapping[str, str]) -> JavaFacts:
    """Return the Java below ``JAVA_HOME``, or else the one on the path."""
    home = environment.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else "java"
    try:
        match = _JAVA_VERSION.search(_output([command, "-version"]))
    except (OSError, subprocess.SubprocessError) as error:
        return JavaFacts(command, problem=_reason(error))
    return JavaFacts(command, int(match[1])) if match else JavaFacts(command, problem="it prints no version")


def _output(command: list[str]) -> str:
    """Return the output of a program. It runs in another folder, because workers do not see packages in this one."""
    process = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_SECONDS,
        check=True,
        cwd="/",
    )
    return process.stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stdout).strip().splitlines()
        return lines[-1] if lines else f"it ended with code {error.returncode}"
    if isinstance(error, FileNotFoundError):
        return "there is no such program"
    return str(error)


def disk_facts(folder: str) -> DiskFacts:
    """Return the use of the disk below a folder for local copies, after writing a file there.

    A folder that does not exist is not created: the nearest existing folder above it must be writable.
    """
    existing = Path(folder)
    while not existing.exists():
        existing = existing.parent
    probe = existing / f".riffle-doctor-{uuid.uuid4().hex}"
    try:
        refuse_network(existing)
        probe.write_bytes(bytes(4096))
        probe.unlink()
        use = read_disk_use(existing)
        status = os.statvfs(existing)
    except ConfigError as error:
        return DiskFacts(folder, problem=error.problem, remedy=error.remedy)
    except OSError as error:
        return DiskFacts(folder, problem=f"Cannot write to {existing}: {error.strerror}.", remedy=_DISK_REMEDY)
    return DiskFacts(folder, use.used_share, status.f_bavail * status.f_frsize)


def read_spark_defaults(environment: Mapping[str, str], home: Path | None) -> dict[str, str]:
    """Return the configuration in ``spark-defaults.conf``, empty without such a file."""
    folder = environment.get("SPARK_CONF_DIR")
    path = Path(folder) if folder else home / "conf" if home else None
    try:
        lines = (path / "spark-defaults.conf").read_text(errors="replace").splitlines() if path else []
    except OSError:
        return {}
    pairs = (re.split(r"\s*=\s*|\s+", line.strip(), maxsplit=1) for line in lines if line.strip()[:1] not in ("", "#"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
