"""Choose the exporters of a job by its settings."""

from riffle_spark.observe.export import Exporter
from riffle_spark.observe.json_lines import JsonLines
from riffle_spark.settings import Settings

__all__ = ["exporters_of"]


def exporters_of(settings: Settings) -> list[Exporter]:
    """Return the exporters that these settings ask for."""
    return [JsonLines(settings.report_file)] if settings.report_file else []
