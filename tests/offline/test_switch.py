"""A switch of dispatch keeps all state, also if it is interrupted."""

from __future__ import annotations

import errno
import os
import random
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark import keygroups
from riffle_spark.errors import ConfigError, FencedError, UnavailableError
from riffle_spark.offline import reshard, switch
from riffle_spark.offline.recovery import adopt
from riffle_spark.offline.switch import switch_dispatch, switch_keys
from riffle_spark.protocol.upkeep.claim_work import run_to_end
from riffle_spark.protocol.upkeep.scan import scan
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.store import ObjectStore
from tests.kit.folders import CHECKOUT
from tests.kit.root_commands import run_command
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.simulated.switched_state import (
    BATCHES,
    PARTITIONS,
    contents,
    expected,
    partition_of,
    shards_of,
    tail_of,
)
from tests.kit.simulated.world import Oracle, World, drawn_batch, one_row
from tests.kit.state.faulty_store import Fault, FaultyStore

pytestmark = pytest.mark.usefixtures("short_cycles")


@pytest.fixture
def world(filled_world: tuple[World, Oracle]) -> World:
    """Return the query whose state is switched."""
    return filled_world[0]


@pytest.fixture
def root(world: World) -> str:
    """Return the root of that query."""
    return world.home.root


def test_state_read_from_objects_equals_a_python_model(world: World, oracle: Oracle, root: str) -> None:
    """State that is read from snapshots and chains equals that of a model in plain Python."""
    assert contents(root) == expected(oracle)
    entries = world.log().manifest.entries.values()
    assert any(entry.snapshot and entry.chain for entry in entries)
    assert len(oracle.tails) < len(oracle.totals)


def test_a_switch_to_partitions_and_back_keeps_all_state(world: World, oracle: Oracle, root: str) -> None:
    """A switch from key-groups to partitions and back keeps every key's state and places it correctly."""
    before = tail_of(root)
    there = switch_dispatch(root, "partition", partition_of=partition_of, execute=True)
    tail = tail_of(root)
    assert (tail.epoch, tail.owners, tail.standbys) == (before.epoch + 1, {}, {})
    assert (tail.kind, tail.dispatch, tail.total, tail.version) == ("dispatch", "partition", 16, BATCHES - 1)
    assert set(tail.shards) <= {(f"topic-{n % 2}", n // 2) for n in range(2 * PARTITIONS)}
    assert contents(root) == expected(oracle)
    for _, shard, rows in shards_of(root):
        partitions = partition_of(rows.select(["k"])).to_pydict()
        assert set(zip(partitions["topic"], partitions["partition"], strict=True)) == {tail.shards[shard]}
    back = switch_dispatch(root, "key_group", execute=True)
    assert contents(root) == expected(oracle)
    for _, group, rows in shards_of(root):
        assert set(keygroups.key_groups([rows["k"]], 16).tolist()) == {group}
    assert (tail_of(root).shards, tail_of(root).dispatch) == ((), "key_group")
    assert there.executed
    assert back.executed
    assert any("12 keys" in step for step in back.steps)


def test_a_switch_between_partition_and_hashed_writes_only_a_record(world: World, root: str) -> None:
    """A switch between partition and hashed dispatch writes only a record, because the shards are the same."""
    switch_dispatch(root, "partition", partition_of=partition_of, execute=True)
    objects, log = open_store(root), Log(open_store(root), root)
    before = set(objects.list(""))
    tail = log.open()
    switch_dispatch(root, "hashed", execute=True)
    assert tail is not None
    assert set(objects.list("")) - before == {paths.record_name(tail.sequence + 1)}
    after = Log(objects, root)
    assert after.open().shards == tail.shards  # type: ignore[union-attr]
    assert after.manifest == log.manifest


@pytest.mark.parametrize(("to", "key_groups"), [("key_group", 3), ("partition", 32)])
def test_a_switch_can_change_the_number_of_key_groups(
    world: World, oracle: Oracle, root: str, to: str, key_groups: int
) -> None:
    """A switch can change the number of key-groups or the maximum number of shards."""
    switch_dispatch(root, to, partition_of=partition_of, key_groups=key_groups, execute=True)
    assert tail_of(root).total == key_groups
    assert contents(root) == expected(oracle)


def test_state_larger_than_one_sorted_run_is_switched(
    world: World, oracle: Oracle, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State of more rows than one sorted run holds is switched with several runs."""
    monkeypatch.setattr(reshard, "_RUN_BYTES", 1)
    switch_dispatch(root, "partition", partition_of=partition_of, execute=True)
    switch_dispatch(root, "key_group", key_groups=2, execute=True)
    assert contents(root) == expected(oracle)


def test_a_switch_without_execute_writes_nothing_and_shows_a_plan(world: World, oracle: Oracle, root: str) -> None:
    """Without ``execute`` a switch writes nothing, and the plan names keys, shards and the setting to start with."""
    objects = open_store(root)
    before = objects.list("")
    plan = switch_dispatch(root, "partition", partition_of=partition_of)
    assert not plan.executed
    assert objects.list("") == before
    assert any(f"{len(oracle.totals)} keys" in step for step in plan.steps)
    assert "dispatch = partition" in plan.steps[-1]


def test_a_switch_registers_all_partitions_of_the_offsets(tmp_path: Path) -> None:
    """A switch registers all partitions of Spark's offsets in order, also those without keys."""
    world = World(tmp_path)
    offsets = 'v1\n{"batchWatermarkMs":0}\n{"events":{"2":9,"0":5,"1":7}}'
    world.batch(0, one_row(1), offsets=offsets)
    answer = pa.table({"topic": ["events"], "partition": [1]})
    switch_dispatch(world.home.root, "partition", partition_of=lambda _: answer, execute=True)
    assert tail_of(world.home.root).shards == (("events", 0), ("events", 1), ("events", 2))
    assert {shard for _, shard, _ in shards_of(world.home.root)} == {1}


def faulty(monkeypatch: pytest.MonkeyPatch, objects: ObjectStore, fault: Fault) -> None:
    """Let the switch use a store with a fault."""
    store = FaultyStore(objects, sleep=lambda _: None)
    store.script(fault)
    monkeypatch.setattr(switch, "open_store", lambda *_: store)


def test_objects_of_a_failed_switch_are_deleted_by_the_next_driver(
    world: World, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switch that fails before its record keeps the state, and the next driver's scan deletes its objects."""
    before = set(world.memory.list(""))
    with monkeypatch.context() as patch:
        faulty(patch, world.memory, Fault("unavailable", "put", "log/", times=99))
        with pytest.raises(UnavailableError):
            switch_dispatch(world.home.root, "partition", partition_of=partition_of, execute=True)
    left = set(world.memory.list("")) - before
    assert len(left) > 2
    assert all("/snapshot/" in name for name in left)
    assert contents(world.home.root) == expected(oracle)
    world.start()
    world.batch(BATCHES, one_row(1))
    tail = world.log().tail
    assert tail is not None
    run_to_end(scan(world.memory, tail, 2, 0))
    assert not left & set(world.memory.list(""))
    oracle.feed(one_row(1))
    assert contents(world.home.root) == expected(oracle)


def test_temporary_files_of_a_killed_command_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command removes temporary files that a killed command left, because they contain unencrypted rows."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("riffle-dispatch-abc", "another"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "owner").touch()
        (tmp_path / name / "run-0.arrow").write_bytes(b"rows")
    with reshard.scratch_folder() as folder:
        (folder / "run-0.arrow").write_bytes(b"rows")
        assert {path.name for path in tmp_path.iterdir()} == {"another", folder.name}
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(os, "kill", nobody_there)
            with reshard.scratch_folder() as other:
                assert {path.name for path in tmp_path.iterdir()} == {"another", folder.name, other.name}
        assert (folder / "run-0.arrow").read_bytes() == b"rows"
    assert [path.name for path in tmp_path.iterdir()] == ["another"]


@pytest.mark.parametrize(("command", "limit"), [("dispatch", 0), ("keys", 200)])
def test_a_full_temporary_disk_is_refused_with_a_remedy(
    world: World, oracle: Oracle, tmp_path: Path, command: str, limit: int
) -> None:
    """A full temporary disk is refused with a remedy that does not name `local_dir`."""
    root, tail = world.home.root, tail_of(world.home.root)
    (tmp_path / "keys").write_text("plain\n")
    run = partial(switch_dispatch, root, "key_group", key_groups=5, execute=True)
    if command == "keys":
        run = partial(switch_keys, root, encryption_keys=f"file:{tmp_path}/keys", rewrite=True, execute=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(ConfigError, match="RIFFLE-0144"):
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert tail_of(root) == tail
    assert contents(root) == expected(oracle)


def test_an_error_of_another_file_does_not_blame_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of a file outside the temporary folder keeps its own text, and the temporary folder is removed."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with pytest.raises(OSError, match="/elsewhere"), reshard.scratch_folder() as folder:
        raise OSError(errno.ENOSPC, "No space left on device", f"{tmp_path}/elsewhere")
    assert not folder.exists()


def test_keys_are_not_counted_for_a_root_with_a_missing_object(world: World, root: str) -> None:
    """`riffle keys` names a missing object of the state instead of leaving out its key."""
    lost = sorted(world.log().manifest.object_names())[0]
    world.memory.delete([lost])
    shown = run_command("keys", root)
    assert (shown.exit_code, lost in shown.output) == (1, True), shown.output


def nobody_there(*_: object) -> None:
    """Raise ProcessLookupError, as the system does for an invisible process."""
    raise ProcessLookupError


@pytest.mark.parametrize("command", ["dispatch", "keys"])
@pytest.mark.sample(step=2)
def test_adopted_state_can_be_switched_before_its_first_batch(
    world: World, oracle: Oracle, tmp_path: Path, command: str
) -> None:
    """State that was adopted can be switched before its first batch, when it is at batch -1."""
    root, keys = world.home.root, tmp_path / "keys"
    written_checkpoint(tmp_path / "new", query_id="another")
    keys.write_text("plain\n")
    adopt(root, str(tmp_path / "new"), execute=True)
    before = {*world.memory.list("")}
    if command == "dispatch":
        switch_dispatch(root, "key_group", key_groups=5, execute=True)
        world.settings = replace(world.settings, key_groups=5)
    else:
        switch_keys(root, encryption_keys=f"file:{keys}", rewrite=True, execute=True)
    assert (tail_of(root).kind, tail_of(root).version) == ("dispatch", -1)
    assert contents(root) == expected(oracle)
    assert all(
        paths.parse_object_name(name) or paths.parse_record_name(name) for name in {*world.memory.list("")} - before
    )
    world.query_id = "another"
    world.start()
    for version in range(BATCHES):
        rows = drawn_batch(random.Random(version), version)
        oracle.feed(rows)
        assert world.batch(version, rows).decision == "run"
        world.background.run()
    assert contents(root) == expected(oracle)


def test_a_switch_fences_a_running_driver(world: World, oracle: Oracle) -> None:
    """A switch fences a running driver, which commits nothing more."""
    switch_dispatch(world.home.root, "hashed", partition_of=partition_of, execute=True)
    with pytest.raises(FencedError):
        world.batch(BATCHES, one_row(1))
    assert contents(world.home.root) == expected(oracle)


def test_a_scan_keeps_snapshots_that_a_switch_is_writing(
    world: World, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan of the stopped query that still runs keeps the snapshots that a switch is writing."""
    tail, append = world.log().tail, Log.append
    assert tail is not None

    def scanned(*arguments: Any) -> Record:
        run_to_end(scan(world.memory, tail, 2, 0, own_snapshots=list))
        return append(*arguments)

    monkeypatch.setattr(Log, "append", scanned)
    switch_dispatch(world.home.root, "key_group", key_groups=24, execute=True)
    assert contents(world.home.root) == expected(oracle)


DISPATCH_IN_CHILD = """
from riffle_spark.offline import reshard
with reshard.scratch_folder() as folder:
    print(folder)
"""


@pytest.mark.parametrize("kind", ["of this user", "of another user"])
@pytest.mark.sample(step=2)
def test_a_fifo_in_a_temporary_folder_does_not_block_a_switch(tmp_path: Path, kind: str) -> None:
    """A FIFO in place of the lock of an old temporary folder does not block a switch."""
    left = tmp_path / "riffle-dispatch-left"
    left.mkdir()
    os.mkfifo(left / "owner")
    if kind == "of another user":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder to another user")
        os.chown(left, 65_534, 65_534)
    done = subprocess.run(
        [sys.executable, "-c", DISPATCH_IN_CHILD], env={**os.environ, "TMPDIR": str(tmp_path)}, cwd=CHECKOUT,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert Path(done.stdout.strip()).parent == tmp_path
    assert left.exists()
