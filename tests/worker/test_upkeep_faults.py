"""Pieces of upkeep that are cut short, or find damaged and missing bytes and full disks: told, and gone on from."""

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
from riffle_spark.state.log.manifest import Link, Snapshot
from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.state.restore import follow as follow_module
from riffle_spark.state.restore import prefetch as budget_module
from riffle_spark.state.restore import reader as reader_module
from riffle_spark.state.restore import stack_follower, stack_parts
from riffle_spark.testing import home_of
from riffle_spark.worker.member_folders import use_store
from riffle_spark.worker.upkeep_piece import run_upkeep
from tests.kit.state.drawn_records import attempt
from tests.kit.state.faulty_store import Fault, FaultyStore
from tests.kit.worker.upkeep_member import STORE, Upkept

SPAWN = multiprocessing.get_context("spawn")
RANGE = 2_000


@pytest.fixture
def upkept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upkept:
    """A member without copies. Key-group 1 has a snapshot of many ranges and a chain, 2 and 3 have a chain alone."""
    monkeypatch.setattr(reader_module, "RANGE_BYTES", RANGE)
    monkeypatch.setattr(follow_module, "_CREATED_BYTES", RANGE)  # private: as below
    monkeypatch.setattr(budget_module, "_GRANT_BYTES_MIN", RANGE)  # private: small state
    upkept = Upkept(tmp_path)
    fill(upkept)
    return upkept


def fill(upkept: Upkept) -> None:
    """Commit what the fixture says."""
    upkept.place.seal(0, {1: {f"{n * n:x}": n * 2_654_435_761 % 2**62 for n in range(3_000)}})
    upkept.place.snapshot(1)
    for version in (1, 2):
        upkept.place.seal(version, {kg: {f"k{version}": version} for kg in (1, 2, 3)})


def snapshot(upkept: Upkept) -> Snapshot:
    """Return the snapshot of key-group 1."""
    taken = upkept.place.entries[1].snapshot
    assert taken is not None
    assert taken.length > 10 * RANGE
    return taken


def progress(receipt: UpkeepReceipt, key_group: int = 1) -> tuple[int, int]:
    """Return bytes fetched and to fetch of an unfinished key-group."""
    return next((fetched, total) for _, kg, fetched, total in receipt.unfinished if kg == key_group)


def test_a_large_snapshot_is_got_over_several_pieces(upkept: Upkept) -> None:
    """Each fetches its bytes, no more than a range beyond, and no byte twice."""
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


def test_no_bytes_are_fetched_where_none_are_allowed(upkept: Upkept) -> None:
    """Whatever else there is to do is done; all that is to be fetched is told."""
    receipt = upkept.run(fetch_bytes=0)
    assert (receipt.requests, receipt.snapshot_bytes, receipt.delta_bytes) == ({}, 0, 0)
    entries = upkept.place.entries
    assert progress(receipt) == (0, snapshot(upkept).length + entries[1].chain_bytes)
    assert progress(receipt, 2) == (0, entries[2].chain_bytes)


def test_another_executor_goes_on_with_what_one_has_fetched(upkept: Upkept) -> None:
    """Half-fetched snapshots stay with the folder, and the folder's next owner uses them."""
    first = upkept.run(follows=upkept.follows({1: upkept.place.entries[1]}), fetch_bytes=5 * RANGE)
    before = upkept.folder().path
    second = upkept.run("2")
    assert upkept.folder("2").path == before
    assert second.snapshot_bytes == snapshot(upkept).length - first.snapshot_bytes
    assert upkept.held(1, "2") == upkept.place.wanted[1]


def test_what_came_of_an_older_snapshot_goes(upkept: Upkept) -> None:
    """A newer one was taken meanwhile; so does what came for a copy that is dropped, or that is there by now."""
    entry = upkept.place.entries[1]
    upkept.run(follows=upkept.follows({1: entry}), fetch_bytes=5 * RANGE)
    assert [path.name for path in upkept.incoming()] == [f"0001.{snapshot(upkept).id}"]
    upkept.place.snapshot(1)
    upkept.run(follows=upkept.follows({1: upkept.place.entries[1]}), fetch_bytes=5 * RANGE)
    assert [path.name for path in upkept.incoming()] == [f"0001.{snapshot(upkept).id}"]
    upkept.run(follows=(), drops=(upkept.drop(1),))
    assert upkept.incoming() == []
    assert upkept.is_warm(upkept.run())


def test_bytes_that_changed_on_the_disk_are_not_believed(upkept: Upkept) -> None:
    """What is whole and has another checksum goes, and no object is blamed; the piece after gets it anew."""
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
def test_a_snapshot_that_is_altered_in_the_store_is_named(upkept: Upkept, fetch_bytes: int | None) -> None:
    """Also where it came over several pieces: what came before is compared with what comes now."""
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


def test_a_disk_that_loses_what_it_was_just_given_is_told_as_one_that_refuses(
    upkept: Upkept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all of a snapshot came in one piece, and the end of its file is gone: no object is blamed."""
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
def test_a_range_that_fails_is_got_again(upkept: Upkept, kind: str) -> None:
    """The copy's own trouble: the others follow; what came before the trouble is kept, unless it cannot be told."""
    upkept.store.script(Fault(kind, "get", name=f"{STORE}/", skip=4))  # type: ignore[arg-type]
    receipt = upkept.troubled()
    assert len(receipt.errors) == 1
    assert receipt.errors[0].startswith("totals, key-group 1: ")
    assert {copy[1] for copy in receipt.copies} == {2, 3}
    assert (STORE, 1) in receipt.missing
    assert [kg for _, kg, _, _ in receipt.unfinished] == [1]
    kept = progress(receipt)[0]
    assert kept == (snapshot(upkept).length if kind == "flipped" else 4 * RANGE)
    again = upkept.run()
    assert upkept.is_warm(again)
    assert again.snapshot_bytes == snapshot(upkept).length - (0 if kind == "flipped" else kept)


@pytest.mark.parametrize("kind", ["truncated", "missing"])
def test_a_delta_that_fails_holds_its_copies_up_and_no_others(upkept: Upkept, kind: str) -> None:
    """They stay where they are; the next piece goes on."""
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


def test_a_disk_that_loses_a_delta_it_just_took_holds_its_copies_up_and_no_others(
    upkept: Upkept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The piece goes on, and what has followed is told."""
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


def test_one_damaged_part_fails_its_own_key_group(upkept: Upkept) -> None:
    """The other parts came with the same get and are whole."""
    upkept.run()
    upkept.place.seal(3, {kg: {"k": 3} for kg in (1, 2, 3)})
    upkept.store.script(Fault("flipped", "get", name=paths.delta_name(3, "")[:-1], times=2))
    receipt = upkept.troubled()
    assert [kg for _, kg, _, _ in receipt.unfinished] == [2]
    assert len(receipt.errors) == 1
    assert upkept.is_warm(upkept.run())


def test_no_copy_is_begun_on_a_disk_that_is_too_full(upkept: Upkept) -> None:
    """Said once, with what to do; copies that are there go on following."""
    upkept.run(follows=upkept.follows({2: upkept.place.entries[2]}))
    upkept.place.seal(3, {2: {"k": 3}})
    receipt = upkept.troubled(disk_limit=0.0)
    assert len(receipt.errors) == 1
    assert "local_disk_limit" in receipt.errors[0]
    assert receipt.copies == ((STORE, 2, *upkept.place.entries[2].head),)
    assert [kg for _, kg, _, _ in receipt.unfinished] == [1, 3]
    assert receipt.snapshot_bytes == 0
    assert upkept.is_warm(upkept.run())


def committed(folder: Path) -> tuple[Upkept, UpkeepOrder]:
    """Commit what the fixture says to a directory, which other processes see; return the order to follow it."""
    upkept = Upkept(folder)
    upkept.store.inner = store = DirectoryStore(folder / "root")
    fill(upkept)
    home = upkept.home = home_of((folder / "root").as_uri(), folder / "executors")
    use_store(home, store)
    return upkept, upkept.order()


def begun_bytes(folder: Path) -> int:
    """Return how many bytes of snapshots are there that are not whole yet."""
    return sum(path.stat().st_size for path in folder.glob("**/incoming/*/*"))


def died(order: UpkeepOrder, root: Path, gets: int) -> None:
    """Do a piece in a process that is gone, without a word, in its so many-th get of a snapshot."""
    reader_module.RANGE_BYTES = RANGE
    follow_module._CREATED_BYTES = RANGE  # private: small state
    budget_module.run_ahead.__defaults__ = (1 << 20, 1)  # one after the other

    def die(_: float) -> None:
        give_up = time.monotonic() + 60
        while begun_bytes(root.parent) < gets * RANGE and time.monotonic() < give_up:
            time.sleep(0.01)  # what came before is written by another thread
        os._exit(9)

    store = FaultyStore(DirectoryStore(root), [Fault("slow", "get", f"{STORE}/", skip=gets)], die)
    use_store(order.home, store)
    run_upkeep(order, "1")


def in_another_process(work: Callable[..., None], *given: object) -> int | None:
    """Do it; return how the process ended."""
    process = SPAWN.Process(target=work, args=given)
    process.start()
    process.join(60)
    return process.exitcode


def test_a_process_goes_on_where_a_dead_one_stopped(tmp_path: Path) -> None:
    """What it had fetched is used; what it left half done harms nothing."""
    upkept, order = committed(tmp_path)
    assert in_another_process(died, order, tmp_path / "root", 7) == 9
    begun = [path.stat().st_size for path in upkept.incoming()]
    assert begun == [7 * RANGE]
    receipt = run_upkeep(order, "1")
    assert receipt.errors == ()
    assert receipt.snapshot_bytes == snapshot(upkept).length - begun[0]
    assert upkept.is_warm(receipt)


def test_a_reboot_costs_a_look_and_no_restore(upkept: Upkept) -> None:
    """Files have checksums, so what survived is used by processes that have seen nothing of it."""
    upkept.run()
    journal_file._states.clear()  # private: as processes that begin
    part_files._files.clear()  # private: as above
    receipt = upkept.run()
    assert (upkept.is_warm(receipt), receipt.restores, receipt.snapshot_bytes) == (True, 0, 0)


def test_a_snapshot_that_is_missing_is_named(upkept: Upkept) -> None:
    """Deleted by retention while an old order was on its way: the newer entry gets the newer one."""
    entry = upkept.place.entries[1]
    upkept.store.delete([paths.snapshot_name(STORE, 1, snapshot(upkept).id)])
    receipt = upkept.troubled(follows=upkept.follows({1: entry}))
    assert "missing" in receipt.errors[0]
    assert snapshot(upkept).id in receipt.errors[0]
    upkept.place.snapshot(1)
    assert upkept.is_warm(upkept.run())


def test_a_snapshot_that_cannot_be_opened_leaves_no_file(upkept: Upkept) -> None:
    """Its bytes are as they were sealed, in a format that nobody knows: each try would leave as many."""
    taken, data = snapshot(upkept), b"of a version to come" * 100
    unknown = taken._replace(id=paths.snapshot_id(0, attempt(98)), length=len(data), checksum=part_codec.checksum(data))
    upkept.store.put_if_absent(paths.snapshot_name(STORE, 1, unknown.id), data)
    entry = replace(upkept.place.entries[1], snapshot=unknown)
    receipt = upkept.troubled(follows=upkept.follows({1: entry}))
    assert receipt.failed == ((STORE, 1),)
    assert receipt.restores == 0
    assert upkept.strays() == []


def test_a_copy_that_is_given_up_while_it_follows_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not told as if it had come along: nobody would restore it, and a warm-up would take over cold."""
    monkeypatch.setattr(stack_parts, "_PARTS_MAX", 1)  # private: each link is merged at once
    upkept = Upkept(tmp_path)
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


def stacked(upkept: Upkept, key_group: int) -> Stack:
    """Return a copy's stack."""
    found = upkept.folder().stacks(STORE).read(key_group)
    assert found is not None
    return found
