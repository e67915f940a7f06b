"""A real Prometheus, and promtool. Both are built with Go on first use, without the discovery of cloud services."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from apps.demo.gateway import ensure_program
from apps.demo.servers import Child, Launch, Server, free_port

__all__ = ["Prometheus", "promtool"]

_VERSION = "v0.316.0"
"""The version of the Go module. The program itself reports 3.16."""
_MODULE = "github.com/prometheus/prometheus/cmd"
_TAGS = "remove_all_sd"
_START_SECONDS = 60.0
_REQUEST_SECONDS = 10


def promtool(*arguments: str, folder: Path) -> str:
    """Run promtool in a folder and return its output. Fail the test if it reports a fault."""
    program = ensure_program(f"{_MODULE}/promtool@{_VERSION}", _TAGS)
    completed = subprocess.run(
        [str(program), *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


class Prometheus(Server):
    """A Prometheus on a free loopback port. It receives OTLP metrics at ``otlp_endpoint``."""

    def __init__(self, config: str, folder: Path) -> None:
        """Create the server. ``config`` is its configuration, and ``folder`` keeps its files."""
        self._folder = folder
        self._config = config
        self._port = free_port()
        self._child: Child | None = None
        self.address = f"http://127.0.0.1:{self._port}"
        self.otlp_endpoint = f"{self.address}/api/v1/otlp"

    def start(self) -> None:
        """Start the server without waiting for it."""
        program = ensure_program(f"{_MODULE}/prometheus@{_VERSION}", _TAGS)
        file = self._folder / "prometheus.yml"
        file.write_text(self._config)
        command = [
            str(program),
            f"--config.file={file}",
            f"--storage.tsdb.path={self._folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--web.enable-otlp-receiver",
            "--log.level=warn",
        ]
        self._child = Child(Launch("prometheus", command, self._folder / "prometheus.log", grace_seconds=5))

    def wait_until_ready(self) -> None:
        """Wait until the server answers queries."""
        assert self._child is not None
        self._child.wait_until(self._is_ready, _START_SECONDS)

    def stop(self) -> None:
        """Stop the process."""
        if self._child is not None:
            self._child.stop()

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return the current values of an expression by their labels.

        The label ``__name__`` is the name of the metric.
        """
        parameters = urllib.parse.urlencode({"query": expression})
        result = self._get(f"/api/v1/query?{parameters}")["result"]
        return {tuple(sorted(series["metric"].items())): float(series["value"][1]) for series in result}

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self.alerts() if alert["state"] == "firing"}

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are pending or fire."""
        return list(self._get("/api/v1/alerts")["alerts"])

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/-/ready", timeout=_REQUEST_SECONDS) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.address}{path}", timeout=_REQUEST_SECONDS) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return dict(body["data"])
