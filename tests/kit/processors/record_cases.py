"""Record the results of Spark's own operator for every case. Later test runs compare with them.

Both forms give the same results, so a case has one recording. It lists the version of Spark that ran each form.

.venv/bin/python -m tests.kit.processors.record_cases               pandas form, on the pinned Spark
.venv-4.3.0/bin/python -m tests.kit.processors.record_cases         Row form: after ./run setup --spark 4.3.0
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from tests.kit.folders import CHECKOUT, DATA
from tests.kit.processors.catalogue import CASES
from tests.kit.processors.processor_case import Case
from tests.kit.streams.sparks_operator import CONF, encoded, run_native

__all__ = ["ABOUT", "FOLDER", "digest", "environment", "recorded", "session"]

FOLDER = DATA / "native"
ABOUT = ("spark", "input")
"""The fields of a recording that are not from ``run_native``."""
QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"}


def recorded(case: Case) -> dict[str, Any]:
    """Return the recording of a case.

    It has the result of ``run_native``, the versions of Spark by form (``spark``), and the digest of the case
    (``input``).
    """
    outcome: dict[str, Any] = json.loads(_path(case).read_text())
    return outcome


def digest(case: Case) -> str:
    """Return a digest of the input of a case. It shows whether a recording is older than its case."""
    tables = [*case.batches, *([] if case.initial is None else [case.initial])]
    fed = [case.watermark, case.times_ms, case.restart_after, [table.to_pylist() for table in tables]]
    return hashlib.sha256(json.dumps(encoded(fed)).encode()).hexdigest()[:16]


def _path(case: Case) -> Path:
    return FOLDER / f"{case.name}.json"


def _text(recording: dict[str, Any]) -> str:
    """Return JSON text with one batch, or one variable, per line."""
    lines = []
    for name, value in recording.items():
        if isinstance(value, list):
            lines.append(f'"{name}": [\n' + ",\n".join(f"  {_line(each)}" for each in value) + "\n]")
        elif isinstance(value, dict):
            lines.append(
                f'"{name}": {{\n' + ",\n".join(f'  "{at}": {_line(each)}' for at, each in value.items()) + "\n}"
            )
        else:
            lines.append(f'"{name}": {_line(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def session() -> SparkSession:
    """Return a Spark session that runs cases."""
    builder = SparkSession.builder.master("local[2]").appName("record")
    for name, value in {**CONF, **QUIET}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def environment() -> None:
    """Set the environment variables with which Python workers use the interpreter and the packages of this process."""
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    checkout = str(CHECKOUT)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [checkout, os.environ.get("PYTHONPATH")]))


def main() -> int:
    """Record the named cases, or all, and return the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = "pandas" if pyspark.__version__.startswith("4.0.") else "rows"
    parser.add_argument("--form", choices=("pandas", "rows"), default=usual)
    parser.add_argument("--only", default=",".join(CASES), help="these cases (%(default)s)")
    options = parser.parse_args()
    environment()
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Spark uses old checkpoints until it stops, so the folder is deleted afterwards.
    with tempfile.TemporaryDirectory(prefix="riffle-native-") as folder:
        spark = session()
        failed = [name for name in options.only.split(",") if not _record(spark, name, options.form, Path(folder))]
        spark.stop()
    return len(failed)


def _record(spark: SparkSession, name: str, form: str, folder: Path) -> bool:
    """Write the recording of one case and return whether this succeeded. Print the reason of a failure."""
    case = CASES[name]
    try:
        outcome = run_native(spark, case, form, folder / name)
    except Exception as error:  # noqa: BLE001 - the other cases are recorded all the same
        print(f"{name}: {str(error)[-3000:]}", file=sys.stderr)
        return False
    versions: dict[str, str] = {}
    if _path(case).exists() and recorded(case)["input"] == digest(case):
        before = recorded(case)
        versions = {other: version for other, version in before["spark"].items() if other != form}
        if versions and outcome != {at: before[at] for at in before if at not in ABOUT}:
            print(f"{name}.{form}: differs from what {versions} gave", file=sys.stderr)
            return False
    about = {"spark": {**versions, form: pyspark.__version__}, "input": digest(case)}
    _path(case).write_text(_text({**about, **outcome}))
    print(f"{name}.{form}", file=sys.stderr)
    return True


if __name__ == "__main__":
    sys.exit(main())
