"""Commands that run beside a running query or with a failing store report what happened and damage nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.errors import (
    ConfigError,
    ConflictError,
    CorruptStateError,
    FencedError,
    RefusedError,
    UnavailableError,
)
from riffle_spark.offline import recovery, running_log, switch
from riffle_spark.offline import verify as verification
from riffle_spark.offline.recovery import Plan, adopt, rollback
from riffle_spark.offline.root_status import newest_record
from riffle_spark.offline.running_log import open_running_log
from riffle_spark.offline.switch import switch_dispatch, switch_keys
from riffle_spark.state.log import paths
from riffle_spark.state_tables.retained_records import RetainedRecords
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.simulated.switched_state import BATCHES, contents, expected, partition_of, tail_of
from tests.kit.simulated.world import Oracle, World, one_row
from tests.kit.state.faulty_store import Fault, FaultyStore

pytestmark = pytest.mark.usefixtures("short_cycles")


@pytest.fixture
def world(filled_world: tuple[World, Oracle]) -> World:
    """Return the query."""
    return filled_world[0]


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Return a checkpoint of the query after its batches."""
    return str(written_checkpoint(tmp_path / "checkpoint", BATCHES))


def commands(root: str, checkpoint: str, folder: Path) -> dict[str, Callable[[], Plan]]:
    """Return each command that changes a root."""
    (folder / "keys").write_text(f"plain\na = {'A' * 43}=\n")
    another = str(written_checkpoint(folder / "another", BATCHES, "another"))
    return {
        "adopt": lambda: adopt(root, another, execute=True),
        "rollback": lambda: rollback(root, BATCHES - 2, checkpoint, execute=True),
        "dispatch": lambda: switch_dispatch(root, "partition", partition_of=partition_of, execute=True),
        "keys": lambda: switch_keys(root, encryption_keys=f"file:{folder}/keys", rewrite=True, execute=True),
    }


def commands_store(monkeypatch: pytest.MonkeyPatch, world: World, fault: Fault, meanwhile: Any) -> FaultyStore:
    """Return the store that commands use, with a fault during which ``meanwhile`` is called."""
    store = FaultyStore(world.memory, [fault], sleep=meanwhile)
    for module in (recovery, switch):
        monkeypatch.setattr(module, "open_store", lambda *_: store)
        monkeypatch.setattr(module, "machine_clocks", lambda: (world.clock.seconds(),))
    return store


@pytest.mark.parametrize(("command", "more"), [("adopt", 9), ("rollback", 1), ("dispatch", 9), ("keys", 1)])
@pytest.mark.sample(step=2)
def test_a_command_overtaken_by_a_running_query_is_refused(
    world: World, oracle: Oracle, checkpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str,
    more: int,
) -> None:  # fmt: skip
    """A command that a running query overtakes is refused, also if the query has already swept the command's record
    number.
    """
    root, log = world.home.root, []

    def go_on(_: float) -> None:
        for version in range(BATCHES, BATCHES + more):
            world.batch(version, one_row(1))
            oracle.feed(one_row(1))
        world.background.run()
        log.append(world.memory.list(paths.LOG))

    next_record = paths.record_name(tail_of(root).sequence + 1)
    commands_store(monkeypatch, world, Fault("slow", "put", paths.LOG), go_on)
    with pytest.raises((FencedError, ConflictError), match="RIFFLE-0508"):
        commands(root, checkpoint, tmp_path)[command]()
    assert (next_record in log[0]) == (more == 1), "whether the query has swept the number of the command's record"
    assert world.memory.list(paths.LOG) == log[0]
    assert contents(root) == expected(oracle)


@pytest.mark.parametrize("command", ["rollback", "dispatch"])
@pytest.mark.sample(step=2)
def test_objects_deleted_during_a_command_are_a_conflict_and_not_damage(
    world: World, checkpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    """Objects that a running query deletes during a command are reported as a conflict, and as damage only if no query
    ran.
    """
    root = world.home.root

    def go_on(_: float) -> None:
        for version in range(BATCHES, BATCHES + 20):
            world.batch(version, one_row(1))
        world.background.run()

    first = Fault("slow", "head" if command == "rollback" else "get", "delta/")
    commands_store(monkeypatch, world, first, go_on)
    with pytest.raises((FencedError, ConflictError), match="RIFFLE-0508"):
        commands(root, checkpoint, tmp_path)[command]()
    world.memory.delete(world.memory.list("delta/"))
    world.memory.delete(world.memory.list("totals/"))
    with pytest.raises(CorruptStateError, match="RIFFLE-0143"):
        rollback(root, world.log().tail.version, checkpoint)  # type: ignore[union-attr]


@pytest.mark.parametrize("command", ["rollback", "dispatch"])
@pytest.mark.sample(step=2)
def test_a_command_whose_commit_is_unclear_can_be_run_again(
    world: World, oracle: Oracle, checkpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    """A command whose commit is unclear because the store failed can be run again."""
    root, before = world.home.root, tail_of(world.home.root).sequence
    next_record = paths.record_name(before + 1)
    store = commands_store(monkeypatch, world, Fault("answer_lost", "put", paths.LOG), print)
    store.script(Fault("unavailable", "put", paths.LOG, times=None))
    store.script(Fault("unavailable", "get", next_record, times=None))
    run = commands(root, checkpoint, tmp_path)[command]
    with pytest.raises(UnavailableError, match="RIFFLE-0509"):
        run()
    store.heal()
    if command == "dispatch":
        with pytest.raises(ConfigError, match="RIFFLE-0158"):
            run()
    else:
        assert run().executed
    assert tail_of(root).sequence == before + (1 if command == "dispatch" else 2)
    if command not in {"rollback", "keys"}:
        assert contents(root) == expected(oracle)


@pytest.mark.parametrize("command", ["rollback"])
def test_rights_expired_after_a_record_say_the_command_took_effect(
    world: World, checkpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    """If rights expire after a command has written its record, the error says that the command took effect."""
    refused, run = [0], commands(world.home.root, checkpoint, tmp_path)[command]

    def refuses(name: str, data: bytes) -> bool:
        refused[0] -= name.startswith(paths.LOG)
        if refused[0] < 0:
            raise RefusedError("the token has expired", remedy="renew it", where=name)
        return world.memory.put_if_absent(name, data)

    store = FaultyStore(world.memory)
    monkeypatch.setattr(store, "put_if_absent", refuses)
    for module in (recovery, switch):
        monkeypatch.setattr(module, "open_store", lambda *_: store)
    before = tail_of(world.home.root)
    with pytest.raises(RefusedError, match=r"^the token has expired"):
        run()
    assert tail_of(world.home.root) == before
    refused[0] = 1
    with pytest.raises(RefusedError, match="RIFFLE-0509"):
        run()
    assert tail_of(world.home.root).sequence == before.sequence + 1


@pytest.mark.parametrize("batches", [1, 2, 20])
@pytest.mark.parametrize("is_last_planned", [True, False])
@pytest.mark.sample(step=3)
def test_commits_during_verify_are_no_mismatch(
    world: World, checkpoint: str, monkeypatch: pytest.MonkeyPatch, batches: int, is_last_planned: bool
) -> None:
    """Commits during `verify` are no mismatch of state and checkpoint, and a checkpoint ahead of the state is one."""
    ahead = BATCHES + batches

    def go_on(_: float) -> None:
        for version in range(BATCHES, ahead):
            world.batch(version, one_row(1))
        written_checkpoint(Path(checkpoint), ahead)
        if is_last_planned:
            (Path(checkpoint) / "offsets" / str(ahead)).write_text(f"offsets-{ahead}")

    store = FaultyStore(world.memory, [Fault("slow", "get", "delta/")], sleep=go_on)
    monkeypatch.setattr(verification, "open_store", lambda *_: store)
    verified = verification.verify(world.home.root, checkpoint)
    assert [finding for finding in verified.findings if finding.where == checkpoint] == []
    written_checkpoint(Path(checkpoint), ahead + 2)
    second_result = verification.verify(world.home.root, checkpoint)
    (finding,) = [finding for finding in second_result.findings if finding.where == checkpoint]
    assert f"next batch is {ahead + 2}, but the state is at batch {ahead - 1}" in finding.problem


def test_commits_between_the_two_reads_of_verify_are_not_reported_lost(
    world: World, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that are committed between the two reads of the log by `verify` are not reported as lost."""
    looks: list[int] = []

    def go_on(_: float) -> None:
        looks.append(len(looks))
        first = BATCHES + 2 * len(looks)
        for version in range(first - 2, first):
            world.batch(version, one_row(1))
        written_checkpoint(Path(checkpoint), first)

    store = FaultyStore(world.memory, [Fault("slow", "get", "delta/"), Fault("slow", "list", paths.LOG)], sleep=go_on)
    monkeypatch.setattr(verification, "open_store", lambda *_: store)
    verified = verification.verify(world.home.root, checkpoint)
    assert looks == [0, 1]
    assert [finding for finding in verified.findings if finding.where == checkpoint] == []


def test_a_newest_record_that_is_deleted_during_a_command_is_looked_up_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newest record that the query deletes between the LIST and the GET is looked up again, a limited number of
    times.
    """
    monkeypatch.setattr(running_log, "_RETRY_SECONDS", 0.0)
    root = world.home.root
    tail = tail_of(root)

    def store(times: int | None) -> FaultyStore:
        return FaultyStore(world.memory, [Fault("missing", "get", paths.LOG, times=times)])

    assert open_running_log(store(1), root)[1] == tail
    assert newest_record(store(1), root).sequence == tail.sequence
    assert RetainedRecords(store(1), root).tail == tail
    with pytest.raises(UnavailableError, match="RIFFLE-0405"):
        open_running_log(store(None), root)
    for read in (newest_record, RetainedRecords):
        with pytest.raises(ConfigError, match="holds no state"):
            read(store(None), root)
