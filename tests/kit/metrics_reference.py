"""Write the tables of ``docs/metrics.md`` from ``riffle_spark.observe.metric_list`` (`./run reference`)."""

from __future__ import annotations

from riffle_spark.observe.metric_list import LABELS, SECTIONS, Metric
from riffle_spark.protocol.request_prices import DOLLARS_PER_REQUEST
from tests.kit.folders import CHECKOUT

__all__ = ["PAGE", "page"]

PAGE = CHECKOUT / "docs" / "metrics.md"
BEGIN = "<!-- begin: made by `./run reference` -->"
END = "<!-- end -->"


def page(text: str) -> str:
    """Return the page with renewed tables between the two marks. The text around the tables is unchanged."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{_tables()}{END}{after}"


def _tables() -> str:
    sections = "".join(f"\n## {title}\n\n{_table(metrics)}" for title, metrics in SECTIONS.items())
    labels = "".join(f"| `{name}` | {values} |\n" for name, values in sorted(LABELS.items()))
    prices = ", ".join(f"{kind} {price * 1_000:g}" for kind, price in DOLLARS_PER_REQUEST.items())
    return (
        f"{sections}\n## Labels\n\n| label | values |\n| --- | --- |\n{labels}\n"
        f"## Prices\n\nDollars for 1,000 requests by kind: {prices}.\n\n"
    )


def _table(metrics: tuple[Metric, ...]) -> str:
    rows = "".join(
        f"| `{metric.name}` | {metric.kind} | {metric.unit} | {_labels(metric)} | {metric.meaning} | {metric.source} |"
        "\n"
        for metric in metrics
    )
    return f"| metric | type | unit | labels | meaning | origin |\n| --- | --- | --- | --- | --- | --- |\n{rows}"


def _labels(metric: Metric) -> str:
    return ", ".join(f"`{label}`" for label in metric.labels)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
