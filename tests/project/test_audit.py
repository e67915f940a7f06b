"""All dependencies are pinned with hashes, and every installation checks the hashes."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.kit.folders import CHECKOUT

PINNED = re.compile(r"[A-Za-z0-9._-]+==[^ ;]+( *;[^#]*?)?(\s+--hash=sha256:[0-9a-f]{64})+")
LOCKED = sorted(path.name for path in (CHECKOUT / "requirements").glob("*.txt") if path.name != "direct.txt")
INSTALL = re.compile(r"pip_install |-m pip install ")


@pytest.mark.parametrize("name", LOCKED)
def test_every_package_has_one_version_and_its_hashes(name: str) -> None:
    """A lock file has one version and hashes per package, and no range, URL or option."""
    text = re.sub(r"^#.*\n", "", (CHECKOUT / "requirements" / name).read_text(), flags=re.MULTILINE)
    packages = text.replace("\\\n", " ").splitlines()
    assert packages
    assert [package for package in packages if not PINNED.fullmatch(package.strip())] == []


def test_every_install_checks_hashes() -> None:
    """Each ``pip install`` of the script checks hashes, except the one of the checkout itself.

    The checkout is built with packages that are already installed.
    """
    lines = (CHECKOUT / "run").read_text().replace("\\\n", " ").splitlines()
    installs = [line for line in lines if INSTALL.search(line) and '"$@"' not in line]
    assert len(installs) == 8
    for line in installs:
        hashed = "--require-hashes" in line and "--no-deps" in line
        itself = line.endswith("--no-deps --no-build-isolation -e .")
        assert hashed or itself, line
        assert itself or "--only-binary" in line or "--no-build-isolation" in line or "build.txt" in line, line


@pytest.mark.parametrize("lock", ["python310.txt", "python311.txt"])
@pytest.mark.parametrize("spark", ["", "3.5.9", "4.3.0"])
def test_packages_of_a_spark_version_replace_the_pinned_ones(lock: str, spark: str) -> None:
    """The packages in the file of a Spark version replace those of the lock. An unknown version is refused."""
    script = (CHECKOUT / "run").read_text()
    functions = re.findall(
        r"^(?:locked|pinned_spark|pinned_versions|fail|say)\(\) \{.*?^\}$|^say\(\).*$", script, re.M | re.S
    )
    output = printed([*functions, f"lock_file() {{ echo requirements/{lock}; }}", f"pinned_versions {spark}"])
    expected = versions_in((CHECKOUT / "requirements" / lock).read_text())
    if spark:
        expected |= versions_in((CHECKOUT / "requirements" / f"spark-{spark}.txt").read_text())
        assert expected["pyspark"] == spark
    assert versions_in(output) == expected
    assert len(re.findall(r"^[A-Za-z0-9]", output, re.M)) == len(expected)
    assert all(
        PINNED.fullmatch(package_line.strip())
        for package_line in output.replace("\\\n", " ").splitlines()
        if package_line[0] != "#"
    )
    with pytest.raises(subprocess.CalledProcessError):
        printed([*functions, "pinned_versions 9.9.9"])


def versions_in(text: str) -> dict[str, str]:
    """Return the version per package of a lock file's text."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.M))


def printed(lines: list[str]) -> str:
    """Return the output of bash for these lines, run in the checkout."""
    text = "\n".join(["set -euo pipefail", *lines])
    return subprocess.run(["bash", "-c", text], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
