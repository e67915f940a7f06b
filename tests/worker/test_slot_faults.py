"""A slot heals a fault or returns it with place and remedy. It never seals wrong state."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from riffle_spark.keygroups import key_hashes
from riffle_spark.messages.slot_orders import HASH, KEY_GROUP, RECEIPT, SLOT, Receipt
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.process.merging.aggregates import aggregate, count, sum_
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.testing import home_of, routed
from riffle_spark.worker import whole_groups
from tests.kit.failing_disks import own_disk, unmount_below
from tests.kit.state.drawn_records import PLAIN
from tests.kit.state.faulty_store import Fault
from tests.kit.worker.slot_member import OUTPUT, ROWS, STATE, TOTAL, Member, rows_of

ROUTING = pa.schema([(SLOT, pa.int32()), (KEY_GROUP, pa.int32()), (HASH, pa.int64())])


def test_rows_of_a_foreign_key_group_fail_the_batch(member: Member) -> None:
    """A row in a key-group of another slot fails the batch. The remedy names a key that is not deterministic."""
    member.changes["slots"] = {0: tuple(range(TOTAL)), 1: ()}
    order = member.order()
    foreign = {**member.changes, "slots": {0: (), 1: tuple(range(TOTAL))}}
    member.changes = foreign
    rows = pa.table([[0], [3], [3], ["a"], [1]], schema=pa.schema([*ROUTING, *order.rows]))
    answer = member.run(member.order(), rows)
    kind, problem, remedy, where, _ = Receipt.from_json(answer["__riffle_receipt"].to_pylist()[-1]).error or ("",) * 5
    assert kind == "ConfigError"
    assert problem.startswith("Slot 0 received 1 rows")
    assert "deterministic" in remedy
    assert where == "totals"


@pytest.mark.parametrize("hashes", [[1, 17, 33], key_hashes([pa.array(["a", "b", "c"])]).view("int64").tolist()])
def test_a_key_that_hashes_differently_elsewhere_fails_the_batch(member: Member, hashes: list[int]) -> None:
    """A row whose hash or key-group differs between Spark and Python fails the batch."""
    order = member.order()
    rows = pa.table([[0] * 3, [1] * 3, hashes, ["a", "b", "c"], [1] * 3], schema=pa.schema([*ROUTING, *order.rows]))
    answer = member.run(order, rows)
    error = Receipt.from_json(answer["__riffle_receipt"].to_pylist()[-1]).error
    assert error is not None
    assert (error[0], error[-1]) == ("ConfigError", "RIFFLE-0482")


def test_the_error_of_a_function_has_its_traceback_and_key_group(tmp_path: Path) -> None:
    """The receipt has the traceback, the key-group and the store. Nothing is sealed."""

    def explode(rows: pa.Table, _state: pa.Table) -> tuple[pa.Table, pa.Table]:
        raise ValueError("negative amount")

    kind, problem, _, where, _ = Member(tmp_path, arrow_function(explode, state=STATE, output=OUTPUT)).refused(
        rows_of(("a", 1, 0))
    )
    assert kind == "UserFunctionError"
    assert "negative amount" in problem
    assert "Traceback" in problem
    assert where.startswith("store 'totals', key-group ")


@pytest.mark.parametrize(
    ("returned", "expected_problem"),
    [
        ((OUTPUT.empty_table(), pa.table({"k": ["b"], "last": [1]})), "'k': 'b'"),
        ((OUTPUT.empty_table(), pa.table({"k": ["a"], "last": ["text"]})), "declared columns"),
        ((OUTPUT.empty_table(), pa.table({"k": ["a", "a"], "last": [1, 2]})), "twice"),
        (None, "returned a NoneType"),
        (("x", "y"), "not a pyarrow.Table"),
    ],
)
def test_a_function_that_breaks_its_declaration_fails_the_batch(
    tmp_path: Path, returned: object, expected_problem: str
) -> None:
    """A returned table with unknown keys, repeated keys or another schema is refused before anything is sealed."""
    member = Member(tmp_path, arrow_function(lambda *_: returned, state=STATE, output=OUTPUT))
    kind, problem, remedy, *_ = member.refused(rows_of(("a", 1, 0)))
    assert kind == "UserFunctionError"
    assert expected_problem in problem
    assert remedy


def test_an_unavailable_store_ends_the_attempt(member: Member) -> None:
    """A failed put ends the attempt with UnavailableError. The next attempt starts from the same state."""
    member.feed(rows_of(("a", 1, 0)))
    member.store.script(Fault("unavailable", "put", "delta/"))
    assert member.refused(rows_of(("a", 1, 0)))[0] == "UnavailableError"
    assert member.feed(rows_of(("a", 1, 0)))[0]["total"] == 2


def test_a_put_of_an_existing_object_succeeds(member: Member) -> None:
    """A put of an existing object succeeds, because names of attempts are unique."""
    member.feed(rows_of(("a", 1, 0)))
    order = member.order()
    assert order.version == 1
    member.store.inner.put_if_absent(f"delta/{1:020d}/1-{1:032x}", b"")
    assert member.answer(rows_of(("a", 1, 0)))[1].error is None


def test_a_late_attempt_of_an_older_batch_ends_with_out_of_date(member: Member) -> None:
    """A late attempt of an older batch ends with OutOfDate."""
    member.feed(rows_of(("a", 1, 0)))
    old = member.entries
    member.feed(rows_of(("a", 1, 0)))
    member.feed(rows_of(("a", 1, 0)))
    member.entries, member.version = old, 1
    assert member.refused(rows_of(("a", 1, 0)))[0] == "OutOfDate"


@pytest.mark.parametrize("damage", [b"", b"\xff" * 20_000])
def test_a_slot_restores_a_damaged_copy_and_continues(member: Member, damage: bytes) -> None:
    """The slot restores a damaged copy and continues."""
    member.feed(rows_of(("a", 1, 0)))
    member.feed(rows_of(("a", 1, 0)))
    for file in Path(member.home.local_dir or "").glob("*/*/sealed/*"):
        file.write_bytes(damage)
    output, receipt = member.answer(rows_of(("a", 1, 0)))
    assert output.to_pylist()[0]["total"] == 3
    assert receipt.restores == 1


def test_a_merge_detects_a_file_damaged_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file is damaged between a slot's answer and its merge, the merge finds it, and rows stay correct."""
    monkeypatch.setattr(whole_groups, "_ROWS_MIN", 10**6)  # whole deltas leave nothing to merge
    member, keys = Member(tmp_path, aggregate(total=count())), [(f"k{n}", 1, 0) for n in range(4000)]
    waiting: list[Callable[[], None]] = []
    member.later = waiting.append
    for fed in range(1, 9):
        assert {row["total"] for row in member.feed(rows_of(*keys))} == {fed}
        folder = Path(member.home.local_dir or "")
        for file in [*folder.glob("*/*/*/*-*"), *folder.glob("*/*/stacks/*/*.part")]:
            data = bytearray(file.read_bytes())
            step = max(len(data) // 999, 1)
            data[::step] = bytes(byte ^ 1 for byte in data[::step])
            with file.open("r+b") as opened:  # in place, so that a mapping shows it
                opened.write(data)
        waiting.pop()()
    waiting.clear()
    member.later = lambda work: work()
    for fed in range(9, 15):
        assert {row["total"] for row in member.feed(rows_of(*keys))} == {fed}
    assert list(Path(member.home.local_dir or "").glob("*/*/fetched/*.block")), "something was merged"


def test_a_folder_that_cannot_be_created_is_an_error_with_a_remedy(member: Member, tmp_path: Path) -> None:
    """If its folder cannot be created, a slot returns a receipt with the place and the remedy."""
    (tmp_path / "file").write_text("x")
    member.home = member.home.__class__(
        member.home.root, member.home.options, str(tmp_path / "file"), "app", frozenset()
    )
    kind, _, remedy, where, _ = member.refused(rows_of(("a", 1, 0)))
    assert kind == "LocalDiskError"
    assert "local_dir" in remedy
    assert str(tmp_path) in where


@pytest.mark.parametrize("begun", [False, True])
def test_a_full_disk_is_a_local_disk_error(tmp_path: Path, begun: bool) -> None:
    """If the disk has no space for a new or growing copy, the slot returns LocalDiskError, and its process continues.
    The slot succeeds once there is space.
    """
    try:
        assert in_another_process(filled_up, tmp_path, begun) == 0
    finally:
        unmount_below(tmp_path)


def filled_up(folder: Path, begun: bool) -> None:
    """Run slots on a full disk, then with space on the disk."""
    member = Member(folder, aggregate(count=count(), total=sum_("v")))
    rows = rows_of(*((f"key-{n}", n, n) for n in range(4_000)))
    member.feed(rows.slice(0, 1))
    if begun:
        member.feed(rows.slice(0, 1))
    home = next(folder.glob("*/m*"))
    with own_disk(home) as disk:
        disk.fail()
        for _ in range(3):
            _, receipt = member.answer(rows)
            if receipt.error is not None:
                break
            member.commit(receipt)
        assert receipt.error is not None
        assert receipt.error[0] == "LocalDiskError", receipt.error
        assert "local_dir" in receipt.error[2]
        disk.recover()
        member.feed(rows)


def in_another_process(work: Callable[..., None], *arguments: object) -> int | None:
    """Run a function in another process and return its exit code."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join(60)
    return process.exitcode


@pytest.mark.long
def test_rows_beyond_the_memory_of_a_worker_are_a_config_error(tmp_path: Path) -> None:
    """If a worker gets no more memory, it returns a ConfigError that names the settings, and seals nothing."""
    context = multiprocessing.get_context("spawn")
    asking, answering = context.Pipe(duplex=False)
    process = context.Process(target=_refused_memory, args=(tmp_path, answering))
    process.start()
    answering.close()
    kind, problem, remedy = asking.recv()
    process.join(60)
    assert (process.exitcode, kind) == (0, "ConfigError")
    assert "do not fit into its Python worker" in problem
    assert "maxOffsetsPerTrigger" in remedy
    assert "spark.executor.pyspark.memory" in remedy


def _refused_memory(folder: Path, answering: Connection) -> None:
    """Run a slot with many rows in a process that can allocate little memory."""
    member = Member(folder, aggregate(rows=count(), total=sum_("v")))
    member.feed(rows_of(("a", 1, 1)))
    count_of_rows = 2_000_000
    keys = pa.array(np.arange(count_of_rows)).cast(pa.string())
    numbers = pa.array(np.ones(count_of_rows, np.int64))
    rows = routed(member.order(), pa.table([keys, numbers, numbers], schema=ROWS))[0]
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + (32 << 20), resource.RLIM_INFINITY))
    table = member.run(member.order(), rows)
    receipt = Receipt.from_json(table.column(RECEIPT).drop_null().to_pylist()[0])
    assert receipt.error is not None
    answering.send(receipt.error[:3])


def test_a_host_without_the_shared_folder_seals_nothing(member: Member, tmp_path: Path) -> None:
    """An executor whose host lacks the folder of the root, such as a missing mount, fails the batch.

    It does not create the folder, because its changes would be in a place that other hosts cannot read.
    """
    shared = tmp_path / "shared"
    member.home = home_of(f"file://{shared}/state", tmp_path / "local")
    log = Log(DirectoryStore(shared / "state"), member.home.root)
    log.open()
    log.append(PLAIN, Manifest())
    assert member.feed(rows_of(("a", 1, 0))) == [{"k": "a", "count": 1, "total": 1}]
    shared.rename(tmp_path / "unmounted")
    kind, problem, remedy, _, error_id = member.refused(rows_of(("a", 2, 0)))
    assert (kind, error_id) == ("UnavailableError", "RIFFLE-1820")
    assert "has no log on this host" in problem
    assert "Mount" in remedy
    assert not shared.exists()
    (tmp_path / "unmounted").rename(shared)
    assert member.feed(rows_of(("a", 2, 0))) == [{"k": "a", "count": 2, "total": 3}]
