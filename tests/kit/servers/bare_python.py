"""Python environments with a few packages of this environment, such as executors may have."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from apps.demo.jars import spark_home

__all__ = ["bare_python", "clean_environment"]


def bare_python(folder: Path, packages: Sequence[str]) -> Path:
    """Make an environment in a folder whose packages are links to those of this process. Return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    (site,) = folder.glob("lib/python3.*/site-packages")
    for package in packages:
        folders = list(Path(sysconfig.get_path("purelib")).glob(f"{package}*"))
        assert folders, package
        for each in folders:
            (site / each.name).symlink_to(each)
    return folder / "bin" / "python"


def clean_environment(**additions: str) -> dict[str, str]:
    """Return this process's environment variables without those of Python, Spark and virtual environments.

    ``additions`` are added.
    """
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("PY", "SPARK", "VIRTUAL_ENV"))
    }
    return {**variables, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1", **additions}
