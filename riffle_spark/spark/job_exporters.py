"""Choose the exporters of a job by its settings."""

import os
from functools import partial

from pyspark.sql import SparkSession

from riffle_spark import __version__
from riffle_spark.messages.slot_orders import Home
from riffle_spark.observe.export import Exporter
from riffle_spark.observe.json_lines import JsonLines
from riffle_spark.observe.status_exporter import StatusExporter
from riffle_spark.optional_packages import check_importable
from riffle_spark.protocol.batch.driver import Driver
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import jvm
from riffle_spark.spark.engine.background import SystemClock
from riffle_spark.spark.engine.metrics_source import MetricsSource
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.store import check_endpoint


def check_exporters(settings: Settings) -> None:
    """Raise ``ConfigError`` if an exporter needs a package that is not installed, or its URL has credentials."""
    if settings.otlp_endpoint is not None:
        check_endpoint(settings.otlp_endpoint, "otlp_endpoint")
        check_importable(
            "opentelemetry.exporter.otlp.proto.http",
            "otlp_endpoint",
            "opentelemetry-exporter-otlp-proto-http>=1.45",
            " for the driver's Python, or remove otlp_endpoint",
            where="otlp_endpoint",
        )


def exporters_of(settings: Settings, spark: SparkSession, home: Home, driver: Driver) -> list[Exporter]:
    """Return the exporters that these settings enable, and Spark's MetricsSystem if the session has a JVM.

    ``home`` has the root of the query, ``driver`` counts the requests of exporters.
    """
    exporters: list[Exporter] = []
    if jvm.is_classic(spark):
        exporters.append(MetricsSource(spark))
    if settings.report_file:
        exporters.append(JsonLines(settings.report_file))
    if settings.otlp_endpoint is not None:
        from riffle_spark.observe.otlp import Otlp  # needs the extra "otel"

        exporters.append(Otlp(settings.otlp_endpoint, settings.otlp_signals, SystemClock().seconds, os.environ))
    if settings.status_interval > 0:
        objects = open_store(home.root, home.options)
        count_requests = partial(driver.count_requests, "status")
        moves = driver.ownership.moves.recent
        exporters.append(StatusExporter(objects, lambda: driver.settings, moves, __version__, count_requests))
    return exporters
