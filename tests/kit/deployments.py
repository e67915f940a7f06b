"""Run the printed commands of a deployment page against servers on loopback, and compare output and state."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from apps.demo.jars import connector_jars, spark_home
from apps.demo.job import counted_by
from apps.demo.ledger import Difference, Ledger, compare, make_events
from apps.demo.producer import produce
from apps.demo.servers import JVM_OPTIONS, KafkaBroker, S3Server
from riffle_spark import aggregate, count, sum_
from riffle_spark.protocol.operator import operator_of
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import S3Options, StoreOptions
from riffle_spark.testing.committed_state import CommittedState
from tests.kit.folders import APPS, CHECKOUT
from tests.kit.pages import blocks
from tests.kit.servers.bare_python import clean_environment

__all__ = ["BOTO3", "EXACT", "REQUIRED", "Deployment", "checkout_copy", "install_locked", "printed", "run_printed"]

EVENTS = 20_000
KEYS = 500
ROWS_PER_BATCH = 6_000
COMMAND_SECONDS = 250
EXACT = Difference(lost=0, doubled=0, wrong_keys=0)
BOTO3 = ("boto3", "botocore", "jmespath", "python-dateutil", "s3transfer", "six", "urllib3")
"""The packages that ``pip install boto3`` installs."""
REQUIRED = ("click", "kafka-python", "numpy", "pandas", "pyarrow", "pytz", "tzdata", "xxhash", *BOTO3)
"""The packages that ``pip install . 'pandas>=2.2,<3'`` installs besides riffle_spark."""
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==", re.MULTILINE)


def printed(page: str, part: str) -> str:
    """Return the code of the only block of a deployment page that contains a text."""
    (code,) = [block.code for block in blocks(CHECKOUT / "docs" / "deploy" / page) if part in block.code]
    return code


def checkout_copy(folder: Path) -> Path:
    """Copy the package and the applications, which the printed commands use, into a folder."""
    for name in ("riffle_spark", "apps"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, folder / name)
    return folder


def replace_all(command: str, replaced: Mapping[str, str]) -> str:
    """Return a printed command in which texts are replaced. Each of these texts must occur in it."""
    for old, new in replaced.items():
        assert old in command, f"{old} is not in the printed command:\n{command}"
        command = command.replace(old, new)
    return command


def run_printed(command: str, folder: Path, *programs: Path, **variables: str) -> str:
    """Run a printed block with bash in a folder and return its output. ``programs`` are put first on the path."""
    environment = clean_environment(**variables)
    environment["PATH"] = os.pathsep.join([*map(str, programs), environment["PATH"]])
    completed = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=COMMAND_SECONDS, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, f"{command}\n{(completed.stdout + completed.stderr)[-8000:]}"
    return completed.stdout + completed.stderr


def install_locked(python: Path, names: Sequence[str], folder: Path, *options: str) -> None:
    """Install packages with the versions and hashes of the lock file. Their list is written to ``folder``."""
    lock = CHECKOUT / "requirements" / ("python311.txt" if sys.version_info >= (3, 11) else "python310.txt")
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", lock.read_text())
    chosen = [entry for entry in entries if (match := _REQUIREMENT.match(entry)) and match["name"] in names]
    assert len(chosen) == len(names), names
    file = folder / "locked.txt"
    file.write_text("".join(chosen))
    command = [str(python), "-m", "pip", "install", "-q", "--require-hashes", "--no-deps", *options, "-r", str(file)]
    subprocess.run(command, check=True, timeout=300, env=clean_environment())


@dataclass(frozen=True, slots=True)
class Deployment:
    """One run of the running totals in the deployment that a page describes."""

    folder: Path
    broker: KafkaBroker
    store: S3Server
    name: str

    @property
    def root(self) -> str:
        """The URL of the state."""
        return f"s3://{self.store.bucket}/deployments/{self.name}"

    def submit(self, command: str, replaced: Mapping[str, str], conf: Mapping[str, str], **variables: str) -> str:
        """Produce the events and run the printed ``spark-submit`` with local addresses. Return its output."""
        self.broker.create_topic(self.name, partitions=2)
        produce(self.broker.bootstrap, self.name, make_events(EVENTS, KEYS))
        application = f"--topic {self.name} --available-now --max-offsets {ROWS_PER_BATCH}"
        return self._run(replace_all(command, {"--topic events": application, **replaced}), conf, **variables)

    def imports(
        self, command: str, modules: str, replaced: Mapping[str, str], conf: Mapping[str, str], **variables: str
    ) -> str:
        """Run the printed ``spark-submit`` with another application.

        Return the line with the files from which the executors import ``modules``.
        """
        submit, _, _ = command.rpartition("apps/running_totals.py")
        command = f"{replace_all(submit, replaced)} {APPS / 'imports_app.py'} {modules}"
        return next(line for line in self._run(command, conf, **variables).splitlines() if line.startswith("imported"))

    def _run(self, command: str, conf: Mapping[str, str], **variables: str) -> str:
        places = {
            "s3://bucket/state/totals": self.root,
            "s3a://bucket/totals": str(self.folder / "totals"),
            "s3a://bucket/checkpoints/totals": str(self.folder / "checkpoint"),
            "broker:9092": self.broker.bootstrap,
        }
        for old, new in places.items():
            command = command.replace(old, new)
        command = re.sub(r"--packages \S+", f"--jars {','.join(map(str, connector_jars()))}", command)
        options = " ".join(f"--conf {shlex.quote(f'{name}={value}')}" for name, value in self._conf(conf).items())
        command = command.replace("spark-submit ", f"spark-submit {options} ", 1)
        return run_printed(command, self.folder, spark_home() / "bin", **self.store.environment, **variables)

    def _conf(self, conf: Mapping[str, str]) -> dict[str, str]:
        return {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "800m",
            "spark.driver.extraJavaOptions": JVM_OPTIONS,
            "spark.executor.extraJavaOptions": JVM_OPTIONS,
            "spark.executor.memory": "600m",
            "spark.riffle.s3_endpoint": self.store.endpoint,
            **{f"spark.executorEnv.{name}": value for name, value in self.store.environment.items()},
            **conf,
        }

    def difference_of_output(self) -> Difference:
        """Compare the totals that the sink received with the produced events."""
        return compare(Ledger.of(make_events(EVENTS, KEYS), KEYS), counted_by(self.folder / "totals", KEYS))

    def difference_of_state(self) -> Difference:
        """Compare the committed state, read from its objects alone, with the produced events."""
        compute = aggregate(count=count(), total=sum_("amount"))
        rows = pa.schema([("user_id", pa.string()), ("amount", pa.int64())])
        objects = open_store(self.root, StoreOptions(s3=S3Options(endpoint=self.store.endpoint)))
        operator = operator_of("totals", ("user_id",), compute, (), rows)
        contents = CommittedState(operator, objects, self.root, self.folder)
        state = contents.columns()
        ledger = Ledger(np.zeros(KEYS, np.int64), np.zeros(KEYS, np.int64))
        for (user,), row in state.items():
            number = int(str(user)[1:])
            ledger.counts[number] = int(str(row["count"]))
            ledger.sums[number] = int(str(row["total"]))
        return compare(Ledger.of(make_events(EVENTS, KEYS), KEYS), ledger)
