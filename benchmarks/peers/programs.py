"""Compile the small Java programs and start them as processes with a log."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from apps.demo.jars import JarList, java_command
from apps.demo.servers import Child, Launch
from riffle_spark.errors import UnavailableError

__all__ = ["Programs", "words_of"]

ROOM = Path(__file__).parent
JARS = JarList("Flink, Kafka Streams and a compiler", ROOM, "peers", 350)
COMPILE_SECONDS = 120
# The packages that Flink's own scripts open for it.
OPENED = ("util", "lang", "net", "io", "nio", "lang.reflect", "text", "time", "util.concurrent")
OPENS = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENED]
LOGGING = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


class Programs:
    """The programs of ``jobs``, compiled into a folder, which also has the log of each process.

    Eclipse's compiler, which is a jar, compiles them. So a Java runtime is sufficient.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._classes = folder / "classes"
        (compiler,) = JARS.jars_of("compiler")
        self._libraries = {name: JARS.jars_of(name) for name in ("flink", "streams")}
        all_jars = [jar for jars in self._libraries.values() for jar in jars]
        command = [java_command(), "-jar", str(compiler), "-17", "-nowarn", "-proc:none", "-d", str(self._classes)]
        command += ["-cp", _path(all_jars), str(ROOM / "jobs")]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
        if completed.returncode != 0:
            raise UnavailableError(
                f"the Java programs cannot be compiled:\n{completed.stderr[-2000:]}", where=str(ROOM)
            )

    def start(self, name: str, main: str, words: Sequence[str], library: str, heap_mb: int) -> Child:
        """Start a program, or a main class of a library."""
        command = [java_command(), f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m", *OPENS, LOGGING]
        command += ["-cp", _path([self._classes, *self._libraries[library]]), main, *words]
        return Child(Launch(name, command, self._folder / f"{name}.log", grace_seconds=2))

    def client(self, name: str, main: str, arguments: Mapping[str, object]) -> Child:
        """Start a program that puts rows or reads results."""
        return self.start(name, main, words_of(arguments), "streams", 256)


def words_of(arguments: Mapping[str, object], settings: Mapping[str, object] | None = None) -> list[str]:
    """Return the command line of a program: its arguments, and the settings of the engine."""
    words = [f"{name}={value}" for name, value in arguments.items()]
    return [*words, *(f"set.{name}={value}" for name, value in (settings or {}).items())]


def _path(jars: Sequence[Path]) -> str:
    return ":".join(map(str, jars))
