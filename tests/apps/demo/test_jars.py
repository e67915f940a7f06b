"""The demo uses a jar only if it has the listed checksum."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from apps.demo.jars import broker_jars, ensure_jars
from riffle_spark.errors import UnavailableError

# A stand-in for Ivy. It copies the files of a folder to the path of the option -retrieve.
FETCH = """#!/bin/sh
while [ "$1" != -retrieve ]; do shift; done
cp -r "{source}/." "${{2%%/\\[conf\\]*}}"
echo "    found org.slf4j#slf4j-api;1.7.36 in public"
echo "    [SUCCESSFUL ] org.slf4j#slf4j-api;1.7.36!slf4j-api.jar (12ms)"
"""


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder from which jars are fetched into an empty cache."""
    jars_folder = ensure_jars()
    source = tmp_path / "mirror"
    java = tmp_path / "java" / "bin" / "java"
    for name in ("broker", "connector"):
        shutil.copytree(jars_folder / name, source / name)
    java.parent.mkdir(parents=True)
    java.write_text(FETCH.format(source=source))
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("RIFFLE_CACHE", str(tmp_path / "cache"))
    return source


def test_a_broken_jar_is_fetched_again(mirror: Path) -> None:
    """A truncated jar in the cache is fetched again."""
    broken = broker_jars()[0]
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-1])
    assert broker_jars()[0].read_bytes() == whole


def test_an_altered_jar_is_refused(mirror: Path, tmp_path: Path) -> None:
    """If a fetched jar differs from the listed one, an error names it, and it is not stored in the cache."""
    altered = next((mirror / "connector").glob("kafka-clients*"))
    altered.write_bytes(altered.read_bytes() + b"x")
    with pytest.raises(UnavailableError, match=f"connector/{altered.name}"):
        ensure_jars()
    assert not list((tmp_path / "cache").rglob("*.jar"))
