"""A driver that runs one batch per worker Python, and prints the outcomes as JSON.

Usage: worker_python_app.py CHECKOUT FOLDER ZIP < CASES

A case is ``[name, interpreter, function, sends]``. ``function`` computes the state: ``counts``, ``imports`` with a
module that executors do not have, or ``mine`` of such a module. A case with ``sends`` first sends the zip file to
the executors, which keep it.
"""

import importlib
import json
import sys
from pathlib import Path

checkout, folder, zipped = sys.argv[1:]
sys.path.insert(0, checkout)
(Path(folder) / "on_driver").mkdir()
(Path(folder) / "on_driver" / "my_functions.py").write_text(
    "import pyarrow as pa\ndef keeps(rows, state):\n    return state, state\n"
)
sys.path.insert(0, str(Path(folder) / "on_driver"))

import pyarrow as pa  # noqa: E402 - behind the path that the driver alone has
from pyspark.sql import SparkSession  # noqa: E402

import riffle_spark  # noqa: E402
from riffle_spark import Settings, Stateful, aggregate, arrow_function, count  # noqa: E402
from riffle_spark.process.blocks.block import Computation  # noqa: E402

SEEN = [("seen", pa.int64())]
OUTPUT = pa.schema([("k", pa.int64()), *SEEN])


def imports(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Import a module that only the driver has."""
    importlib.import_module("my_functions")
    return state, state


COMPUTES: dict[str, Computation] = {
    "counts": aggregate(rows=count()),
    "imports": arrow_function(imports, state=pa.schema(SEEN), output=OUTPUT),
    "mine": arrow_function(importlib.import_module("my_functions").keeps, state=pa.schema(SEEN), output=OUTPUT),
}


def outcome(spark: SparkSession, name: str, function: str) -> list[str]:
    """Run a batch. Return the class, the problem and the remedy of its error, or nothing."""
    settings = Settings(root=f"file://{folder}/of-{name}/state", local_dir=f"{folder}/of-{name}/local", key_groups=2)
    job = Stateful("totals", "k", COMPUTES[function], settings=settings).into(print)
    try:
        job(spark.range(3).selectExpr("id as k"), 0)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return [type(error).__name__, getattr(error, "problem", str(error)), getattr(error, "remedy", "")]
    return []


def main() -> None:
    """Run all cases in one session, and print their outcomes."""
    builder = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    )
    spark = riffle_spark.configure(builder, kafka=False).getOrCreate()
    outcomes = {}
    for name, interpreter, function, sends in json.load(sys.stdin):
        if sends:
            spark.sparkContext.addPyFile(zipped)
        spark.sparkContext.pythonExec = interpreter
        outcomes[name] = outcome(spark, name, function)
    print(json.dumps(outcomes))
    spark.stop()


if __name__ == "__main__":
    main()
