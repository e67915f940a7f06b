"""Append the report and the readings of each batch to a file, as a line of JSON."""

import json
from collections.abc import Sequence
from pathlib import Path

from riffle_spark.messages.slot_orders import fields_of
from riffle_spark.observe.readings import Reading
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.facts import DriverFacts


class JsonLines:
    """Appends a line for each batch to a file (setting ``report_file``).

    A line is an object with the fields of ``BatchReport`` and one more, ``readings``: it maps each metric with its
    labels, as Prometheus writes them, to its value. Times without a batch are not written.
    """

    name = "report_file"

    def __init__(self, path: str) -> None:
        """Create the exporter for the file at ``path``. The file is opened for each line, so it may be rotated."""
        self._path = Path(path)
        self._is_cut = False
        """Whether the file ends with a part of a line, because the disk was full."""

    def export(self, report: BatchReport | None, facts: DriverFacts, readings: Sequence[Reading]) -> None:  # noqa: ARG002
        """Append the line of a batch. Raises ``OSError`` if the file cannot be written."""
        if report is not None:
            body = {**fields_of(report), "readings": {reading.sample: reading.value for reading in readings}}
            line = json.dumps(body, default=fields_of, separators=(",", ":"))
            start = "\n" if self._is_cut else ""
            data = f"{start}{line}\n".encode()
            with self._path.open("ab", buffering=0) as file:
                while data:
                    data = data[file.write(data) :]
                    self._is_cut = bool(data)

    def close(self) -> None:
        """Do nothing: no file is open."""
