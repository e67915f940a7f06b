"""Records what Spark makes of values of every kind in state. Knows how Spark breaks off. Does not know the values.

    .venv/bin/python -m tests.processors.record_conversions
    .venv-4.3.0/bin/python -m tests.processors.record_conversions

Where Spark cannot unpickle or store a value, its server says so and answers no more: the query fails, and is started
again with what is left. Spark 4.0 hangs instead, so there what 4.3 cannot store is left out: record 4.3 first.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.processors.conversions import NAMES, Trials, found
from tests.processors.record import FOLDER, environment, session

__all__ = ["NEWEST", "main"]

NEWEST = "4.3.0"
OLD = pyspark.__version__.startswith("4.0.")
END_SECONDS = 120
STARTS_MAX = 80
_JAVAS = re.compile(r"java\.util|\[Ljava|@[0-9a-f]{6,}|Timedelta: |^'[\[{]")
"""In texts that Java makes of objects."""


def path_of(version: str) -> Path:
    """Return where a version's recording is."""
    return FOLDER / f"conversions-{version}.json"


def _run(spark: SparkSession, trials: Trials, folder: Path) -> bool:
    """Run a query of one row; tell whether it came to its end."""
    source = folder / "in"
    source.mkdir(parents=True)
    (source / "row.json").write_text('{"id": "a"}\n')
    grouped = spark.readStream.schema("id string").json(str(source)).groupBy("id")
    transform = grouped.transformWithStateInPandas if OLD else grouped.transformWithState
    writer = transform(trials, "id string", "update", "None").writeStream.outputMode("update")
    writer = writer.foreachBatch(lambda frame, _: frame.collect())
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    try:
        return bool(query.awaitTermination(END_SECONDS))
    except StreamingQueryException:
        return False


def _told(name: str, told: list[str]) -> list[str]:
    """Return what is kept: that there was an error, that Java made a text of an object, or type and value."""
    if told[0] == "!":
        return ["!"]
    return ["java"] if name.startswith(("string/", "struct")) and _JAVAS.search(told[1]) else told


def main() -> int:
    """Record the Spark at hand; return how many trials are missing."""
    environment()
    known = json.loads(path_of(NEWEST).read_text()) if OLD else {}
    left_out = {name for name in NAMES if OLD and known.get(name, ["!"]) == ["!"]}
    left_out |= {name for name in NAMES if OLD and name.startswith(("put/", "appendList"))}
    with tempfile.TemporaryDirectory(prefix="riffle-native-") as made:
        spark, notes = session(), Path(made) / "notes"
        for start in range(STARTS_MAX):
            # What was begun and not told comes first in the next query, where no other can have broken it.
            done = {name for name, told in found(notes).items() if told[1:] != ["", ""]}
            if _run(spark, Trials(notes, frozenset(done | left_out)), Path(made) / str(start)):
                break
        spark.stop()
        told = {name: _told(name, one) for name, one in found(notes).items() if one[1:] != ["", ""]}
    lines = [f"{json.dumps(name)}: {json.dumps(told[name])}" for name in NAMES if name in told]
    path_of(pyspark.__version__).write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return len({*NAMES} - left_out - {*told})


if __name__ == "__main__":
    sys.exit(main())
