"""Write the root that lies beside this file: `python tests/data/roots/0.1-format1/make.py` from the checkout.

It was run with riffle-spark 0.1.0 as of commit e0ed011, log records of format 1, on PySpark 4.0.5. It stands here to
tell how the root came about; it is not to be run again: a root of a later version belongs into a folder of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[4]
os.environ["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests/spark")])
os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests/spark")]

from pyspark.sql import SparkSession  # noqa: E402
from streaming import Feed, records, rest  # noqa: E402

import riffle_spark  # noqa: E402
from riffle_spark import Settings, together  # noqa: E402
from riffle_spark.state import fold  # noqa: E402
from riffle_spark.state.folder import Folder  # noqa: E402
from riffle_spark.state.log import Log  # noqa: E402
from riffle_spark.state.parts import Reader  # noqa: E402
from riffle_spark.state.root import open_store  # noqa: E402
from tests.roots.diary import DDL, Oracle, as_json, operators  # noqa: E402
from tests.roots.held import built, held  # noqa: E402

HERE = Path(__file__).parent
FOLDER = Path("/tmp/riffle-0.1-format1")
ROOT = f"file://{FOLDER}/state"
ROLLED_BACK_TO = 14
RUNS = ([[n] for n in range(18)], [[15, 16, 17], [18], [19], [20]], [[21], [22], [23], [24]])
"""The files of each batch, run by run; after the first run is a rollback, and Spark takes what follows at once."""


def run(spark: SparkSession, feed: Feed, batches: list[list[int]]) -> None:
    """Run the query over the files that are new, one batch each, as a driver of its own."""
    settings = Settings(root=ROOT, local_dir=f"{FOLDER}/local", key_groups=8, snapshot_chain_links=4)
    job = together(*(operator.into(lambda frame, _: frame.collect()) for operator in operators()), settings=settings)
    known, query = len(list(feed.folder.iterdir())), None
    for numbers in batches:
        for number in [n for n in numbers if n >= known]:
            feed.add(as_json(number))
        if query is None:
            writer = feed.stream(spark).writeStream.foreachBatch(job)
            query = writer.option("checkpointLocation", f"{FOLDER}/checkpoint").start()
        query.processAllAvailable()
        rest(job)
    query.stop()
    job._running.stop()


def leave_base_files(key_groups: int) -> None:
    """Restore some copies anew as if their snapshots were large: each keeps a snapshot as a file beside it."""
    fold._BASE_BYTES, fold._SETTLED_BYTES = 1, 0
    (owner,) = (FOLDER / "local").glob("*/*/owner")
    folder, objects = Folder(owner.parent, owner.read_text()), open_store(ROOT)
    log = Log(objects, ROOT)
    log.open()
    for operator in built()[:2]:
        store, entries = operator.store, log.manifest.entries
        mine = {kg: e for (name, kg), e in sorted(entries.items()) if name == store and e.snapshot and e.chain}
        chosen = dict(list(mine.items())[:key_groups])
        for key_group in chosen:
            folder.drop(store, key_group)
        copies, _ = fold.Keeper(folder, operator.schema, Reader(objects, None), epoch=99).bring(chosen)
        for copy in copies.values():
            copy.close()
    assert len(list(owner.parent.glob("copies/*/*/base.arrow"))) >= key_groups


def expected() -> dict[str, object]:
    """Return what the root holds at batches that a test goes back to, by the oracle, and check that it does."""
    batches = [*RUNS[0][: ROLLED_BACK_TO + 1], *RUNS[1], *RUNS[2]]
    oracle, states = Oracle(), {}
    for version, numbers in enumerate(batches):
        oracle.feed(numbers)
        if version in (11, 18, 20, len(batches) - 1):
            states[version] = json.loads(json.dumps({"state": oracle.state, "watermark_ms": oracle.watermark_ms}))
    given_up = Oracle()
    for numbers in RUNS[0]:
        given_up.feed(numbers)
    found = held(open_store(ROOT), ROOT, FOLDER / "read")
    for store in found:
        assert found[store] == oracle.state[store], (store, found[store], oracle.state[store])
    told = {"batches": batches, "states": states, "given_up": {"version": 17, "state": given_up.state}}
    return {**told, "made_in": str(FOLDER), "files": batches[-1][-1] + 1}


def main() -> None:
    """Write the archive and what it holds."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.log.level", "ERROR")
    spark = riffle_spark.configure(builder.config("spark.sql.shuffle.partitions", "2"), kafka=False).getOrCreate()
    feed = Feed(FOLDER / "in", DDL)
    run(spark, feed, RUNS[0])
    riffle_spark.rollback(ROOT, ROLLED_BACK_TO, f"{FOLDER}/checkpoint", execute=True)
    run(spark, feed, RUNS[1])
    run(spark, feed, RUNS[2])
    spark.stop()
    leave_base_files(2)
    for record in records(ROOT):
        print(record.sequence, record.kind, record.version, "full" if record.full == record.sequence else "")
    told = expected()
    shutil.rmtree(FOLDER / "read")
    (HERE / "expected.json").write_text(json.dumps(told, indent=None, separators=(",", ":")) + "\n")
    with tarfile.open(HERE / "root.tar.gz", "w:gz") as archive:
        for part in ("state", "checkpoint", "local", "in"):
            archive.add(FOLDER / part, part)


if __name__ == "__main__":
    main()
