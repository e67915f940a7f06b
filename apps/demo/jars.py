"""Download the jars that the job needs, with Ivy."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from apps.demo.cache import cache_folder, one_at_a_time
from riffle_spark.errors import ConfigError, UnavailableError

__all__ = ["JarList", "broker_jars", "connector_jars", "ensure_jars", "java_command", "spark_home"]

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
FETCH_TIMEOUT_SECONDS = 900
_FETCHED = "[SUCCESSFUL ]"


def spark_home() -> Path:
    """Return the folder of the installed pyspark, which contains a complete Spark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("pyspark is not installed", remedy="run ./run setup")
    return Path(spec.origin).parent


def java_command() -> str:
    """Return the java program below JAVA_HOME, else the name of the java program on the PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


@dataclass(frozen=True, slots=True)
class JarList:
    """The jars of a folder by Ivy's configurations.

    ``ivy.xml`` requests them, and ``jars.sha256`` lists their checksums.
    """

    content: str
    lists: Path
    name: str
    megabytes: int

    def jars_of(self, configuration: str) -> list[Path]:
        """Return the checked jars of a configuration."""
        folder = self.ensure()
        return [folder / name for name in self._expected() if name.startswith(f"{configuration}/")]

    def ensure(self) -> Path:
        """Fetch missing or altered jars, and return the folder with the jars."""
        folder = cache_folder() / self.name
        with one_at_a_time(folder):
            if _broken(folder, self._expected()):
                self._fetch_into(folder)
        return folder

    def _expected(self) -> Mapping[str, str]:
        lines = (self.lists / "jars.sha256").read_text().splitlines()
        return {name: digest for digest, name in (line.split() for line in lines)}

    def _fetch_into(self, folder: Path) -> None:
        """Let Ivy download into a new folder, and keep only jars with their listed checksums."""
        print(f"Fetching {self.content} into {folder} ({self.megabytes} MB, once)", file=sys.stderr)
        expected = self._expected()
        with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as fresh:
            output = _run_ivy(self.lists / "ivy.xml", Path(fresh), len(expected))
            broken = _broken(Path(fresh), expected)
            if broken:
                raise UnavailableError(
                    f"{len(broken)} of {len(expected)} jars could not be fetched or are not what is listed: "
                    f"{broken[:3]}\n{output[-2000:]}",
                    remedy="check that a Maven repository can be reached (JAVA_TOOL_OPTIONS takes a proxy), run again",
                    where=str(folder),
                )
            for name in expected:
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.move(Path(fresh) / name, folder / name)


_SERVERS = JarList("the Kafka jars", REQUIREMENTS, "jars", 50)


def broker_jars() -> list[Path]:
    """Return the checked class path of a Kafka broker."""
    return _SERVERS.jars_of("broker")


def connector_jars() -> list[Path]:
    """Return the checked jars for ``spark-submit --jars`` that read and write Kafka."""
    return _SERVERS.jars_of("connector")


def ensure_jars() -> Path:
    """Fetch missing or altered jars. Return the folder of all jars."""
    return _SERVERS.ensure()


def _broken(folder: Path, expected: Mapping[str, str]) -> list[str]:
    return [name for name, digest in expected.items() if _digest(folder / name) != digest]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _run_ivy(path: Path, target: Path, total: int) -> str:
    """Run Ivy and print the downloaded jars. Return Ivy's output."""
    pattern = f"{target}/[conf]/[artifact]-[revision](-[classifier]).[ext]"
    # Use a separate cache, because a pom without its jar in a shared cache makes Ivy fail.
    command = [java_command(), "-cp", f"{spark_home()}/jars/*", "org.apache.ivy.Main", "-cache", f"{target}/ivy"]
    command += ["-ivy", str(path), "-retrieve", pattern, "-types", "jar", "bundle"]
    messages: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        deadline = threading.Timer(FETCH_TIMEOUT_SECONDS, ivy.kill)
        deadline.start()
        assert ivy.stdout is not None
        for line in ivy.stdout:
            messages.append(line)
            _tell(messages, total)
        deadline.cancel()
    return "".join(messages)


def _tell(messages: Sequence[str], total: int) -> None:
    """Print Ivy's newest line: a module is looked up, or a jar was fetched."""
    words = messages[-1].split()
    if words[:1] == ["found"] and len(words) > 1:
        print(f"  looking up {words[1]}", file=sys.stderr, flush=True)
    elif messages[-1].lstrip().startswith(_FETCHED):
        fetched = sum(line.lstrip().startswith(_FETCHED) for line in messages)
        print(
            f"  {fetched} of {total} jars fetched: {messages[-1].split(']', 1)[1].split()[0]}",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    ensure_jars()
