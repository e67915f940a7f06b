"""`riffle doctor` gathers facts from stores, Kafka and this machine."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from apps.demo.servers import KafkaBroker
from riffle_spark.errors import RefusedError
from riffle_spark.offline.doctor import machine, services
from riffle_spark.offline.doctor.services import kafka_facts, store_facts
from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.open import open_store
from tests.kit.servers.object_server import ObjectServer

TRIED = ("put", "conditional put", "read", "list", "delete")


class OverwritingStore(MemoryStore):
    """A store, or a proxy in front of it, that ignores conditions."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Replace the object and return True."""
        self.delete([name])
        return super().put_if_absent(name, data)


class WithoutDelete(MemoryStore):
    """A store that refuses deletes."""

    def delete(self, names: Sequence[str]) -> None:  # noqa: ARG002
        """Raise RefusedError."""
        raise RefusedError("Access denied.", remedy="Grant s3:DeleteObject.")


def test_a_directory_is_probed_and_left_empty(tmp_path: Path) -> None:
    """A probe of a directory tries every right, compares the clocks, and leaves no object."""
    store = DirectoryStore(tmp_path / "state")
    facts = store_facts(store)
    assert (facts.steps, facts.failed, facts.overwrites) == (TRIED, "", False)
    assert facts.clock_ahead_seconds is not None
    assert abs(facts.clock_ahead_seconds) < 60
    assert store.list("") == []


def test_the_clock_difference_of_a_file_system_is_measured(tmp_path: Path) -> None:
    """The clock difference of a file system is measured by the time of the written file."""

    class FastStore(DirectoryStore):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            written = super().put_if_absent(name, data)
            ahead = time.time() + 3600
            os.utime(self.root / name, (ahead, ahead))
            return written

    ahead = store_facts(FastStore(tmp_path)).clock_ahead_seconds
    assert ahead is not None
    assert 3500 < ahead <= 3600


def test_a_store_whose_second_put_succeeds_is_reported_as_overwriting() -> None:
    """A store whose second put of a name succeeds is reported as overwriting."""
    assert store_facts(OverwritingStore("overwriting")).overwrites


def test_a_store_that_claims_a_second_put_is_reported_as_overwriting() -> None:
    """A store that reports a second put as successful is reported as overwriting, because two drivers would commit."""

    class ReportingStore(MemoryStore):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            return super().put_if_absent(name, data) or True

    assert store_facts(ReportingStore("reporting")).overwrites


def test_the_probe_is_deleted_after_a_failed_step() -> None:
    """The probe is deleted after a failed step, because a root with an object but no log would be refused."""

    class WithoutList(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            if prefix:
                raise RefusedError("Access denied.", remedy="Grant s3:ListBucket.")
            return super().list(prefix)

    store = WithoutList("without-list")
    facts = store_facts(store)
    assert (facts.failed, facts.left_over, store.list("")) == ("list", "", [])


class Stale(MemoryStore):
    """A store with eventual consistency: its answers are those of a while ago."""

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:  # noqa: ARG002
        """Return the bytes of an earlier object with this name."""
        return b"earlier"


class Unlisting(MemoryStore):
    """A store whose new objects are not listed yet."""

    def list(self, prefix: str) -> list[str]:
        """Return no names below a prefix."""
        return [] if prefix else super().list(prefix)


class Keeping(MemoryStore):
    """A store whose deleted objects still exist."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete nothing."""


@pytest.mark.parametrize(
    ("store", "step", "problem"),
    [
        (Stale("stale"), "read", "The object that was just written cannot be read."),
        (Unlisting("unlisting"), "list", "The object that was just written is not listed."),
        (Keeping("keeping"), "delete", "The object still exists after its deletion."),
    ],
)
def test_a_store_that_is_not_consistent_is_reported(store: MemoryStore, step: str, problem: str) -> None:
    """A store whose answers are not those after the last write is named as inconsistent, with what it did wrong."""
    facts = store_facts(store)
    assert (facts.failed, facts.problem) == (step, problem)
    assert facts.remedy == "Use a store that is consistent after each write."


def test_a_missing_delete_right_is_reported_with_the_remaining_probe() -> None:
    """A missing right to delete is reported with the name of the probe that stays."""
    store = WithoutDelete("without-delete")
    facts = store_facts(store)
    assert (facts.failed, facts.problem, facts.left_over) == ("delete", "Access denied.", store.list("")[0])


def test_an_s3_server_is_probed(object_server: ObjectServer) -> None:
    """An S3 server is probed with conditional puts and its own clock."""
    store = open_store(object_server.new_root(), object_server.options)
    facts = store_facts(store)
    assert (facts.steps, facts.overwrites) == (TRIED, False)
    assert facts.clock_ahead_seconds is not None
    assert abs(facts.clock_ahead_seconds) < 60
    assert store.list("") == []


def test_a_missing_bucket_and_an_unreachable_s3_server_are_reported_apart(object_server: ObjectServer) -> None:
    """A missing bucket is a refusal, and a closed port is an unreachable server."""
    missing = store_facts(open_store("s3://missing-bucket/x", object_server.options))
    assert (missing.failed, missing.is_reachable) == ("put", True)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        options = ObjectServer(f"http://127.0.0.1:{reserved.getsockname()[1]}").options
        away = store_facts(open_store("s3://bucket/x", options))
    assert (away.failed, away.is_reachable) == ("put", False)


def test_refusing_and_silent_kafka_servers_are_reported_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bootstrap servers that refuse connections are reported separately from servers that accept them and do not
    answer.
    """
    monkeypatch.setattr(services, "_TIMEOUT_SECONDS", 1.0)
    with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as listening:
        closed.bind(("127.0.0.1", 0))
        away = f"127.0.0.1:{closed.getsockname()[1]}"
        assert kafka_facts([away, "no-port"]).refused == (away, "no-port")
        mute = f"127.0.0.1:{listening.getsockname()[1]}"
        facts = kafka_facts([mute, away])
    assert (facts.connected, facts.refused) == ((mute,), (away,))
    assert facts.problem


@pytest.mark.cluster
def test_connections_to_advertised_brokers_are_tried(kafka_broker: KafkaBroker) -> None:
    """Connections to the advertised brokers of a cluster are tried."""
    facts = kafka_facts([kafka_broker.bootstrap])
    bootstrap = (kafka_broker.bootstrap,)
    assert (facts.connected, facts.brokers, facts.unreachable_brokers) == (bootstrap, bootstrap, ())


def test_the_python_of_workers_reports_its_version_and_packages(tmp_path: Path) -> None:
    """The Python of workers comes from ``spark.pyspark.python`` before ``PYSPARK_PYTHON``, and reports its packages."""
    facts = machine.worker_python({"PYSPARK_PYTHON": "/nowhere/python"}, {"spark.pyspark.python": sys.executable})
    assert facts.version == tuple(sys.version_info[:3])
    assert facts.packages["pyarrow"] == machine.driver_python().packages["pyarrow"]
    missing = machine.worker_python({"PYSPARK_PYTHON": "/nowhere/python"}, {})
    assert (missing.version, missing.problem) == ((), "there is no such program")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 3", "it ended with code 3"),
        ("echo started; echo no module json >&2; exit 1", "no module json"),
        ("echo Python", "Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_the_reason_is_told_if_the_python_of_workers_does_not_answer(tmp_path: Path, script: str, problem: str) -> None:
    """The last line of a failed program is its reason, else its exit code, else what is wrong with its answer."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    assert machine.worker_python({"PYSPARK_PYTHON": str(python)}, {}).problem == problem


def test_java_is_taken_from_java_home(tmp_path: Path) -> None:
    """Java is taken from ``JAVA_HOME``, whatever is on the path."""
    facts = machine.java_facts({"JAVA_HOME": str(tmp_path)})
    assert (facts.command, facts.major) == (f"{tmp_path}/bin/java", None)
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    assert machine.java_facts({"JAVA_HOME": str(tmp_path)}).major == 8


def test_the_probe_of_a_missing_local_folder_creates_nothing(tmp_path: Path) -> None:
    """The probe of a missing local folder writes to the folder above and creates nothing."""
    facts = machine.disk_facts(str(tmp_path / "riffle" / "copies"))
    assert (facts.problem, facts.free_bytes > 0) == ("", True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert machine.disk_facts(str(tmp_path / "file")).problem


def test_spark_defaults_are_read(tmp_path: Path) -> None:
    """Spark's default settings are read with blanks or an equals sign between name and value."""
    (tmp_path / "spark-defaults.conf").write_text("# x\nspark.master  yarn\nspark.executor.cores=4\n\nbroken\n")
    expected = {"spark.master": "yarn", "spark.executor.cores": "4"}
    assert machine.read_spark_defaults({"SPARK_CONF_DIR": str(tmp_path)}, None) == expected
    assert machine.read_spark_defaults({}, tmp_path) == {}
