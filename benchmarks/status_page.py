"""Measure the time to make the status page, and the time to open it in Chromium.

./run bench status_page [--save] [--json]

The page is of a query with 4 co-location groups (one store each), 1,024 key-groups per group and 100 members. Each
repetition opens it in the same tab of a headless Chromium, 1440 pixels wide. ``performance.now`` counts from the start
of the navigation: ``drawn`` is when all charts and maps are drawn, ``loaded`` the end of the load event.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import cast

from riffle_spark.observe.page import page_of
from tests.kit.browser import open_page
from tests.kit.large_status import invented_status

__all__ = ["main", "measure_page"]

TIMES = """JSON.stringify([performance.getEntriesByName("drawn")[0].startTime,
  performance.getEntriesByType("navigation")[0].loadEventEnd])"""


def measure_page(repetitions: int) -> dict[str, float]:
    """Return medians over the repetitions, and the bytes of the page."""
    status = invented_status(members=100, groups=4, key_groups=1024)
    made_seconds, drawn, loaded = [], [], []
    with tempfile.TemporaryDirectory() as folder, open_page(Path(folder) / "profile") as page:
        file = Path(folder) / "status.html"
        page.show(1440, 1000)
        for _ in range(repetitions):
            start = time.perf_counter()
            text = page_of(status)
            made_seconds.append(time.perf_counter() - start)
            file.write_text(text, "utf-8")
            page.load(file)
            times = json.loads(cast(str, page.run(TIMES)))
            drawn.append(times[0])
            loaded.append(times[1])
        assert page.problems == []
        size = file.stat().st_size
    return {
        "page.made_ms": 1000 * median(made_seconds),
        "page.drawn_ms": median(drawn),
        "page.loaded_ms": median(loaded),
        "page.slowest_loaded_ms": max(loaded),
        "page.bytes": size,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; with ``--json`` as one line of JSON."""
    parser = argparse.ArgumentParser(prog="./run bench status_page")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repetitions", type=int, default=20)
    options = parser.parse_args(arguments)
    figures = measure_page(options.repetitions)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:28} {value:12,.1f}")


if __name__ == "__main__":
    main()
