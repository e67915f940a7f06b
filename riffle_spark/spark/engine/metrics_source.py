"""Register a query's figures as a source of Spark's MetricsSystem on the driver.

Theory of operation.

1. A source has a name and a registry of gauges. Spark's sinks of metrics read the gauges: JMX, the Prometheus servlet,
   Graphite, StatsD, or the agents of Databricks and Datadog. So riffle_spark needs no port or thread for metrics.
2. The source is of the kind that Spark creates for a plugin, because it accepts a name and a registry.
3. All gauges are set in a single call, in which Jackson reads a JSON object into them.

The MetricsSystem has no labels, so the values are totals (``observe.totals``).
"""

import json
import logging
import re
import threading
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import SparkSession

from riffle_spark.observe.readings import Reading
from riffle_spark.observe.totals import totals
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.facts import DriverFacts
from riffle_spark.spark.compat.java import looked_up
from riffle_spark.spark.engine import jvm as handles

_logger = logging.getLogger("riffle_spark")
_GAUGE: Final = "com.codahale.metrics.DefaultSettableGauge"
_ID_LENGTH: Final = 8
_registered: Final[dict[str, "_Source"]] = {}
"""The sources of this process by name. A restarted query may register its source before its last run removes its own.
"""
_lock: Final = threading.Lock()


def source_name(query_id: str, query_name: str) -> str:
    """Return the name of a query's source without Spark's prefix ``plugin.``, such as ``riffle-clicks-0a1b2c3d``.

    It has the name of the query, or ``query``, and the first digits of its id. No name is a prefix of another, because
    Spark removes all metrics that start with the name of the source.

    >>> source_name("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", "clicks per page")
    'riffle-clicks_per_page-0a1b2c3d'
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", query_name or "query")
    return f"riffle-{name}-{query_id.replace('-', '')[:_ID_LENGTH]}"


class MetricsSource:
    """Exports a query's totals to Spark's MetricsSystem."""

    name = "Spark's MetricsSystem"

    def __init__(self, spark: SparkSession) -> None:
        """Create the exporter for the application of ``spark``, a session with a JVM. The first export registers it."""
        self._spark = spark
        self._source: _Source | None = None

    def export(
        self,
        report: BatchReport | None,  # noqa: ARG002 - the readings include its figures
        facts: DriverFacts,
        readings: Sequence[Reading],
    ) -> None:
        """Set the gauges: one call to the JVM, and some more when there are new ones. Raises the JVM's errors."""
        if not facts.query_id:
            return
        if self._source is None:
            self._source = _Source(self._spark, source_name(facts.query_id, facts.query_name))
        self._source.set(totals(readings))

    def close(self) -> None:
        """Remove the source, so that sinks no longer report the stopped query."""
        if self._source is not None:
            self._source.remove()
        self._source = None


class _Source:
    """A registered source and its gauges."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        jvm = handles.context(spark)._jvm
        self._jvm = jvm
        self._name = f"plugin.{name}"
        self._system = _metrics_system(spark)
        context = looked_up(jvm, "org.apache.spark.internal.plugin.PluginContextImpl")(
            name,
            None,
            self._system,
            handles.context(spark)._jsc.sc().getConf(),
            "driver",
            looked_up(jvm, "java.util.HashMap")(),
        )
        self._registry = context.metricRegistry()
        self._gauges = looked_up(jvm, "java.util.HashMap")()
        self._names: set[str] = set()
        for_name = looked_up(jvm, "java.lang.Class", "forName")
        mapper = looked_up(jvm, "com.fasterxml.jackson.databind.ObjectMapper")()
        mapper.setDefaultMergeable(True)
        kind = mapper.getTypeFactory().constructMapType(
            self._gauges.getClass(), for_name("java.lang.String"), for_name(_GAUGE)
        )
        self._reader = mapper.readerForUpdating(self._gauges).forType(kind)
        self._context = context

    def set(self, values: dict[str, int | float]) -> None:
        """Set all gauges. Remove gauges without a value, so that unknown metrics are absent."""
        for name in values.keys() - self._names:
            gauge = looked_up(self._jvm, _GAUGE)(0)
            self._gauges.put(name, gauge)
            self._registry.register(name, gauge)
        for name in self._names - values.keys():
            self._gauges.remove(name)
            self._registry.remove(name)
        self._names = set(values)
        self._reader.readValue(json.dumps({name: {"value": value} for name, value in values.items()}))
        if _registered.get(self._name) is not self:
            self._register()

    def _register(self) -> None:
        """Add the source to the MetricsSystem, in place of one with the same name."""
        with _lock:
            earlier = _registered.get(self._name)
            if earlier is not None:
                earlier._remove()
            self._context.registerMetrics()
            _registered[self._name] = self

    def remove(self) -> None:
        """Remove the source and its gauges from the MetricsSystem, unless another source has replaced it."""
        with _lock:
            if _registered.get(self._name) is self:
                del _registered[self._name]
                self._remove()

    def _remove(self) -> None:
        try:
            sources = self._system.getSourcesByName(self._name)
            for number in range(sources.size()):
                self._system.removeSource(sources.apply(number))
        except Exception as error:  # noqa: BLE001 - a JVM that has ended may raise any error, and has no sources
            _logger.debug("Cannot remove the source of metrics: %s", error)


def _metrics_system(spark: SparkSession) -> Any:
    """Return the MetricsSystem of the driver.

    Py4J lists all methods of a class before it calls one. In Spark 4.3 this fails for ``SparkEnv``, because one method
    needs a class that PySpark's jars lack. So a method handle, which needs only the one method, calls it.
    """
    jvm = handles.context(spark)._jvm
    for_name = looked_up(jvm, "java.lang.Class", "forName")
    kind = looked_up(jvm, "java.lang.invoke.MethodType", "methodType")(
        for_name("org.apache.spark.metrics.MetricsSystem")
    )
    lookup = looked_up(jvm, "java.lang.invoke.MethodHandles", "publicLookup")()
    method = lookup.findVirtual(for_name("org.apache.spark.SparkEnv"), "metricsSystem", kind)
    arguments = looked_up(jvm, "java.util.ArrayList")()
    arguments.add(handles.context(spark)._jsc.sc().env())
    return method.invokeWithArguments(arguments)
