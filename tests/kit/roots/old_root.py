"""A root that an earlier version wrote, unpacked so that a query can continue on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.driver import Driver, DriverPorts
from riffle_spark.protocol.operator import Operator, operator_of, with_watermark
from riffle_spark.protocol.ports import IncomingBatch
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.testing import InlineBackground, ManualClock, SimCluster, SimSink, SimWork, home_of
from riffle_spark.testing.committed_state import CommittedState
from tests.kit.folders import DATA
from tests.kit.roots.diary_query import ROWS, START_MS, STORES, Oracle, State, operators, table
from tests.kit.roots.folder_query import unpack_root

__all__ = ["ARCHIVES", "OldRoot"]

ARCHIVES = sorted(path.parent for path in (DATA / "roots").glob("*/root.tar.gz"))
_LATER_MS = START_MS + 10**10


def built() -> list[Operator]:
    """Return the operators of the query as a driver gets them."""
    return [with_watermark(operator_of(o.store, o.key, o.compute, o.order_by, ROWS), o.watermark) for o in operators()]


def committed_state(objects: ObjectStore, root: str, folder: Path) -> State:
    """Return the committed state. Temporary copies are stored below ``folder``."""
    totals, tails, diary = (CommittedState(operator, objects, root, folder) for operator in built())
    sums, values = diary.variable("sums"), diary.variable("values")
    counts, timers = diary.variable("counts"), diary.dues()
    return {
        "totals": {str(key): [row["rows"], row["total"]] for (key,), row in totals.columns().items()},
        "tails": {str(key): row["last"] for (key,), row in tails.columns().items()},
        "diary": {
            str(key[0]): {
                "rows": sums_of_key[0], "total": sums_of_key[1], "fired": sums_of_key[2],  # type: ignore[index]
                "values": [v for (v,) in values.get(key, [])],  # type: ignore[attr-defined]
                "counts": {str(v): n for (v,), (n,) in counts.get(key, {}).items()},  # type: ignore[attr-defined]
                "timer": timers.get(key, [None])[0],
            }
            for key, sums_of_key in sums.items()
        },
    }  # fmt: skip


class OldRoot:
    """An archive of an old version, unpacked below ``folder`` with its local copies and its checkpoint."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.folder = folder
        self.expected: dict[str, Any] = json.loads((archive / "expected.json").read_text())
        unpack_root(archive / "root.tar.gz", folder, copies=True)
        self.root = f"file://{folder}/state"
        self.checkpoint = str(folder / "checkpoint")
        self.objects = open_store(self.root)
        self.next_file: int = self.expected["files"]
        (self.local,) = (folder / "local").iterdir()
        for log in (folder / "checkpoint" / "sources" / "0").glob("[0-9]*"):
            log.write_text(log.read_text().replace(self.expected["made_in"], str(folder)))
            (log.parent / f".{log.name}.crc").unlink(missing_ok=True)

    def tail(self) -> Record:
        """Return the newest record."""
        tail = Log(self.objects, self.root).open()
        assert tail is not None
        return tail

    def committed_state(self) -> State:
        """Return the committed state."""
        return committed_state(self.objects, self.root, self.folder / "read")

    def oracle(self, version: int) -> Oracle:
        """Return the oracle in the state after a batch of the old version."""
        expected = json.loads(json.dumps(self.expected["states"][str(version)]))
        return Oracle(expected["state"], expected["watermark_ms"])

    def start(self, **settings: object) -> None:
        """Start a driver of this version on the root, with one executor that finds the local copies if they exist."""
        usual = {"root": self.root, "key_groups": 8, "snapshot_chain_links": 4}
        home = home_of(self.root, self.folder / "local", "later")
        cluster = SimCluster(home, self.objects)
        cluster.add("1")
        self._cluster, self._sinks = cluster, {store: SimSink() for store in STORES}
        ports = DriverPorts(
            self.objects, cluster, ManualClock(_LATER_MS), InlineBackground(), new_id=lambda: uuid4().hex
        )
        self.driver = Driver(Settings(**{**usual, **settings}), home, ports)  # type: ignore[arg-type]
        self._operators = built()

    def batch(self, oracle: Oracle) -> BatchReport:
        """Run the next file as a batch on the query and on the oracle."""
        tail, numbers = self.tail(), [self.next_file]
        self.next_file += 1
        oracle.feed(numbers)
        incoming = IncomingBatch(
            version=tail.version + 1, query_id=tail.query_id, run_id=str(id(self.driver)),
            offsets=f"offsets of file {numbers}", input_digest=None, time_ms=_LATER_MS, watermark_ms=None,
        )  # fmt: skip
        return self.driver.process(
            incoming, self._operators, SimWork(self._cluster, table(numbers), self._operators, self._sinks)
        )
