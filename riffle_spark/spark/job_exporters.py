"""Choose the exporters of a job by its settings."""

from functools import partial

from riffle_spark import __version__
from riffle_spark.messages.slot_orders import Home
from riffle_spark.observe.export import Exporter
from riffle_spark.observe.json_lines import JsonLines
from riffle_spark.observe.status_exporter import StatusExporter
from riffle_spark.protocol.batch.driver import Driver
from riffle_spark.settings import Settings
from riffle_spark.state.objects.open import open_store

__all__ = ["exporters_of"]


def exporters_of(settings: Settings, home: Home, driver: Driver) -> list[Exporter]:
    """Return the exporters that these settings ask for, for the query of ``driver`` with this home."""
    exporters: list[Exporter] = []
    if settings.report_file:
        exporters.append(JsonLines(settings.report_file))
    if settings.status_interval > 0:
        objects = open_store(home.root, home.options)
        exporters.append(StatusExporter(objects, settings, __version__, partial(driver.count_requests, "status")))
    return exporters
