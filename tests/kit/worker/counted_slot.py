"""Count the cost of a slot: Python's calls and lines, and sealed bytes. No count depends on the machine."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import riffle_spark
from riffle_spark import transform_with_state
from riffle_spark.messages.slot_orders import RECEIPT, Order, Receipt
from riffle_spark.messages.upkeep_orders import SnapshotOrder, UpkeepOrder
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.process.blocks.block import Computation
from riffle_spark.process.merging.aggregates import aggregate, count, sum_
from riffle_spark.state.copies import part_files
from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.testing import routed
from riffle_spark.worker.member_folders import use_store
from riffle_spark.worker.slot import run_slot
from riffle_spark.worker.upkeep_piece import run_upkeep
from tests.kit.processors.visit_processors import Sums
from tests.kit.worker.slot_member import ROWS, Member

__all__ = ["FEW", "MANY", "MeasuredSlot", "OneSlot", "PythonWork", "count_python_work", "ending", "sums", "totals"]

OURS = str(Path(riffle_spark.__file__).parent)
FEW, MANY = 2_000, 20_000
"""Small and large numbers of rows per batch."""


class PythonWork(NamedTuple):
    """The counted work of Python.

    ``calls`` are calls of Python and built-in functions, ``lines`` executed lines. ``ours`` are the calls that the
    product's code made, which do not depend on libraries. ``file_operations`` are files opened, created, removed,
    renamed or locked, and folders listed.
    """

    calls: int
    lines: int
    ours: int
    file_operations: int

    def is_like(self, other: PythonWork) -> bool:
        """Return whether this is at most three percent more work than ``other``."""
        return self.calls <= 1.03 * other.calls and self.lines <= 1.03 * other.lines


_FILE_EVENTS = frozenset(
    {"open", "os.remove", "os.rename", "os.link", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "fcntl.flock"}
)
_file_operations: itertools.count[int] | None = None
_is_hooked = False


def _count_file_operation(event: str, _arguments: object) -> None:
    if _file_operations is not None and event in _FILE_EVENTS:
        next(_file_operations)


def count_python_work(work: Callable[[], object]) -> PythonWork:
    """Do some work and return what Python did for it, including threads that the work started."""
    calls, lines, ours = itertools.count(), itertools.count(), itertools.count()

    def on_line(_frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            next(lines)
        return on_line

    def on_call(frame: FrameType, event: str, _arg: object) -> None:
        if event in ("call", "c_call"):
            next(calls)
            caller = frame if event == "c_call" else frame.f_back
            if caller is not None and caller.f_code.co_filename.startswith(OURS):
                next(ours)

    global _file_operations, _is_hooked  # noqa: PLW0603 - a hook of audit events can be added, but never removed
    if not _is_hooked:
        sys.addaudithook(_count_file_operation)
        _is_hooked = True
    files = _file_operations = itertools.count()
    before = [(module, module.gettrace(), module.getprofile()) for module in (threading, sys)]
    for module, _, _ in before:
        module.settrace(on_line)
        module.setprofile(on_call)
    try:
        work()
    finally:
        for module, trace, profile in reversed(before):
            module.setprofile(profile)
            module.settrace(trace)
        _file_operations = None
    return PythonWork(next(calls), next(lines), next(ours), next(files))


@dataclass(frozen=True)
class MeasuredSlot:
    """A slot of a batch: its receipt, the work of Python until its answer, and the work after the answer."""

    receipt: Receipt
    slot: PythonWork
    tidied: PythonWork


class OneSlot:
    """A store whose key-groups are all served by one slot. Its objects and local copies are real files."""

    def __init__(self, folder: Path, compute: Computation, key_groups: int = 64) -> None:
        part_files._files.clear()  # private: a slot checks all open files of its process, even of other tests
        slots: Any = {0: tuple(range(key_groups))}
        self._member = Member(folder / "local", compute, total=key_groups, slots=slots)
        self._member.changes["time_mode"] = self._member.operator.declared.time_mode
        self._member.home = replace(self._member.home, live=frozenset({"app/1", "app/2"}))
        use_store(self._member.home, DirectoryStore(folder / "root"))

    def batch(self, rows: int, keys: int, executor: str = "1") -> MeasuredSlot:
        """Run and commit a batch of ``rows`` rows with ``keys`` keys, from the text of the order on, as an executor
        does.

        By the times of the rows, half of the keys expire in this batch.
        """
        member, answers, later = self._member, list[pa.Table](), list[Callable[[], None]]()
        order, numbers = member.order(), np.arange(rows)
        names, times = [f"{key:08d}" for key in numbers % keys], order.time_ms + numbers % keys - keys // 2
        table = routed(order, pa.table([names, numbers, times], schema=ROWS))[0]
        text, compute = order.to_json(), member.operator.compute

        def run() -> None:
            answers.append(run_slot(Order.from_json(text, 0), compute, 0, executor, table, later=later.append))

        slot = count_python_work(run)
        receipt = Receipt.from_json(answers[0].column(RECEIPT).drop_null()[0].as_py())
        assert (receipt.error, receipt.rows, receipt.keys) == (None, rows, keys)
        member.commit(receipt)
        return MeasuredSlot(receipt, slot, count_python_work(later[0]))

    def settled(self, rows: int, keys: int) -> MeasuredSlot:
        """Run three batches and return the result of the last, which does nothing for the first time."""
        return [self.batch(rows, keys) for _ in range(3)][-1]

    def snapshots(self) -> tuple[int, int]:
        """Take a snapshot of every key-group, and return the bytes and rows of all snapshots."""
        member = self._member
        due = tuple(SnapshotOrder("totals", kg, entry) for kg, entry in sorted(member.entries.items()))
        schemas = {"totals": member.operator.schema.to_text()}
        receipt = run_upkeep(UpkeepOrder(member.home, "", 1, 0, schemas, snapshots=due, seconds=1000.0), "1")
        assert (receipt.errors, len(receipt.snapshots)) == ((), len(due))
        snapshots = [snapshot for _, _, snapshot in receipt.snapshots]
        return sum(s.length for s in snapshots), sum(s.rows for s in snapshots)


def totals() -> Computation:
    """Return running totals with two numbers per key."""
    return aggregate(count=count(), total=sum_("v"))


def ending() -> Computation:
    """Return a function over columns, called once per key-group, whose keys expire."""

    def last_seen(rows: pa.Table, _state: pa.Table) -> tuple[pa.Table, pa.Table]:
        seen = rows.group_by("k").aggregate([("at", "max")]).rename_columns(["k", "until"])
        return seen, seen

    state = pa.schema([("until", pa.int64())])
    output = pa.schema([ROWS.field("k"), *state])
    return arrow_function(last_seen, state=state, output=output, due="until", time_mode="ProcessingTime")


def sums() -> Computation:
    """Return a processor over rows with one variable and one number per key."""
    return transform_with_state(Sums(), key="k", output="k string, total long").compute
