"""Spark's own sinks have a query's totals: JMX, Graphite and StatsD."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, aggregate, count
from tests.kit.shared_session import SharedSession
from tests.kit.streams.streaming import Feed, Kept, settings_in, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.long]

SINKS = "spark.metrics.conf.driver.sink"


class Receivers:
    """A Graphite server on TCP and a StatsD server on UDP, on free loopback ports. They keep their lines."""

    def __init__(self) -> None:
        self.graphite: list[str] = []
        self.statsd: list[str] = []
        graphite = self.graphite
        statsd = self.statsd

        class Stream(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                graphite.extend(line.decode().strip() for line in self.rfile)

        class Datagram(socketserver.DatagramRequestHandler):
            def handle(self) -> None:
                statsd.extend(self.rfile.read().decode().splitlines())

        self._servers = [
            socketserver.ThreadingTCPServer(("127.0.0.1", 0), Stream),
            socketserver.UDPServer(("127.0.0.1", 0), Datagram),
        ]
        self.graphite_port, self.statsd_port = (server.server_address[1] for server in self._servers)
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        for server in self._servers:
            server.shutdown()
            server.server_close()


@pytest.fixture
def receivers() -> Iterator[Receivers]:
    """Both servers."""
    made = Receivers()
    yield made
    made.close()


@pytest.fixture
def session(shared_session: SharedSession, receivers: Receivers) -> Iterator[SparkSession]:
    """A session with all three sinks, which report each second."""
    shared_session.stop()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for sink, name in (("jmx", "JmxSink"), ("graphite", "GraphiteSink"), ("statsd", "StatsdSink")):
        builder = builder.config(f"{SINKS}.{sink}.class", f"org.apache.spark.metrics.sink.{name}")
    for sink, port in (("graphite", receivers.graphite_port), ("statsd", receivers.statsd_port)):
        builder = builder.config(f"{SINKS}.{sink}.host", "127.0.0.1").config(f"{SINKS}.{sink}.port", str(port))
        builder = builder.config(f"{SINKS}.{sink}.period", "1").config(f"{SINKS}.{sink}.unit", "seconds")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    yield spark
    spark.stop()


def jmx_values(spark: SparkSession) -> dict[str, int]:
    """Return the count of rows of each bean that has it. Py4J cannot call the class of the server, which is hidden."""
    jvm: Any = spark.sparkContext._jvm  # private: the only way to its beans
    for_name = jvm.java.lang.Class.forName
    management = for_name("javax.management.MBeanServer")
    name, query, result = map(for_name, ("javax.management.ObjectName", "javax.management.QueryExp", "java.util.Set"))
    lookup = jvm.java.lang.invoke.MethodHandles.publicLookup()
    method_type = jvm.java.lang.invoke.MethodType.methodType
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    parameters = jvm.java.util.ArrayList()
    parameters.add(name)
    parameters.add(query)
    names = lookup.findVirtual(management, "queryNames", method_type(result, parameters))
    arguments = jvm.java.util.ArrayList()
    arguments.add(server)
    arguments.add(jvm.javax.management.ObjectName("metrics:name=*riffle_rows_total,*"))
    arguments.add(None)
    beans = list(names.invokeWithArguments(arguments))
    parameters.set(1, for_name("java.lang.String"))
    value = lookup.findVirtual(management, "getAttribute", method_type(for_name("java.lang.Object"), parameters))
    values = {}
    for bean in beans:
        arguments = jvm.java.util.ArrayList()
        for argument in (server, bean, "Value"):
            arguments.add(argument)
        values[str(bean)] = int(value.invokeWithArguments(arguments))
    return values


def test_jmx_graphite_and_statsd_have_the_totals(session: SparkSession, receivers: Receivers, tmp_path: Path) -> None:
    """Each sink reports the rows of the query under the name of its source."""
    feed = Feed(tmp_path / "in", "k string")
    feed.add({"k": f"k{n}"} for n in range(10))
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings_in(tmp_path)).into(Kept())
    writer = feed.stream(session).writeStream.queryName("clicks").foreachBatch(job)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def jmx_rows() -> list[int]:
        return [value for name, value in jmx_values(session).items() if "riffle-clicks" in name]

    try:
        wait_for(lambda: jmx_rows() == [10], "the rows in JMX")
        wait_for(
            lambda: any("riffle-clicks" in line and "riffle_rows_total 10 " in line for line in receivers.graphite),
            "the rows in Graphite",
        )
        wait_for(
            lambda: any("riffle-clicks" in line and "riffle_rows_total:10|g" in line for line in receivers.statsd),
            "the rows in StatsD",
        )
    finally:
        query.stop()
    wait_for(lambda: not jmx_rows(), "the end of the source")
