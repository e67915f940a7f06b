"""Record checkpoints of Spark's own queries on an earlier Spark, for tests that move them to riffle.

Other tests move checkpoints of the installed Spark. Those of an earlier Spark are stored in an archive for each shape
and state store. The archives have no input, because the source compares only the names of its files.

.venv-3.5.9/bin/python -m tests.kit.queries.record_checkpoints
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import tempfile
from pathlib import Path

import pyspark

from tests.kit.folders import DATA
from tests.kit.processors.record_cases import environment
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import ROCKSDB, Rows, play_native_part
from tests.kit.queries.query_shape import Shape
from tests.kit.queries.record_shapes import session

__all__ = ["MOVED", "STORES", "half_of", "unpack"]

FOLDER = DATA / "checkpoints"
MOVED = (
    "count_by_key",
    "sums",
    "dedup_by_time",
    "within_by_key",
    "tumbling_append",
    "session_meeting",
    "outer_full",
    "groups_until_quiet",
)
"""One shape for each kind of state that can be moved."""
STORES = {"hdfs": {}, "rocksdb": ROCKSDB}
_STEPS = "steps.json"
_FOLDER = re.compile(r"file:/+tmp/riffle-checkpoints-[^/]+/[^/]+/")


def half_of(shape: Shape) -> int:
    """Return the number of batches after which a shape moves."""
    return (len(shape.batches) + 1) // 2


def unpack(shape: Shape, store: str, version: str, folder: Path) -> list[tuple[Rows, str]]:
    """Unpack a recorded checkpoint into ``folder``, and return the steps that Spark ran before it was recorded."""
    with tarfile.open(_path(shape, store, version)) as archive:
        archive.extractall(folder, filter="data")
    for path in (folder / "checkpoint/sources").rglob("*"):
        if path.is_file():  # The paths of the input files become paths in this folder.
            path.write_text(_FOLDER.sub(f"file://{folder}/", path.read_text()))
    return [(rows, watermark) for rows, watermark in json.loads((folder / _STEPS).read_text())]


def _path(shape: Shape, store: str, version: str) -> Path:
    return FOLDER / f"{shape.name}-{store}.{version}.tar.gz"


def main() -> int:
    """Record all checkpoints and return the number of failures."""
    environment()
    FOLDER.mkdir(parents=True, exist_ok=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="riffle-checkpoints-") as folder:
        spark = session()
        for name in MOVED:
            for store, conf in STORES.items():
                shape = SHAPES[name]
                place = Path(folder) / f"{name}-{store}"
                try:
                    steps = play_native_part(spark, shape, place, range(half_of(shape)), conf)
                except Exception as error:  # noqa: BLE001 - the others are recorded all the same
                    print(f"{name} {store}: {str(error)[-1500:]}", file=sys.stderr)
                    failed += 1
                    continue
                text = json.dumps(steps).encode()
                with tarfile.open(_path(shape, store, pyspark.__version__), "w:gz") as archive:
                    archive.add(place / "checkpoint", "checkpoint", filter=_without_crc)
                    entry = tarfile.TarInfo(_STEPS)
                    entry.size = len(text)
                    archive.addfile(entry, io.BytesIO(text))
                print(f"{name} {store}", file=sys.stderr)
        spark.stop()
    return failed


def _without_crc(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if entry.name.endswith(".crc") else entry


if __name__ == "__main__":
    sys.exit(main())
