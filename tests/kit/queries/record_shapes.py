"""Record the results of Spark's own operators for every shape. Later test runs compare with them.

All versions of Spark give the same results, so a shape has one recording, which lists these versions.

.venv/bin/python -m tests.kit.queries.record_shapes            on the pinned Spark
.venv-4.3.0/bin/python -m tests.kit.queries.record_shapes      on another: after ./run setup --spark 4.3.0

The ``applyInPandasWithState`` of Spark 3.5 needs the pyarrow of ``requirements/spark-3.5.9.txt``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from tests.kit.folders import DATA
from tests.kit.processors.record_cases import QUIET, environment
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import Played, difference, play
from tests.kit.queries.query_shape import Shape

__all__ = ["FOLDER", "VERSIONS", "digest_of", "is_recorded", "recorded", "session"]

FOLDER = DATA / "queries"
VERSIONS = ("3.5.9", "4.0.5", "4.3.0")
SMALL = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}


def recorded(shape: Shape) -> Played:
    """Return the recorded results of Spark for a shape."""
    record = _read(shape)
    return Played(record["columns"], record["steps"], record["watermarks"])


def is_recorded(shape: Shape, version: str = pyspark.__version__) -> bool:
    """Return whether a version of Spark, by default the installed one, gave the recorded results."""
    return _path(shape).exists() and version in _read(shape)["spark"]


def digest_of(shape: Shape) -> str:
    """Return the digest of the shape from which the recording was made."""
    return str(_read(shape)["input"])


def _read(shape: Shape) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(_path(shape).read_text())
    return record


def _path(shape: Shape) -> Path:
    return FOLDER / f"{shape.name}.json"


def _text(recording: Mapping[str, object]) -> str:
    """Return JSON text with one step per line."""
    lines = [f'"{name}": {_json_of(value)}' for name, value in recording.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _json_of(value: object) -> str:
    if not isinstance(value, list) or all(isinstance(each, str) for each in value):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in value) + "\n]"


def main() -> int:
    """Record the named shapes, or all, and return the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="shapes whose names begin with one of these, with commas between")
    options = parser.parse_args()
    environment()
    FOLDER.mkdir(parents=True, exist_ok=True)
    shapes = [shape for name, shape in SHAPES.items() if name.startswith(tuple(options.only.split(",")))]
    # Spark uses old checkpoints until it stops, so the folder is deleted afterwards.
    with tempfile.TemporaryDirectory(prefix="riffle-queries-") as folder:
        spark = session()
        failed = [shape.name for shape in shapes if not _record(spark, shape, Path(folder))]
        spark.stop()
    print(f"{len(shapes) - len(failed)} recorded, {len(failed)} failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


def session() -> SparkSession:
    """Return the Spark session of recordings."""
    builder = SparkSession.builder.master("local[2]").appName("record")
    for name, value in {**SMALL, **QUIET}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _record(spark: SparkSession, shape: Shape, folder: Path) -> bool:
    """Write the recording of a shape, or add this version of Spark to it, and return whether this succeeded.

    Print the reason of a failure.
    """
    try:
        outcome = play(spark, shape, folder / shape.name)
    except Exception as error:  # noqa: BLE001 - the other shapes are recorded all the same
        print(f"{shape.name}: {str(error)[-1500:]}", file=sys.stderr)
        return False
    versions: set[str] = set()
    if _path(shape).exists() and digest_of(shape) == shape.digest:
        versions = set(_read(shape)["spark"]) - {pyspark.__version__}
    if versions:
        differs = difference(outcome, recorded(shape))
        if differs:
            print(f"{shape.name}: {differs}, as {', '.join(sorted(versions))} gave", file=sys.stderr)
            return False
        outcome = recorded(shape)
    about = {"spark": sorted({*versions, pyspark.__version__}), "input": shape.digest}
    _path(shape).write_text(_text({**about, **asdict(outcome)}))
    print(f"{shape.name}: {sum(map(len, outcome.steps))} rows", file=sys.stderr)
    return True


if __name__ == "__main__":
    sys.exit(main())
