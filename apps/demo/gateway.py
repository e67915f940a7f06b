"""Build servers written in Go once: versitygw, an S3 server on plain files, and the servers of tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from apps.demo.cache import cache_folder, one_at_a_time
from riffle_spark.errors import ConfigError, UnavailableError

__all__ = ["GATEWAY", "ensure_gateway", "ensure_program"]

GATEWAY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
BUILD_TIMEOUT_SECONDS = 1800


def ensure_gateway() -> Path:
    """Return the program versitygw, built on the first call."""
    return ensure_program(GATEWAY)


def ensure_program(module: str, tags: str = "") -> Path:
    """Return a Go program, built on the first call (some minutes, and a download of Go modules).

    ``module`` is a package with its exact version, ``tags`` are its build tags. Raises ``ConfigError`` at once if it
    has to be built and Go is missing, and ``UnavailableError`` with the end of Go's output if the build fails.
    """
    path, _, version = module.partition("@")
    name = path.rpartition("/")[2]
    folder = cache_folder() / name / version
    program = folder / name
    with one_at_a_time(folder):
        if not program.exists():
            _build(_go_command(), module, tags, program)
    return program


def _go_command() -> str:
    executable = shutil.which("go")
    if executable is None:
        raise ConfigError(
            "Go is needed once, to build a server, and was not found",
            remedy="install Go 1.25 or later and put it on the PATH (Debian, Ubuntu: apt-get install golang-go)",
            where="PATH",
        )
    return executable


def _build(go: str, module: str, tags: str, program: Path) -> None:
    print(f"Building {module} into {program.parent} (once)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=program.parent, prefix="build-") as fresh:
        completed = subprocess.run(
            [go, "install", "-tags", tags, module],
            env={**os.environ, "GOBIN": fresh, "GOFLAGS": "-mod=mod"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_SECONDS,
            check=False,
        )
        if completed.returncode != 0:
            raise UnavailableError(
                f"{module} could not be built:\n{completed.stdout[-2000:]}",
                remedy="check that Go is 1.25 or later and that its module proxy can be reached (GOPROXY), run again",
                where=str(program),
            )
        (Path(fresh) / program.name).rename(program)
