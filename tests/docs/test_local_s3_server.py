"""The local S3 server of getting-started.md starts as printed and can store a root. Only its port is replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from apps.demo.servers.child import Child, Launch, free_port, listens
from tests.kit.folders import CHECKOUT
from tests.kit.pages import blocks

pytestmark = [pytest.mark.cluster]

PAGE = CHECKOUT / "docs" / "getting-started.md"
START = "moto_server -H 127.0.0.1 -p 9000"


def test_printed_commands_create_a_bucket_and_check_a_root(tmp_path: Path) -> None:
    """The commands of the page create the bucket, and `riffle doctor` writes, reads and deletes below the root."""
    (after,) = [block.code for block in blocks(PAGE) if "create_bucket" in block.code]
    assert any(START in block.code for block in blocks(PAGE))
    port = free_port()
    program, *arguments = START.replace("9000", str(port)).split()
    scripts = Path(sys.executable).parent
    server = Child(Launch("moto", [str(scripts / program), *arguments], tmp_path / "moto.log", grace_seconds=1))
    try:
        server.wait_until(lambda: listens(port), 60)
        done = subprocess.run(
            ["bash", "-c", after.replace("9000", str(port)).replace("riffle doctor", "python -m riffle_spark doctor")],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT)},
            timeout=120,
        )
    finally:
        server.stop()
    (line,) = [line for line in done.stdout.splitlines() if "conditional put" in line]
    assert "s3://bucket/state" in done.stdout, done.stdout + done.stderr
    assert line.split()[0] == "ok", done.stdout
