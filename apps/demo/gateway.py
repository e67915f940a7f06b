"""Build versitygw, an S3 server on plain files, once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from apps.demo.cache import cache_folder, one_at_a_time
from riffle_spark.errors import ConfigError, UnavailableError

__all__ = ["GATEWAY", "ensure_gateway"]

GATEWAY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
BUILD_TIMEOUT_SECONDS = 900


def ensure_gateway() -> Path:
    """Return the program, built on the first call (a minute or two, and a download of Go modules).

    Raises ``ConfigError`` at once if it has to be built and Go is missing, and ``UnavailableError`` with the end of
    Go's output if the build fails.
    """
    folder = cache_folder() / "versitygw" / GATEWAY.rpartition("@")[2]
    program = folder / "versitygw"
    with one_at_a_time(folder):
        if not program.exists():
            _build(_go_command(), program)
    return program


def _go_command() -> str:
    executable = shutil.which("go")
    if executable is None:
        raise ConfigError(
            "Go is needed once, to build the S3 server of this benchmark, and was not found",
            remedy="install Go 1.25 or later and put it on the PATH (Debian, Ubuntu: apt-get install golang-go)",
            where="PATH",
        )
    return executable


def _build(go: str, program: Path) -> None:
    print(f"Building {GATEWAY} into {program.parent} (once)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=program.parent, prefix="build-") as fresh:
        done = subprocess.run(
            [go, "install", GATEWAY],
            env={**os.environ, "GOBIN": fresh, "GOFLAGS": "-mod=mod"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise UnavailableError(
                f"{GATEWAY} could not be built:\n{done.stdout[-2000:]}",
                remedy="check that Go is 1.25 or later and that its module proxy can be reached (GOPROXY), run again",
                where=str(program),
            )
        (Path(fresh) / program.name).rename(program)
