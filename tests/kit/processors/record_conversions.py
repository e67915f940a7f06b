"""Records what Spark makes of values of every kind in state.

    .venv/bin/python -m tests.kit.processors.record_conversions
    .venv-4.3.0/bin/python -m tests.kit.processors.record_conversions

Where Spark cannot unpickle or store a value, its server says so and answers no more: the query fails on 4.3 and hangs
on 4.0, and is started again with what is left. Often a later trial meets it, so each that was begun and not told is
tried once more, as the first of a query. 4.3 tells all of them, in some 25 queries.

A hang takes a minute and leaves ``put`` and ``appendList`` without an answer on 4.0, where they are left out. The
recording of 4.0.5 is of three runs that agree and were broken off: besides those two it lacks all of ``appendList of
one``, generators, what is too short, too long or a number for a map, and a datetime for a date in a struct.
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
from pyspark.sql.streaming import StreamingQuery

from tests.kit.processors.both_forms import collect, sparks_own
from tests.kit.processors.conversions import NAMES, Trials, found
from tests.kit.processors.record_cases import FOLDER, environment, session

__all__ = ["main"]

OLD = pyspark.__version__.startswith("4.0.")
QUIET_SECONDS = 30
"""So long nothing is told by a query that hangs."""
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
    transform = sparks_own(grouped, "pandas" if OLD else "rows")
    writer = transform(trials, "id string", "update", "None").writeStream.outputMode("update")
    writer = writer.foreachBatch(collect)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    try:
        return _ended(query, trials.path)
    except StreamingQueryException:
        return False


def _ended(query: StreamingQuery, notes: Path) -> bool:
    """Wait until a query ends, or stop it where it tells nothing any more."""
    before = -1
    while not query.awaitTermination(QUIET_SECONDS):
        now = notes.stat().st_size if notes.exists() else 0
        if now == before:
            query.stop()
            return False
        before = now
    return True


def _told(name: str, told: list[str]) -> list[str]:
    """Return what is kept: that there was an error, that Java made a text of an object, or type and value."""
    if told[0] == "!":
        return ["!"]
    return ["java"] if name.startswith(("string/", "struct")) and _JAVAS.search(told[1]) else told


def main() -> int:
    """Record the Spark at hand; return how many trials are missing."""
    environment()
    left_out = {name for name in NAMES if OLD and name.startswith(("put/", "appendList/"))}
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
