"""All tests share one Spark, one Python and one address. Fast tests run first."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from apps.demo.jars import spark_home
from apps.demo.servers import JVM_OPTIONS, KafkaBroker, S3Server, StandaloneCluster
from tests.kit.examples import register_profiles
from tests.kit.folders import CHECKOUT
from tests.kit.matrix import mark_sample
from tests.kit.order_of_tests import InOrder
from tests.kit.shared_session import NO_SESSION, Kind, SharedSession, conf_of, kind_of, runtime_conf, tidy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

os.environ["SPARK_HOME"] = str(spark_home())
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-java-options '{JVM_OPTIONS}' pyspark-shell"
# Python workers and child processes of tests import the packages of this checkout.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))

register_profiles()
pytest_plugins = ["tests.kit.servers.fixtures", "tests.kit.simulated.fixtures"]
IS_SPARK_35 = metadata.version("pyspark").startswith("3.5.")
SLOW_MARKS = ("cluster", "spark", "long")
"""The order of slow tests. Cluster tests mostly wait, so other tests run at the same time."""


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Iterator[None]:
    """Mark the cases of a test that are not in its sample as long. At this point all cases are known."""
    made = yield
    if isinstance(made, list) and made and isinstance(made[0], pytest.Function):
        mark_sample(made)
    return made


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests on clusters as long unless they prove a promise, skip what Spark lacks, and run fast tests first."""
    for item in items:
        if item.get_closest_marker("cluster") and not item.get_closest_marker("promise"):
            item.add_marker("long")
        for mark in item.iter_markers("needs_spark4") if IS_SPARK_35 else ():
            item.add_marker(pytest.mark.skip(reason=f"Spark 3.5 has no {mark.args[0]}"))
    items.sort(key=lambda item: (_rank(item), _kind(item)))


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collection, because they stay and slow down each collection.

    Python's default threshold of 700 objects costs a quarter of the time of tests that parse all sources.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> InOrder:
    """Run tests in this order if several processes share them."""
    return InOrder(config, log)


def _rank(item: pytest.Item) -> int:
    return max((1 + SLOW_MARKS.index(mark.name) for mark in item.iter_markers() if mark.name in SLOW_MARKS), default=0)


def _kind(item: pytest.Item) -> Kind:
    module = item.getparent(pytest.Module)
    uses = isinstance(item, pytest.Function) and "spark" in item.fixturenames
    return kind_of(module.obj) if uses and module is not None else NO_SESSION


@pytest.fixture(scope="session", autouse=True)
def _half_full_disk() -> Iterator[None]:
    """Let this process see half-full disks. Otherwise a fuller disk of the machine would stop new copies."""
    read = os.statvfs

    def half_full(path: str | os.PathLike[str] | int) -> os.statvfs_result:
        status = read(path)
        free = status.f_blocks // 2
        return os.statvfs_result((*status[:3], free, free, *status[5:], status.f_fsid))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "statvfs", half_full)
        yield


@pytest.fixture(autouse=True)
def _closed_copies() -> Iterator[None]:
    """Close the local files that a test leaves open, because later batches of the process would check all of them."""
    yield
    if part_files := sys.modules.get("riffle_spark.state.copies.part_files"):
        for path in list(part_files._files):  # private: a process of an executor opens files of one member alone
            part_files._close_file(path)  # private: as above


@pytest.fixture(scope="session")
def shared_session() -> Iterator[SharedSession]:
    """Return the holder of Spark sessions. Call ``stop`` before starting another session."""
    shared = SharedSession()
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def master(request: pytest.FixtureRequest) -> str:
    """Return the master of a module's session. A module with its own cluster overrides this fixture."""
    return kind_of(request.module).master


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest, master: str, shared_session: SharedSession) -> Iterator[SparkSession]:
    """Return a session with the module's ``MASTER`` and ``CONF``. Other modules share it."""
    session = shared_session.of(kind_of(request.module)._replace(master=master))
    conf = conf_of(session)
    for name, value in runtime_conf(request.module).items():
        session.conf.set(name, value)
    yield session
    tidy(session, conf)
    if not master.startswith("local"):
        shared_session.stop()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Start a Kafka broker. Create topics with ``create_topic`` under names of your test."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Start an S3 server with one bucket. Use a prefix of your test."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Start a standalone cluster with a master and three workers per module, because tests kill workers."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
