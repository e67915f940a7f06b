"""Upkeep that is cut short, or finds damaged or missing objects or a full disk, reports it and continues in the next
round.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.messages.upkeep_orders import UpkeepOrder, UpkeepReceipt
from riffle_spark.state.copies import journal_file, part_files
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Link, Manifest, Snapshot
from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.state.restore import follow as follow_module
from riffle_spark.state.restore import prefetch as budget_module
from riffle_spark.state.restore import reader as reader_module
from riffle_spark.state.restore import stack_follower, stack_parts
from riffle_spark.testing import home_of
from riffle_spark.worker.member_folders import use_store
from riffle_spark.worker.upkeep_piece import run_upkeep
from tests.kit.state.drawn_records import PLAIN, attempt
from tests.kit.state.faulty_store import Fault, FaultyStore
from tests.kit.worker.upkeep_member import STORE, UpkeepMember

SPAWN = multiprocessing.get_context("spawn")
RANGE = 2_000


@pytest.fixture
def upkept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UpkeepMember:
    """Return a member without copies. Key-group 1 has a large snapshot and a chain, key-groups 2 and 3 have only
    chains.
    """
    monkeypatch.setattr(reader_module, "RANGE_BYTES", RANGE)
    monkeypatch.setattr(follow_module, "_CREATED_BYTES", RANGE)  # private: small state
    monkeypatch.setattr(budget_module, "_GRANT_BYTES_MIN", RANGE)  # private: as above
    upkept = UpkeepMember(tmp_path)
    fill(upkept)
    return upkept


def fill(upkept: UpkeepMember) -> None:
    """Commit the state of the fixture."""
    upkept.place.seal(0, {1: {f"{n * n:x}": n * 2_654_435_761 % 2**62 for n in range(3_000)}})
    upkept.place.snapshot(1)
    for version in (1, 2):
        upkept.place.seal(version, {kg: {f"k{version}": version} for kg in (1, 2, 3)})


def snapshot(upkept: UpkeepMember) -> Snapshot:
    """Return the snapshot of key-group 1."""
    taken = upkept.place.entries[1].snapshot
    assert taken is not None
    assert taken.length > 10 * RANGE
    return taken


def progress(receipt: UpkeepReceipt, key_group: int = 1) -> tuple[int, int]:
    """Return the fetched and the total bytes of an unfinished key-group."""
    return next((fetched, total) for _, kg, fetched, total in receipt.unfinished if kg == key_group)


def test_a_large_snapshot_is_fetched_in_several_pieces(upkept: UpkeepMember) -> None:
    """Each piece of upkeep fetches at most its bytes, and no byte is fetched twice."""
    size, fetched = snapshot(upkept).length, 0
    follows = upkept.follows({1: upkept.place.entries[1]})
    for _ in range(100):
        receipt = upkept.run(follows=follows, fetch_bytes=3 * RANGE)
        fetched += receipt.snapshot_bytes
        assert receipt.snapshot_bytes <= 3 * RANGE
        if not receipt.unfinished:
            break
        assert progress(receipt)[0] >= fetched
    assert fetched == size
    assert upkept.held(1) == upkept.place.wanted[1]
    assert upkept.incoming() == []


def test_fetch_bytes_of_zero_fetches_nothing(upkept: UpkeepMember) -> None:
    """With `fetch_bytes = 0` nothing is fetched, and the receipt has the bytes to fetch."""
    receipt = upkept.run(fetch_bytes=0)
    assert (receipt.requests, receipt.snapshot_bytes, receipt.delta_bytes) == ({}, 0, 0)
    entries = upkept.place.entries
    assert progress(receipt) == (0, snapshot(upkept).length + entries[1].chain_bytes)
    assert progress(receipt, 2) == (0, entries[2].chain_bytes)


def test_the_next_owner_continues_a_partly_fetched_snapshot(upkept: UpkeepMember) -> None:
    """The next owner of a folder continues a partly fetched snapshot."""
    first = upkept.run(follows=upkept.follows({1: upkept.place.entries[1]}), fetch_bytes=5 * RANGE)
    before = upkept.folder().path
    second = upkept.run("2")
    assert upkept.folder("2").path == before
    assert second.snapshot_bytes == snapshot(upkept).length - first.snapshot_bytes
    assert upkept.held(1, "2") == upkept.place.wanted[1]


def test_an_outdated_partly_fetched_snapshot_is_deleted(upkept: UpkeepMember) -> None:
    """A partly fetched snapshot is deleted when there is a newer one, when its copy is dropped, or when the copy
    exists.
    """
    entry = upkept.place.entries[1]
    upkept.run(follows=upkept.follows({1: entry}), fetch_bytes=5 * RANGE)
    assert [path.name for path in upkept.incoming()] == [f"0001.{snapshot(upkept).id}"]
    upkept.place.snapshot(1)
    upkept.run(follows=upkept.follows({1: upkept.place.entries[1]}), fetch_bytes=5 * RANGE)
    assert [path.name for path in upkept.incoming()] == [f"0001.{snapshot(upkept).id}"]
    upkept.run(follows=(), drops=(upkept.drop(1),))
    assert upkept.incoming() == []
    assert upkept.is_warm(upkept.run())


def test_a_snapshot_that_changed_on_disk_is_fetched_again(upkept: UpkeepMember) -> None:
    """A fetched snapshot that changed on disk is deleted and fetched again. The error does not name the object."""
    follows = upkept.follows({1: upkept.place.entries[1]})
    upkept.run(follows=follows, fetch_bytes=5 * RANGE)
    part = upkept.incoming()[0]
    part.write_bytes(b"\0" * part.stat().st_size)
    receipt = upkept.troubled(follows=follows)
    assert "RIFFLE-0510" in receipt.errors[0]
    assert paths.snapshot_name(STORE, 1, snapshot(upkept).id) not in receipt.errors[0]
    assert (upkept.incoming(), upkept.held(1), upkept.strays()) == ([], None, [])
    assert upkept.is_warm(upkept.run())


@pytest.mark.parametrize("fetch_bytes", [None, 5 * RANGE])
def test_the_error_names_a_snapshot_that_is_altered_in_the_store(upkept: UpkeepMember, fetch_bytes: int | None) -> None:
    """The error names a snapshot that is altered in the store, also if it was fetched in several pieces."""
    name = paths.snapshot_name(STORE, 1, snapshot(upkept).id)
    data = upkept.store.inner.get(name) or b""
    upkept.store.inner.delete([name])
    upkept.store.inner.put_if_absent(name, data[:RANGE] + bytes([data[RANGE] ^ 1]) + data[RANGE + 1 :])
    follows = upkept.follows({1: upkept.place.entries[1]})
    for _ in range(100):
        receipt = run_upkeep(upkept.order(follows=follows, fetch_bytes=fetch_bytes), "1")
        if receipt.errors:
            break
    assert "truncated or altered" in receipt.errors[0]
    assert name in receipt.errors[0]
    assert (upkept.incoming(), upkept.held(1), upkept.strays()) == ([], None, [])


def test_the_error_for_a_short_file_names_the_disk(upkept: UpkeepMember, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file is shorter than what was written, the error names the disk and not the object."""
    replace, left = Path.replace, [1]

    def replaced(path: Path, target: Path) -> Path:
        if path.parent.parent.name == "incoming" and left:
            os.truncate(path, path.stat().st_size - left.pop())
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replaced)
    receipt = upkept.troubled()
    assert len(receipt.errors) == 1
    assert "RIFFLE-0384" in receipt.errors[0]
    assert "`local_dir`" in receipt.errors[0]
    assert paths.snapshot_name(STORE, 1, snapshot(upkept).id) not in receipt.errors[0]
    assert (upkept.incoming(), upkept.held(1), upkept.strays()) == ([], None, [])
    assert upkept.is_warm(upkept.run())


@pytest.mark.parametrize("kind", ["flipped", "missing"])
def test_a_failed_fetch_is_repeated_and_keeps_the_fetched_bytes(upkept: UpkeepMember, kind: str) -> None:
    """A failed fetch of one copy does not stop the others. The bytes that were fetched before are kept, except for
    damaged ones.
    """
    upkept.store.script(Fault(kind, "get", name=f"{STORE}/", skip=4))  # type: ignore[arg-type]
    receipt = upkept.troubled()
    assert len(receipt.errors) == 1
    assert receipt.errors[0].startswith("totals, key-group 1: ")
    assert {copy[1] for copy in receipt.copies} == {2, 3}
    assert (STORE, 1) in receipt.missing
    assert [kg for _, kg, _, _ in receipt.unfinished] == [1]
    kept = progress(receipt)[0]
    assert kept == (snapshot(upkept).length if kind == "flipped" else 4 * RANGE)
    second_receipt = upkept.run()
    assert upkept.is_warm(second_receipt)
    assert second_receipt.snapshot_bytes == snapshot(upkept).length - (0 if kind == "flipped" else kept)


@pytest.mark.parametrize("kind", ["truncated", "missing"])
def test_a_failed_delta_stops_only_the_copies_that_need_it(upkept: UpkeepMember, kind: str) -> None:
    """A failed delta stops only the copies that need it. The next piece of upkeep continues them."""
    upkept.run()
    upkept.place.seal(3, {kg: {"k": 3} for kg in (1, 2)})
    upkept.place.seal(4, {kg: {"k": 4} for kg in (1, 3)})
    times = 2 if kind == "truncated" else 1  # damaged bytes are fetched twice
    upkept.store.script(Fault(kind, "get", name=paths.delta_name(3, "")[:-1], times=times))  # type: ignore[arg-type]
    receipt = upkept.troubled()
    behind = {kg for _, kg, _, _ in receipt.unfinished}
    assert behind == {1, 2} or (kind == "truncated" and behind == {2})
    assert len(receipt.errors) == len(behind)
    assert (STORE, 3, *upkept.place.entries[3].head) in receipt.copies
    assert len(receipt.copies) == 3
    assert upkept.is_warm(upkept.run())


def test_a_delta_lost_by_the_disk_stops_only_copies_that_need_it(
    upkept: UpkeepMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk loses a delta that was written, only the copies that need it stop."""
    upkept.run()
    upkept.place.seal(3, {kg: {"k": 3} for kg in (1, 2)})
    upkept.place.seal(4, {kg: {"k": 4} for kg in (1, 3)})
    keep, left = reader_module.write_parts, [1]

    def lost(folder: Folder, parts: Mapping[Link, memoryview]) -> dict[Link, StackedPart]:
        kept = keep(folder, parts)
        if left and next(iter(parts)).head.version == 3:
            file = folder.path / next(iter(kept.values())).file
            os.truncate(file, file.stat().st_size - left.pop())
        return kept

    monkeypatch.setattr(stack_follower, "write_parts", lost)
    receipt = upkept.troubled()
    assert {kg for _, kg, _, _ in receipt.unfinished} == {1, 2}
    assert all("RIFFLE-0384" in error for error in receipt.errors)
    assert len(receipt.errors) == 2
    assert (STORE, 3, *upkept.place.entries[3].head) in receipt.copies
    assert upkept.is_warm(upkept.run())


def test_a_damaged_part_stops_only_its_key_group(upkept: UpkeepMember) -> None:
    """A damaged part stops only its key-group, although one get fetches the parts of all."""
    upkept.run()
    upkept.place.seal(3, {kg: {"k": 3} for kg in (1, 2, 3)})
    upkept.store.script(Fault("flipped", "get", name=paths.delta_name(3, "")[:-1], times=2))
    receipt = upkept.troubled()
    assert [kg for _, kg, _, _ in receipt.unfinished] == [2]
    assert len(receipt.errors) == 1
    assert upkept.is_warm(upkept.run())


def test_no_copy_is_created_on_a_disk_above_its_limit(upkept: UpkeepMember) -> None:
    """On a disk above its limit no copy is created, with one error that names the remedy. Existing copies follow the
    log.
    """
    upkept.run(follows=upkept.follows({2: upkept.place.entries[2]}))
    upkept.place.seal(3, {2: {"k": 3}})
    receipt = upkept.troubled(disk_limit=0.0)
    assert len(receipt.errors) == 1
    assert "local_disk_limit" in receipt.errors[0]
    assert receipt.copies == ((STORE, 2, *upkept.place.entries[2].head),)
    assert [kg for _, kg, _, _ in receipt.unfinished] == [1, 3]
    assert receipt.snapshot_bytes == 0
    assert upkept.is_warm(upkept.run())


def committed(folder: Path) -> tuple[UpkeepMember, UpkeepOrder]:
    """Commit the state of the fixture to a directory that other processes can read. Return the order to follow it."""
    upkept = UpkeepMember(folder)
    upkept.store.inner = store = DirectoryStore(folder / "root")
    upkept.opened().append(PLAIN, Manifest())
    fill(upkept)
    home = upkept.home = home_of((folder / "root").as_uri(), folder / "executors")
    use_store(home, store)
    return upkept, upkept.order()


def begun_bytes(folder: Path) -> int:
    """Return the bytes of the partly fetched snapshots."""
    return sum(path.stat().st_size for path in folder.glob("**/incoming/*/*"))


def died(order: UpkeepOrder, root: Path, gets: int) -> None:
    """Run upkeep in a process that exits in the given get of a snapshot."""
    reader_module.RANGE_BYTES = RANGE
    follow_module._CREATED_BYTES = RANGE  # private: small state
    budget_module.run_ahead.__defaults__ = (1 << 20, 1)  # one request at a time

    def die(_: float) -> None:
        give_up = time.monotonic() + 60
        while begun_bytes(root.parent) < gets * RANGE and time.monotonic() < give_up:
            time.sleep(0.01)  # another thread writes the earlier bytes
        os._exit(9)

    store = FaultyStore(DirectoryStore(root), [Fault("slow", "get", f"{STORE}/", skip=gets)], die)
    use_store(order.home, store)
    run_upkeep(order, "1")


def in_another_process(work: Callable[..., None], *arguments: object) -> int | None:
    """Run a function in another process and return its exit code."""
    process = SPAWN.Process(target=work, args=arguments)
    process.start()
    process.join(60)
    return process.exitcode


def test_upkeep_continues_a_snapshot_of_an_ended_process(tmp_path: Path) -> None:
    """Upkeep continues a snapshot that an ended process fetched in part."""
    upkept, order = committed(tmp_path)
    assert in_another_process(died, order, tmp_path / "root", 7) == 9
    fetched_sizes = [path.stat().st_size for path in upkept.incoming()]
    assert fetched_sizes == [7 * RANGE]
    receipt = run_upkeep(order, "1")
    assert receipt.errors == ()
    assert receipt.snapshot_bytes == snapshot(upkept).length - fetched_sizes[0]
    assert upkept.is_warm(receipt)


def test_nothing_is_restored_after_a_reboot(upkept: UpkeepMember) -> None:
    """After a reboot, files with a correct checksum are used, and nothing is restored."""
    upkept.run()
    journal_file._states.clear()  # private: as in new processes
    part_files._files.clear()  # private: as above
    receipt = upkept.run()
    assert (upkept.is_warm(receipt), receipt.restores, receipt.snapshot_bytes) == (True, 0, 0)


def test_the_error_names_a_missing_snapshot(upkept: UpkeepMember) -> None:
    """The error names a missing snapshot. With a newer entry, upkeep fetches the newer snapshot."""
    entry = upkept.place.entries[1]
    upkept.store.delete([paths.snapshot_name(STORE, 1, snapshot(upkept).id)])
    receipt = upkept.troubled(follows=upkept.follows({1: entry}))
    assert "missing" in receipt.errors[0]
    assert snapshot(upkept).id in receipt.errors[0]
    upkept.place.snapshot(1)
    assert upkept.is_warm(upkept.run())


def test_a_snapshot_in_an_unknown_format_leaves_no_file(upkept: UpkeepMember) -> None:
    """A snapshot in an unknown format leaves no file, however often it is fetched."""
    listed_snapshot, data = snapshot(upkept), b"of a version to come" * 100
    unknown = listed_snapshot._replace(
        id=paths.snapshot_id(0, attempt(98)), length=len(data), checksum=part_codec.checksum(data)
    )
    upkept.store.put_if_absent(paths.snapshot_name(STORE, 1, unknown.id), data)
    entry = replace(upkept.place.entries[1], snapshot=unknown)
    receipt = upkept.troubled(follows=upkept.follows({1: entry}))
    assert receipt.failed == ((STORE, 1),)
    assert receipt.restores == 0
    assert upkept.strays() == []


def test_a_copy_dropped_while_it_follows_is_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is dropped while it follows the log is reported as missing, so that it is restored."""
    monkeypatch.setattr(stack_parts, "_PARTS_MAX", 1)  # private: merges each link at once
    upkept = UpkeepMember(tmp_path)
    upkept.place.seal(0, {1: {"a": 1}, 2: {"b": 1}})
    upkept.run()
    [part] = stacked(upkept, 1).parts
    file = upkept.folder().path / part.file
    data = bytearray(file.read_bytes())
    data[part.start + 40] ^= 1
    file.write_bytes(data)
    upkept.place.seal(1, {1: {"k": 5}})
    receipt = run_upkeep(upkept.order(), "1")
    assert ((STORE, 1) in receipt.missing, [copy[1] for copy in receipt.copies]) == (True, [2])
    assert {*upkept.folder().key_groups(STORE)} == {2}


def stacked(upkept: UpkeepMember, key_group: int) -> Stack:
    """Return the stack of a copy."""
    stack = upkept.folder().stacks(STORE).read(key_group)
    assert stack is not None
    return stack


def test_a_host_without_the_shared_folder_takes_no_snapshot(tmp_path: Path) -> None:
    """Upkeep puts no snapshot on a host that lacks the folder of the root, because no other host could read it."""
    upkept, order = committed(tmp_path)
    assert run_upkeep(order, "1").errors == ()
    (tmp_path / "root").rename(tmp_path / "unmounted")
    receipt = upkept.troubled(follows=(), snapshots=(upkept.snapshot(2),))
    assert "RIFFLE-1820" in receipt.errors[0]
    assert not (tmp_path / "root").exists()
