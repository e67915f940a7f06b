"""The Spark that a program would start, read from its files: versions, and the connectors that fit it.

Nothing is imported and no JVM is started, so this also works without Java and with a broken installation.
"""

import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

OLDEST_PYTHON: Final = (3, 10)
NEWEST_PYTHON: Final = (3, 13)
SPARK_3_5_NEWEST_PYTHON: Final = (3, 11)
RENAMING_MANAGER: Final = "FileSystemBasedCheckpointFileManager"
"""The class that writes checkpoint files with Hadoop's ``FileSystem``. Its package differs between lines of Spark."""

_CORE = re.compile(r"spark-core_(?P<scala>[\d.]+)-(?P<version>[^/]+)\.jar\Z")
_HADOOP = re.compile(r"hadoop-client-api-(?P<version>[^/]+)\.jar\Z")
_PYSPARK_VERSION = re.compile(r"""^__version__[^=\n]*= *["']([^"']+)["']""", re.MULTILINE)
_MINIMUM = re.compile(r"""\bminimum_(pandas|pyarrow|numpy)_version = ["']([\d.]+)["']""")
_RELEASE = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class SparkInstallation:
    """PySpark, and the jars that it starts.

    ``home`` is the folder with ``jars``. ``jars`` are the names of its files, empty if there is no such folder, as with
    Spark Connect. ``minimums`` are the versions of pandas, pyarrow and numpy that PySpark itself demands.
    """

    pyspark_version: str
    home: Path
    jars: tuple[str, ...] = ()
    minimums: Mapping[str, str] | None = None

    @property
    def version(self) -> str:
        """The version of the jars, or of PySpark if there are none. Vendors append a suffix: ``3.5.2-amzn-1``."""
        core = self._match(_CORE)
        return core["version"] if core else self.pyspark_version

    @property
    def line(self) -> tuple[int, int]:
        """The release line: (3, 5) for 3.5.9."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def scala(self) -> str:
        """The version of Scala in the names of connectors. On PyPI, Spark 3.5 uses 2.12, and Spark 4 uses 2.13."""
        core = self._match(_CORE)
        return core["scala"] if core else "2.12" if self.line < (4, 0) else "2.13"

    @property
    def hadoop(self) -> str:
        """The version of Hadoop's client, or empty if its jar is not there."""
        hadoop = self._match(_HADOOP)
        return hadoop["version"] if hadoop else ""

    @property
    def kafka_connector(self) -> str:
        """The Maven coordinate of the Kafka connector.

        The connector of 4.0.0 works with all of 4.0, and is the one that the tests use. Maven has no connectors for the
        versions of vendors. They use the connector of the Apache release that they are built on.
        """
        release = _RELEASE.match(self.version)
        version = "4.0.0" if self.line == (4, 0) else release[0] if release else self.version
        return f"org.apache.spark:spark-sql-kafka-0-10_{self.scala}:{version}"

    @property
    def hadoop_aws(self) -> str:
        """The Maven coordinate of the ``s3a://`` file system. Its version must be that of Hadoop's client."""
        release = _RELEASE.match(self.hadoop)
        return f"org.apache.hadoop:hadoop-aws:{release[0] if release else self.hadoop}" if self.hadoop else ""

    @property
    def renaming_checkpoint_manager(self) -> str:
        """The full name of ``RENAMING_MANAGER``, as Spark's jar has it, or empty if it does not."""
        for jar in self.jars:
            if jar.startswith("spark-sql_"):
                with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(self.home / "jars" / jar) as archive:
                    names = [name for name in archive.namelist() if name.endswith(f"/{RENAMING_MANAGER}.class")]
                    return names[0].removesuffix(".class").replace("/", ".") if names else ""
        return ""

    def has_jar(self, name: str) -> bool:
        """Return whether a jar's name starts with ``name``."""
        return any(jar.startswith(name) for jar in self.jars)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return next(filter(None, map(pattern.match, self.jars)), None)


def python_problem(line: tuple[int, int], python: tuple[int, ...], *, has_setuptools: bool) -> str:
    """Return why a line of Spark does not run on a version of Python, empty if it does.

    Spark 4.3 needs Python 3.11. Spark 3.5 supports Python up to 3.11. Spark 3.5 imports distutils, which Python 3.12
    has only if setuptools is installed. Platforms that combine the two install it.
    """
    version = ".".join(map(str, python[:2]))
    if not OLDEST_PYTHON <= python[:2] <= NEWEST_PYTHON:
        return f"riffle_spark does not support Python {version}"
    if line >= (4, 3) and python[:2] == OLDEST_PYTHON:
        return f"Spark {line[0]}.{line[1]} does not support Python {version}"
    if line >= (4, 0) or python[:2] <= SPARK_3_5_NEWEST_PYTHON or (python[:2] == (3, 12) and has_setuptools):
        return ""
    if python[:2] == (3, 12):
        return "Spark 3.5 imports distutils, which Python 3.12 has only with setuptools"
    return f"Spark 3.5 does not support Python {version}"


def find_spark(environment: Mapping[str, str]) -> SparkInstallation | None:
    """Return the Spark that this Python would start, or ``None`` without PySpark. ``SPARK_HOME`` names other jars."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    return read_spark(Path(spec.origin).parent, environment.get("SPARK_HOME"))


def read_spark(pyspark: Path, home: str | None = None) -> SparkInstallation:
    """Return the installation of a ``pyspark`` package, with the jars below ``home`` or else in the package."""
    folder = Path(home) if home else pyspark
    jars = tuple(sorted(path.name for path in (folder / "jars").glob("*.jar")))
    version = _PYSPARK_VERSION.search(_text(pyspark / "version.py"))
    minimums = dict(_MINIMUM.findall(_text(pyspark / "sql" / "pandas" / "utils.py")))
    return SparkInstallation(version[1] if version else "0.0", folder, jars, minimums)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
