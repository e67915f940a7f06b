"""The one Spark session of a test process. Local modules share it whatever SQL configuration they ask for."""

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
"""Every session is as small as it can be."""
RUNTIME = ("spark.sql.", "spark.riffle.")
"""Configuration that a running session takes."""
QUICK = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""For a handful of rows compiling takes longer than all else. Sessions on clusters, and on a newer Spark, compile as
users' do.
"""

CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
"""Spark's usual one starts a dozen small programs a batch (``chmod``, ``readlink``); another one writes the same files
with a few.
"""
WORKERS = {"spark.python.daemon.module": "tests.kit.python_workers"}
"""Starts Python workers faster. Executors of clusters start them as users' do."""
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
    """Return the part of a module's ``CONF`` that is set on a running session; nothing for a cluster's session."""
    if not getattr(module, "MASTER", "local[2]").startswith("local["):
        return {}
    conf: Mapping[str, str] = getattr(module, "CONF", {})
    return {name: value for name, value in conf.items() if name.startswith(RUNTIME)}


class SharedSession:
    """Starts a session only where the one that runs is of another kind."""

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
        """Stop the session, if there is one: another one is started, or its cluster ends.

        The session that starts a JVM passes its configuration as system properties. Later sessions would inherit it.
        """
        if self._session is not None:
            self._session.stop()
            jvm: Any = self._session.sparkContext._jvm  # private: the one way to system properties
            for name, _ in self._kind.conf if self._kind is not None else ():
                jvm.java.lang.System.clearProperty(name)
        self._session = None


def conf_of(session: SparkSession) -> dict[str, str]:
    """Return the configuration of a session."""
    from riffle_spark.spark.engine.jvm import session_conf

    return session_conf(session)


def tidy(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Leave a session as it was found: no query runs, and its configuration is what it was."""
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
    """End the JVM, if it runs. PySpark starts a new one for the next session."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None  # private: PySpark takes the next JVM's from its new gateway


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
