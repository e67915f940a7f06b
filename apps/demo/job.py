"""Start the streaming job with spark-submit, and read its output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from apps.demo.jars import connector_jars, spark_home
from apps.demo.ledger import Ledger
from apps.demo.servers import JVM_OPTIONS, Child, KafkaBroker, Launch, S3Server, StandaloneCluster

__all__ = ["APP", "Job", "counted_by", "counted_minutes"]

CHECKOUT = Path(__file__).resolve().parents[2]
APP = CHECKOUT / "apps" / "running_totals.py"
PREFIX = "running-totals"
MINUTE_SECONDS = 60
BATCHES_WANTED = 15
# The limit per batch is divided over partitions and rounded down. Without spare rows, a few would need a batch more.
SPARE_ROWS = 100


@dataclass(frozen=True, slots=True)
class Job:
    """The input, the output and the cluster of the job."""

    folder: Path
    topic: str
    events: int
    app: Path = APP

    @property
    def report_file(self) -> Path:
        """The file to which the job appends its batch reports."""
        return self.folder / "reports.jsonl"

    @property
    def output(self) -> Path:
        """The folder to which the job writes the totals of each batch."""
        return self.folder / "totals"

    @property
    def minutes(self) -> Path:
        """The folder to which its windowed query writes completed minutes."""
        return self.folder / "minutes"

    def stage(self) -> str:
        """Describe the progress by the files that Spark has written."""
        planned = [int(file.name) for file in (self.folder / "checkpoint" / "offsets").glob("[0-9]*")]
        if planned:
            return f"batch {max(planned)} is under way"
        return "the query starts" if (self.folder / "checkpoint").exists() else "the driver and the executors start"

    def submit(self, broker: KafkaBroker, store: S3Server, cluster: StandaloneCluster) -> Child:
        """Start the job with local jars of the connector, so that the start downloads nothing."""
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", cluster.url]
        command += ["--jars", ",".join(map(str, connector_jars()))]
        for name, value in self._configuration(store).items():
            command += ["--conf", f"{name}={value}"]
        command += [str(self.app), "--bootstrap", broker.bootstrap, "--topic", self.topic]
        command += ["--checkpoint", str(self.folder / "checkpoint"), "--output-path", str(self.output)]
        command += ["--minutes-path", str(self.minutes), "--minutes-root", f"s3://{store.bucket}/{PREFIX}-minutes"]
        command += [
            "--max-offsets",
            str(max(self.events // BATCHES_WANTED + SPARE_ROWS, 1000)),
            "--trigger-seconds",
            "0",
        ]
        return Child(Launch("the job", command, self.folder / "job.log", self._environment(cluster, store)))

    def _configuration(self, store: S3Server) -> dict[str, str]:
        credentials = {f"spark.executorEnv.{name}": value for name, value in store.environment.items()}
        return {
            "spark.app.name": "running totals",
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": JVM_OPTIONS,
            "spark.executor.extraJavaOptions": JVM_OPTIONS,
            "spark.executor.cores": "1",
            "spark.executor.memory": "768m",
            "spark.riffle.conf_file": str(CHECKOUT / "conf" / "demo.toml"),
            "spark.riffle.root": f"s3://{store.bucket}/{PREFIX}",
            "spark.riffle.s3_endpoint": store.endpoint,
            "spark.riffle.report_file": str(self.report_file),
            **credentials,
        }

    def _environment(self, cluster: StandaloneCluster, store: S3Server) -> Mapping[str, str]:
        return {**cluster.environment, **store.environment, "PYSPARK_DRIVER_PYTHON": sys.executable}


def counted_by(output: Path, keys: int) -> Ledger:
    """Return the last count and sum per key, over the folders ``batch=<id>`` in order of batch."""
    ledger = Ledger(np.zeros(keys, np.int64), np.zeros(keys, np.int64))
    folders = [folder for folder in output.glob("batch=*") if (folder / "_SUCCESS").exists()]
    for folder in sorted(folders, key=lambda path: int(path.name.removeprefix("batch="))):
        totals = pa.concat_tables(
            [pq.ParquetFile(file).read(["user_id", "count", "total"]) for file in sorted(folder.glob("*.parquet"))]
            or [_NOTHING]
        )
        numbers = pc.cast(pc.utf8_slice_codeunits(totals["user_id"], 1), pa.int64()).to_numpy()
        ledger.counts[numbers] = totals["count"].to_numpy()
        ledger.sums[numbers] = totals["total"].to_numpy()
    return ledger


def counted_minutes(output: Path, minutes: int) -> Ledger:
    """Return each minute's count and sum in the files that Spark lists. Repeated output counts twice."""
    ledger = Ledger(np.zeros(minutes, np.int64), np.zeros(minutes, np.int64))
    lists = [file.read_text().splitlines()[1:] for file in (output / "_spark_metadata").glob("[0-9]*")]
    files = {urlsplit(json.loads(line)["path"]).path for lines in lists for line in lines}
    tables = [pq.ParquetFile(file).read(["since", "count", "total"]) for file in sorted(files)]
    combined = pa.concat_tables(tables) if tables else None
    if combined is not None and combined.num_rows:
        since = combined["since"].to_numpy()
        numbers = np.minimum((since - since.min()) // MINUTE_SECONDS, minutes - 1)
        np.add.at(ledger.counts, numbers, combined["count"].to_numpy())
        np.add.at(ledger.sums, numbers, combined["total"].to_numpy())
    return ledger


_NOTHING = pa.table(
    {"user_id": pa.array([], pa.string()), "count": pa.array([], pa.int64()), "total": pa.array([], pa.int64())}
)
