"""The S3 server over files is built once, and says at once what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.demo.gateway import ensure_gateway
from riffle_spark.errors import ConfigError, UnavailableError

# Stands in for Go: installs a program, counts its calls, or fails as a module proxy out of reach makes it fail.
GO = """#!/bin/sh
echo called >> "{calls}"
{then}
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a PATH with nothing but the folder ``bin``, and the file that the stand-in counts in."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("RIFFLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    return tmp_path / "calls"


def put_go(calls: Path, effect: str) -> None:
    """Put the stand-in on the PATH."""
    go = calls.with_name("bin") / "go"
    go.write_text(GO.format(calls=calls, then=effect))
    go.chmod(0o755)


def test_it_is_built_once(calls: Path) -> None:
    """A second call finds what the first one built."""
    put_go(calls, ': > "$GOBIN/versitygw"')
    assert ensure_gateway() == ensure_gateway()
    assert ensure_gateway().is_file()
    assert calls.read_text().split() == ["called"]


def test_without_go_it_says_so(calls: Path) -> None:
    """Where Go is missing the error names it and the remedy, and nothing is kept."""
    with pytest.raises(ConfigError, match=r"Go is needed(.|\n)*install Go"):
        ensure_gateway()
    assert not list(calls.with_name("cache").rglob("versitygw/*/versitygw"))


def test_a_failed_build_shows_what_go_said(calls: Path) -> None:
    """When Go fails its output is in the error, and the next call tries again."""
    put_go(calls, "echo no such proxy; exit 1")
    for _ in range(2):
        with pytest.raises(UnavailableError, match="no such proxy"):
            ensure_gateway()
    assert calls.read_text().split() == ["called", "called"]
