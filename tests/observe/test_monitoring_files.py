"""The dashboard and the alerts use existing metrics, and each alert has a runbook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from riffle_spark.observe.metric_list import LABELS, METRIC_BY_NAME
from tests.kit.folders import CHECKOUT

ALERTS = (CHECKOUT / "conf" / "prometheus" / "alerts.yml").read_text()
DASHBOARD = json.loads((CHECKOUT / "conf" / "grafana" / "riffle.json").read_text())
RUNBOOK = (CHECKOUT / "docs" / "alerts.md").read_text()
NAME = re.compile(r"\briffle_[a-z_]+\b")
SECTIONS = ("**Cause.**", "**Check.**", "**Remedy.**")


def expressions(value: Any) -> Iterator[str]:
    """Yield all queries of a dashboard."""
    if isinstance(value, dict):
        if isinstance(value.get("expr"), str):
            yield value["expr"]
        yield from (text for each in value.values() for text in expressions(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in expressions(each))


def test_all_metrics_of_the_dashboard_exist() -> None:
    """Each query of the dashboard uses listed metrics, and groups by their labels."""
    queries = list(expressions(DASHBOARD))
    assert len(queries) > 15
    for query in queries:
        names = NAME.findall(query)
        assert names, query
        assert set(names) <= METRIC_BY_NAME.keys(), query
        (grouped,) = re.findall(r"by \(([^)]*)\)", query)
        labels = {label for name in names for label in METRIC_BY_NAME[name].labels}
        assert set(grouped.split(", ")) <= {*labels, "query"}, query


def test_all_metrics_and_labels_of_the_alerts_exist() -> None:
    """The alerts use listed metrics and labels."""
    names = set(NAME.findall(re.sub(r"(?m)^\s*#.*$", "", ALERTS)))
    assert names <= METRIC_BY_NAME.keys()
    assert len(names) >= 8
    for grouped in re.findall(r"(?:by|on) \(([^)]*)\)", ALERTS):
        assert set(grouped.split(", ")) <= {*LABELS, "query"}


def test_each_alert_has_a_runbook_and_links_to_it() -> None:
    """The runbook has a section for each alert and no others, with cause, check and remedy."""
    alerts = re.findall(r"alert: (\w+)", ALERTS)
    links = re.findall(r'runbook_url: "docs/alerts\.md#(\w+)"', ALERTS)
    assert len(alerts) == 6
    assert links == [alert.lower() for alert in alerts]
    sections = dict(re.findall(r"(?ms)^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOK))
    assert list(sections) == alerts
    for text in sections.values():
        assert [mark for mark in SECTIONS if mark in text] == list(SECTIONS)


def test_metrics_in_the_runbook_exist() -> None:
    """The runbook names listed metrics only."""
    assert set(NAME.findall(RUNBOOK)) - {"riffle_spark"} <= METRIC_BY_NAME.keys()
