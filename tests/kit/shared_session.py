"""The one Spark session of a test process, which local modules share if their configuration allows it."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from apps.demo.servers import JVM_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["NO_SESSION", "Kind", "SharedSession", "conf_of", "end_jvm", "kind_of", "runtime_conf", "tidy"]

SMALL = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.ui.explainMode": "simple",
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.sql.session.timeZone": "UTC",
    "spark.executorEnv.TZ": "UTC",
}
"""Settings of every session, which keep it small."""
RUNTIME = ("spark.sql.", "spark.riffle.")
"""Prefixes of configuration that can be set on a running session."""
QUICK = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings that avoid the compilation of plans. For a handful of rows it takes longer than the rest of the query.

Sessions on clusters and on newer versions of Spark compile plans, as they do for users.
"""

CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
"""The setting of the class that writes checkpoint files.

Spark's default starts a dozen small programs per batch (``chmod``, ``readlink``). The class that tests use starts few.
"""
WORKERS = {"spark.python.daemon.module": "tests.kit.python_workers"}
"""Settings that start Python workers faster. Executors of clusters start their workers as they do for users."""
JARS = "spark.jars"


class Kind(NamedTuple):
    """A session's master and the configuration that it must be started with. Sessions of one kind are shared."""

    master: str
    conf: tuple[tuple[str, str], ...]


NO_SESSION = Kind("", ())


def kind_of(module: ModuleType) -> Kind:
    """Return the kind of session that a module's ``MASTER`` and ``CONF`` ask for."""
    master: str = getattr(module, "MASTER", "local[2]")
    conf: Mapping[str, str] = getattr(module, "CONF", {})
    runtime = runtime_conf(module)
    return Kind(master, tuple(sorted(pair for pair in conf.items() - SMALL.items() if pair[0] not in runtime)))


def runtime_conf(module: ModuleType) -> dict[str, str]:
    """Return the part of a module's ``CONF`` that is set on a running session.

    It is empty for a session on a cluster.
    """
    if not getattr(module, "MASTER", "local[2]").startswith("local["):
        return {}
    conf: Mapping[str, str] = getattr(module, "CONF", {})
    return {name: value for name, value in conf.items() if name.startswith(RUNTIME)}


class SharedSession:
    """Keeps one running session, and starts another one only if a module needs a session of another kind."""

    def __init__(self) -> None:
        self._kind: Kind | None = None
        self._session: SparkSession | None = None

    def of(self, kind: Kind) -> SparkSession:
        """Return a session of this kind."""
        if self._session is None or kind != self._kind or not _runs(self._session):
            self.stop()
            self._kind = kind
            self._session = _started(kind)
        return self._session

    def stop(self) -> None:
        """Stop the session, if there is one.

        The session that starts a JVM passes its configuration as system properties. They are cleared, because later
        sessions would inherit them.
        """
        if self._session is not None:
            self._session.stop()
            jvm: Any = self._session.sparkContext._jvm  # private: the only access to system properties
            for name, _ in self._kind.conf if self._kind is not None else ():
                jvm.java.lang.System.clearProperty(name)
        self._session = None


def conf_of(session: SparkSession) -> dict[str, str]:
    """Return the configuration of a session."""
    from riffle_spark.spark.engine.jvm import session_conf

    return session_conf(session)


def tidy(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Stop all queries of a session, and set its configuration back to ``conf``."""
    for query in session.streams.active:
        query.stop()
    current_conf = conf_of(session)
    for name in current_conf.keys() - conf.keys():
        session.conf.unset(name)
    for name in conf:
        if current_conf.get(name) != conf[name]:
            session.conf.set(name, conf[name])


def _runs(session: SparkSession) -> bool:
    return session.sparkContext._jsc is not None


def end_jvm() -> None:
    """End the JVM, if it runs. PySpark starts another one for the next session."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None  # private: PySpark takes the next JVM from its next gateway


def _started(kind: Kind) -> SparkSession:
    import pyspark
    from pyspark.sql import SparkSession

    import riffle_spark

    if JARS in dict(kind.conf):
        end_jvm()  # The class path of a JVM does not change after its start.
    builder = SparkSession.builder.master(kind.master).appName("riffle")
    is_pinned = pyspark.__version__.startswith(("3.5.", "4.0."))
    room = "" if is_pinned else ".checkpointing"
    files = {CHECKPOINTS: f"org.apache.spark.sql.execution.streaming{room}.FileSystemBasedCheckpointFileManager"}
    is_local = kind.master.startswith("local[")
    quick = QUICK if is_pinned and is_local else {}
    workers = WORKERS if is_local else {}
    for name, value in {**SMALL, **files, **quick, **workers, **dict(kind.conf)}.items():
        builder = builder.config(name, value)
    return riffle_spark.configure(builder, kafka=False).getOrCreate()
