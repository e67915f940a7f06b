"""A fork is a new root with the state of a batch, also if the copy is interrupted."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.errors import ConfigError, ConflictError, CorruptStateError, RefusedError
from riffle_spark.offline import fork as fork_module
from riffle_spark.offline.fork import fork
from riffle_spark.offline.purge import purge_keys
from riffle_spark.offline.recovery import adopt, rollback
from riffle_spark.offline.savepoints import Savepoints
from riffle_spark.offline.state_edits import Editor, KeyChoice
from riffle_spark.offline.switch import switch_keys
from riffle_spark.offline.verify import verify
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.objects.open import open_store
from tests.kit.root_commands import read_json, run_command
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.servers.object_server import ObjectServer
from tests.kit.simulated.world import Crash, States, World, feed_six_keys, rows_of, totals, two_stores
from tests.kit.state.drawn_records import PLAIN

pytestmark = pytest.mark.usefixtures("short_cycles")
KEYS = "env:KEYS_OF_FORK"


@pytest.fixture
def world(tmp_path: Path, states: States) -> World:
    """Return a query on files after eight batches, with a savepoint of the sixth."""
    root = f"file://{tmp_path}/root"
    query = World(tmp_path / "local", operators=[totals()], root=root, snapshot_chain_links=2, retained_versions=4)
    feed_six_keys(query, 0, 5, states)
    Savepoints(query.home.root).create("a")
    query.start()
    feed_six_keys(query, 6, 7, states)
    return query


def adopted(folder: Path, root: str, version: int, **settings: Any) -> World:
    """Return another query that has adopted a fork and starts with batch 0."""
    checkpoint = written_checkpoint(folder / f"checkpoint-{uuid.uuid4().hex}", query_id="another")
    plan = adopt(root, str(checkpoint), execute=True)
    assert plan.offsets == f"offsets-{version}"
    local = folder / f"local-{uuid.uuid4().hex}"
    world = World(local, operators=[totals()], root=root, snapshot_chain_links=2, **settings)
    world.query_id = "another"
    return world


def check_continues(world: World, source: dict[object, tuple[object, ...]]) -> None:
    """Run batches of another query on a fork, and compare its state with the source's state and its own rows."""
    expected = {key: tuple(values) for key, values in source.items()}
    for version in range(8):
        world.batch(version, rows_of(*((f"k{n}", version, version * 100 + n) for n in range(6))))
        expected = {key: (count + 1, total + version) for key, (count, total) in expected.items()}  # type: ignore[operator]
    assert world.state("totals") == expected


def test_a_fork_of_a_savepoint_and_its_source_continue_independently(
    tmp_path: Path, world: World, states: States
) -> None:
    """A fork has the batch's objects and one record, and both queries continue independently."""
    new_root = f"file://{tmp_path}/new"
    plan = fork(world.home.root, new_root, "savepoint:a")
    assert (plan.executed, plan.version, plan.offsets) == (False, 5, "offsets-5")
    assert open_store(new_root).list("") == []
    fork(world.home.root, new_root, "savepoint:a", execute=True)
    assert verify(new_root).findings == ()
    names = open_store(new_root).list("")
    assert [name for name in names if name.startswith(paths.LOG)] == [paths.record_name(0)]
    before = states[5]
    feed_six_keys(world, 8, 14, states)
    check_continues(adopted(tmp_path, new_root, 5), before)
    assert world.state("totals") == states[14]


def test_a_fork_and_a_rollback_restore_all_stores(tmp_path: Path) -> None:
    """A fork and a rollback to a savepoint restore the state of all stores."""
    root = f"file://{tmp_path}/both"
    world = World(tmp_path / "two", operators=two_stores(), root=root, snapshot_chain_links=2, retained_versions=4)
    feed_six_keys(world, 0, 5)
    Savepoints(root).create("both")
    before = {store: world.state(store) for store in ("totals", "tails")}
    world.start()
    feed_six_keys(world, 6, 10)
    now = {store: world.state(store) for store in before}
    assert all(now[store] != before[store] for store in before)
    checkpoint = str(written_checkpoint(tmp_path / "checkpoint"))
    new_root = f"file://{tmp_path}/new"
    fork(root, new_root, "savepoint:both", execute=True)
    assert verify(new_root).findings == ()
    forked = World(tmp_path / "forked", operators=two_stores(), root=new_root)
    assert {store: forked.state(store) for store in before} == before
    assert {store: world.state(store) for store in before} == now
    rollback(root, "savepoint:both", checkpoint, execute=True)
    assert {store: world.state(store) for store in before} == before
    world.start()
    feed_six_keys(world, 6, 10)
    assert {store: world.state(store) for store in before} == now


def test_a_query_uses_a_fork_only_after_an_adoption(tmp_path: Path, world: World) -> None:
    """A query uses a fork only after an adoption, and the source query is refused, because it would repeat batches."""
    new_root = f"file://{tmp_path}/new"
    fork(world.home.root, new_root, 7, execute=True)
    same = World(tmp_path / "same", operators=[totals()], root=new_root)
    with pytest.raises(ConflictError, match="RIFFLE-1784"):
        feed_six_keys(same, 8, 8)
    shown = read_json("log", new_root)
    assert [(each["kind"], each["version"]) for each in shown["records"]] == [("adopt", 7)]


def test_state_can_be_forked_after_a_purge(tmp_path: Path, world: World) -> None:
    """State can be forked after a purge, because the fork's first record refers to no purged record."""
    purge_keys(world.home.root, "totals", KeyChoice("k1"), Editor("ticket 7", "ann", "laptop"), execute=True)
    state = world.state("totals")
    new_root = f"file://{tmp_path}/new"
    fork(world.home.root, new_root, 7, execute=True)
    assert verify(new_root).findings == ()
    check_continues(adopted(tmp_path, new_root, 7), state | {"k1": (0, 0)})


@pytest.mark.parametrize("target", [6, "record:8"])
@pytest.mark.sample("record:8")
def test_a_retained_batch_or_record_can_be_forked(
    tmp_path: Path, world: World, states: States, target: int | str
) -> None:
    """A fork accepts the same batches and records as a rollback."""
    new_root = f"memory://{uuid.uuid4().hex}"
    version = fork(world.home.root, new_root, target, execute=True).version
    check_continues(adopted(tmp_path, new_root, version), states[version])


class CrashingStore:
    """A store that raises Crash at a given call, counted over all its instances."""

    def __init__(self, inner: object, dies_at: int, calls: list[int]) -> None:
        self._inner = inner
        self._dies_at = dies_at
        self._calls = calls

    def __getattr__(self, name: str) -> object:
        method = getattr(self._inner, name)
        if name in ("requests", "can_copy_from", "_converted_errors", "root"):
            return method

        def call(*arguments: object) -> object:
            self._calls[0] += 1
            if self._calls[0] == self._dies_at:
                raise Crash
            return method(*(a._inner if isinstance(a, CrashingStore) else a for a in arguments))

        return call


def dying_store(dies_at: int, calls: list[int], url: str, *_: object) -> CrashingStore:
    """Open a store that raises Crash at a given call."""
    return CrashingStore(open_store(url), dies_at, calls)


@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.sample("file")
def test_an_interrupted_fork_is_completed_by_the_same_command(
    tmp_path: Path, world: World, states: States, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A fork that dies at any request leaves no root that a query starts on, and the same command completes it."""
    monkeypatch.setattr(fork_module, "in_parallel", lambda work, items: [work(item) for item in items])
    before = {name: world.memory.get(name) for name in world.memory.list("")}
    dies_at, calls, has_died = 1, [0], True
    while has_died:
        new_root = f"file://{tmp_path}/new-{dies_at}" if kind == "file" else f"memory://{uuid.uuid4().hex}"
        calls[0] = 0
        with monkeypatch.context() as patch:
            patch.setattr(fork_module, "open_store", partial(dying_store, dies_at, calls))
            patch.setattr(fork_module, "CopyingStore", object)
            patch.setattr(
                CrashingStore, "can_copy_from", lambda self, _: hasattr(self._inner, "copy_from"), raising=False
            )
            try:
                fork(world.home.root, new_root, "savepoint:a", execute=True)
                has_died = False
            except Crash:
                objects = open_store(new_root)
                if objects.list("") and not objects.exists(paths.record_name(0)):
                    with pytest.raises(ConfigError, match="RIFFLE-0411"):
                        feed_six_keys(World(tmp_path / f"half-{dies_at}", operators=[totals()], root=new_root), 0, 0)
        if not open_store(new_root).exists(paths.record_name(0)):
            fork(world.home.root, new_root, "savepoint:a", execute=True)
        assert verify(new_root).findings == ()
        dies_at += 5
    assert dies_at > 20
    assert {name: world.memory.get(name) for name in world.memory.list("")} == before
    check_continues(adopted(tmp_path, new_root, 5), states[5])


@pytest.mark.parametrize("kind", ["by the store", "in memory", "by a temporary file"])
def test_a_copied_object_that_is_too_short_is_copied_again(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A copied object that is too short, as after an interrupted copy in Azure, is copied again."""
    if kind == "by a temporary file":
        monkeypatch.setattr(fork_module, "_IN_MEMORY_BYTES", 0)
    new_root = f"file://{tmp_path}/new" if kind == "by the store" else f"memory://{uuid.uuid4().hex}"
    fork(world.home.root, new_root, "savepoint:a", execute=True)
    objects = open_store(new_root)
    names = [name for name in objects.list("") if not name.startswith(paths.LOG)]
    short = names[0]
    data = objects.get(short) or b""
    objects.delete([short, paths.record_name(0)])
    objects.put_if_absent(short, data[:-1])
    fork(world.home.root, new_root, "savepoint:a", execute=True)
    assert objects.get(short) == data


@pytest.mark.parametrize("execute", [False, True])
@pytest.mark.sample(step=2)
def test_a_fork_to_an_overlapping_or_used_root_is_refused(tmp_path: Path, world: World, execute: bool) -> None:
    """A fork is refused to the same root, to a root below or above it, and to a root with a log or other objects."""
    root = world.home.root
    for new_root in (root, f"{root}/below", f"file://{tmp_path}"):
        with pytest.raises(ConfigError, match="RIFFLE-1589"):
            fork(root, new_root, 7, execute=execute)
    other = f"memory://{uuid.uuid4().hex}"
    open_store(other).put_if_absent("someone/elses", b"x")
    with pytest.raises(ConfigError, match="RIFFLE-1588"):
        fork(root, other, 7, execute=execute)
    used = World(tmp_path / "used")
    feed_six_keys(used, 0, 0)
    with pytest.raises(ConfigError, match="RIFFLE-1588"):
        fork(root, used.home.root, 7, execute=execute)
    empty = Log(open_store(f"{other}-empty"), "empty")
    empty.open()
    empty.append(PLAIN, Manifest())
    with pytest.raises(ConfigError, match="RIFFLE-1588") as refused:
        fork(root, f"{other}-empty", 7, execute=execute)
    assert "riffle adopt" in refused.value.remedy


@pytest.mark.parametrize("limit", [0, 16 << 20], ids=["by a temporary file", "in memory"])
def test_a_fork_of_a_batch_deleted_meanwhile_leaves_no_log(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A fork of a batch that is deleted meanwhile is refused without a log in the new root, and the remedy is a
    savepoint.
    """
    monkeypatch.setattr(fork_module, "_IN_MEMORY_BYTES", limit)
    new_root = f"memory://{uuid.uuid4().hex}"
    run = fork_module._Copy.run

    def meanwhile(copy: fork_module._Copy, names: Sequence[str]) -> None:
        feed_six_keys(world, 8, 24)
        run(copy, names)

    with monkeypatch.context() as patch:
        patch.setattr(fork_module._Copy, "run", meanwhile)
        with pytest.raises(CorruptStateError, match="RIFFLE-1586") as refused:
            fork(world.home.root, new_root, 7, execute=True)
    assert "riffle savepoint create" in refused.value.remedy
    assert not open_store(new_root).list(paths.LOG)
    fork(world.home.root, f"{new_root}2", "savepoint:a", execute=True)
    assert verify(f"{new_root}2").findings == ()


def test_a_fork_of_encrypted_state_is_read_with_its_keys_or_rewritten(
    tmp_path: Path, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork of encrypted state needs no key, and the new root is read with the source's keys or rewritten."""
    keys = ["old = " + "A" * 43 + "=", "new = " + "B" * 42 + "A="]
    monkeypatch.setenv("KEYS_OF_FORK", keys[0])
    world = World(tmp_path / "local", operators=[totals()], encryption_keys=KEYS, snapshot_chain_links=2)
    feed_six_keys(world, 0, 5, states)
    monkeypatch.delenv("KEYS_OF_FORK")
    new_root = f"memory://{uuid.uuid4().hex}"
    fork(world.home.root, new_root, 5, execute=True)
    with pytest.raises(RefusedError):
        verify(new_root)
    monkeypatch.setenv("KEYS_OF_FORK", "\n".join(keys).replace("\n", ","))
    assert verify(new_root, encryption_keys=KEYS).findings == ()
    switch_keys(new_root, encryption_keys=KEYS, rewrite=True, execute=True)
    monkeypatch.setenv("KEYS_OF_FORK", keys[1])
    check_continues(adopted(tmp_path, new_root, 5, encryption_keys=KEYS), states[5])


@pytest.mark.cluster
@pytest.mark.parametrize("limit", [0, 16 << 20], ids=["by a temporary file", "in memory"])
def test_a_fork_to_another_service_is_copied_through_this_machine(
    tmp_path: Path,
    world: World,
    states: States,
    object_server: ObjectServer,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
) -> None:
    """Forks are copied through this machine between different services, and by the store itself within S3."""
    monkeypatch.setattr(fork_module, "_IN_MEMORY_BYTES", limit)
    first, second = object_server.new_root(), object_server.new_root()
    plan = fork(world.home.root, first, "savepoint:a", options=object_server.options, execute=True)
    assert "through this machine" in plan.steps[0]
    plan = fork(first, second, 5, options=object_server.options, execute=True)
    assert "by the store itself" in plan.steps[0]
    assert verify(second, options=object_server.options).findings == ()
    last = f"memory://{uuid.uuid4().hex}"
    fork(second, last, 5, options=object_server.options, execute=True)
    check_continues(adopted(tmp_path, last, 5), states[5])


def test_the_fork_command_prints_offsets_and_needs_one_target(tmp_path: Path, world: World) -> None:
    """The command prints the offsets, asks for --execute, and requires exactly one target."""
    new_root = f"file://{tmp_path}/new"
    plan = run_command("fork", world.home.root, new_root, "--savepoint", "a")
    assert plan.exit_code == 0, plan.output
    assert "offsets-5" in plan.output
    assert "Add --execute" in plan.output
    assert (
        json.loads(run_command("fork", world.home.root, new_root, "--at", "7", "--json").output)["offsets"]
        == "offsets-7"
    )
    assert run_command("fork", world.home.root, new_root, "--at", "7", "--execute").exit_code == 0
    checkpoint = written_checkpoint(tmp_path / "checkpoint", query_id="another")
    assert (
        "The new query must start there:\noffsets-7"
        in run_command("adopt", new_root, "--checkpoint", checkpoint).output
    )
    for arguments in ((), ("--at", "7", "--savepoint", "a"), ("--at", "x")):
        assert run_command("fork", world.home.root, f"{new_root}2", *arguments).exit_code == 2
