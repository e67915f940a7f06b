"""Savepoints of a stopped query, rollbacks to savepoints and times, and the commands that show them."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError, FencedError, UnavailableError
from riffle_spark.observe.units import show_time
from riffle_spark.offline import recovery
from riffle_spark.offline import savepoints as offline_savepoints
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.offline.purge import purge_keys
from riffle_spark.offline.recovery import adopt, rollback
from riffle_spark.offline.savepoints import Savepoints
from riffle_spark.offline.state_edits import Editor, KeyChoice
from riffle_spark.offline.switch import switch_dispatch, switch_keys
from riffle_spark.offline.verify import verify
from riffle_spark.state.log import paths
from riffle_spark.state.log.savepoints import read_savepoint, savepoint_objects
from tests.kit.root_commands import read_json, run_command, write_status
from tests.kit.roots.spark_checkpoint import commit_batch, written_checkpoint
from tests.kit.simulated.world import Crash, States, World, feed_six_keys, rows_of, totals
from tests.kit.state.faulty_store import Fault, FaultyStore

pytestmark = pytest.mark.usefixtures("short_cycles")
CREATION_REQUESTS = [
    (method, call) for method, calls in {"list": 2, "head": 1, "get": 5, "put": 3}.items() for call in range(calls)
]
"""The requests of ``create``: the method, and the number of the request among those of its method."""


@pytest.fixture
def world(tmp_path: Path, states: States) -> World:
    """Return a query after six batches, which retains two records."""
    query = World(tmp_path / "local", operators=[totals()], snapshot_chain_links=2)
    feed_six_keys(query, 0, 5, states)
    return query


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return the checkpoint of that query with only its newest entries, as Spark keeps it."""
    return written_checkpoint(tmp_path / "checkpoint", 22, first=16)


def missing(world: World) -> list[str]:
    """Return the missing objects of the savepoints in the newest record, and of the record itself."""
    tail = world.log().tail
    assert tail is not None
    needed = world.log().manifest.object_names()
    for savepoint in tail.savepoints:
        needed |= savepoint_objects(read_savepoint(world.memory, savepoint)) | {paths.savepoint_name(savepoint.id)}
    return sorted(needed - {*world.memory.list("")})


def test_a_rollback_to_a_savepoint_restores_state_offsets_and_checkpoint(
    world: World, checkpoint: Path, states: States
) -> None:
    """A rollback to a savepoint many batches later restores state, offsets and checkpoint, and keeps the savepoint."""
    Savepoints(world.home.root).create("release")
    world.start()
    feed_six_keys(world, 6, 21, states)
    assert not world.memory.exists(paths.record_name(5)), "the record of batch 5 is still in the log"
    with pytest.raises(ConfigError, match=r"(?s)batch 5.*savepoint release"):
        rollback(world.home.root, 5, str(checkpoint))
    plan = rollback(world.home.root, "savepoint:release", str(checkpoint))
    assert (plan.executed, plan.version, plan.offsets) == (False, 5, "offsets-5")
    rollback(world.home.root, "savepoint:release", str(checkpoint), execute=True)
    assert world.state("totals") == states[5]
    assert Checkpoint(str(checkpoint)).next_batch() == 6
    assert {p.name: p.read_text() for p in (checkpoint / "offsets").iterdir()} == {"4": "offsets-4", "5": "offsets-5"}
    world.start()
    feed_six_keys(world, 6, 18)
    assert world.state("totals") == states[18]
    rollback(world.home.root, "savepoint:release", str(checkpoint), execute=True)
    assert world.state("totals") == states[5]
    assert missing(world) == []


def test_a_savepoint_after_a_rollback_has_the_offsets_of_two_batches(world: World, checkpoint: Path) -> None:
    """A savepoint that is created after a rollback has the offsets of its batch and of the batch before."""
    Savepoints(world.home.root).create("a")
    world.start()
    feed_six_keys(world, 6, 21)
    rollback(world.home.root, "savepoint:a", str(checkpoint), execute=True)
    Savepoints(world.home.root).create("b")
    world.start()
    feed_six_keys(world, 6, 18)
    for file in [*checkpoint.glob("*/4"), *checkpoint.glob("*/5")]:
        file.unlink()
    commit_batch(checkpoint, 18)
    rollback(world.home.root, "savepoint:b", str(checkpoint), execute=True)
    assert {p.name: p.read_text() for p in (checkpoint / "offsets").iterdir()} == {"4": "offsets-4", "5": "offsets-5"}


def test_a_savepoint_has_the_commit_time_of_its_batch(world: World, checkpoint: Path) -> None:
    """A savepoint has the commit time of its batch, not that of a later claim or savepoint record."""
    root = world.home.root
    tail = world.log().tail
    assert tail is not None
    assert (tail.kind, tail.version) == ("batch", 5)
    world.clock.advance(3600)
    world.start()
    world.crash_at = "before run"
    with pytest.raises(Crash):
        feed_six_keys(world, 6, 6)
    claim = world.log().tail
    assert claim is not None
    assert (claim.kind, claim.version) == ("claim", 5)
    Savepoints(root).create("claim")
    Savepoints(root).create("savepoint")
    assert [each.committed_ms for each in Savepoints(root).tail.savepoints] == [tail.written_ms] * 2
    for command in (("savepoint", "list"), ("log",)):
        assert run_command(*command, root).output.count(show_time(tail.written_ms)) >= 2
    world.start()
    feed_six_keys(world, 6, 21)
    rollback(root, "savepoint:claim", str(checkpoint), execute=True)
    assert Savepoints(root).create("gone").committed_ms == tail.time_ms, "the record of the batch is deleted"


@pytest.mark.parametrize("when", ["create", "delete"])
def test_a_savepoint_command_fences_a_running_driver(world: World, when: str) -> None:
    """A savepoint command fences a running driver, and the next driver keeps the list of savepoints."""
    savepoints = Savepoints(world.home.root)
    savepoints.create("a")
    if when == "delete":
        world.start()
        feed_six_keys(world, 6, 6)
        Savepoints(world.home.root).delete("a")
    version = 6 if when == "create" else 7
    with pytest.raises(FencedError):
        feed_six_keys(world, version, version)
    world.start()
    feed_six_keys(world, version, 14)
    assert [each.name for each in Savepoints(world.home.root).tail.savepoints] == (["a"] if when == "create" else [])
    assert missing(world) == []


def test_a_savepoint_command_that_a_query_overtakes_creates_nothing(world: World) -> None:
    """A savepoint command that a query overtakes creates nothing, and later drivers delete its object."""
    savepoints = Savepoints(world.home.root)
    feed_six_keys(world, 6, 6)
    with pytest.raises(FencedError, match="RIFFLE-0508"):
        savepoints.create("a")
    for first, last in ((7, 8), (9, 14)):  # the driver after the next one deletes the object
        world.start()
        feed_six_keys(world, first, last)
    assert world.memory.list(paths.SAVEPOINTS) == []
    assert Savepoints(world.home.root).tail.savepoints == ()


@pytest.mark.parametrize(("method", "call"), CREATION_REQUESTS)
@pytest.mark.sample(step=3)
def test_a_creation_that_fails_at_any_request_can_be_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, call: int
) -> None:
    """A creation that fails at any request can be repeated, and the query continues either way."""
    store = FaultyStore(world.memory, sleep=lambda _: None)
    monkeypatch.setattr(offline_savepoints, "open_store", lambda *_: store)
    store.script(Fault("answer_lost" if method == "put" else "unavailable", method, skip=call))
    try:
        Savepoints(world.home.root).create("a")
    except UnavailableError:
        store.heal()
        savepoints = Savepoints(world.home.root)
        if not savepoints.tail.savepoints:
            savepoints.create("a")
    world.start()
    feed_six_keys(world, 6, 12)
    tail = world.log().tail
    assert tail is not None
    assert [savepoint.version for savepoint in tail.savepoints] == [5]
    assert missing(world) == []


def test_a_creation_sends_only_the_listed_requests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """``create`` sends no other requests than ``CREATION_REQUESTS``, each of which another test lets fail."""
    store = FaultyStore(world.memory)
    monkeypatch.setattr(offline_savepoints, "open_store", lambda *_: store)
    Savepoints(world.home.root).create("a")
    assert Counter(method for method, _ in store.calls) == Counter(method for method, _ in CREATION_REQUESTS)


def test_adopt_dispatch_and_rollback_keep_savepoints(world: World, checkpoint: Path, tmp_path: Path) -> None:
    """Adoptions, switches of dispatch and rollbacks keep the list of savepoints."""
    Savepoints(world.home.root).create("a")
    world.start()
    feed_six_keys(world, 6, 8)
    rollback(world.home.root, 7, str(checkpoint), execute=True)
    switch_dispatch(world.home.root, "key_group", key_groups=4, execute=True)
    other = written_checkpoint(tmp_path / "other", query_id="other")
    adopt(world.home.root, str(other), execute=True)
    tail = world.log().tail
    assert tail is not None
    assert (tail.kind, [savepoint.name for savepoint in tail.savepoints]) == ("adopt", ["a"])
    assert missing(world) == []
    plan = rollback(world.home.root, "savepoint:a", str(checkpoint), execute=True)
    assert (plan.version, world.log().tail.total) == (5, 8)  # type: ignore[union-attr]


def test_a_purge_ends_savepoints(world: World) -> None:
    """A purge ends all savepoints and deletes their objects, because they may contain the keys."""
    Savepoints(world.home.root).create("a")
    plan = purge_keys(world.home.root, "totals", KeyChoice('"k1"'), Editor("erasure"), execute=True)
    assert "end the savepoints a" in plan.steps
    assert world.memory.list(paths.SAVEPOINTS) == []
    assert Savepoints(world.home.root).tail.savepoints == ()
    world.start()
    feed_six_keys(world, 6, 12)
    assert verify(world.home.root).findings == ()


@pytest.mark.long
def test_savepoint_costs_count_objects_kept_only_for_savepoints(world: World) -> None:
    """The costs of savepoints count once each object that is kept only for savepoints."""
    Savepoints(world.home.root).create("a")
    Savepoints(world.home.root).create("b")
    costs = Savepoints(world.home.root).measure()
    assert (costs.only_objects, costs.only_bytes) == (0, 0)
    assert all(each.objects > 0 for each in costs.savepoints)
    world.start()
    feed_six_keys(world, 6, 40)
    costs = Savepoints(world.home.root).measure()
    objects = savepoint_objects(read_savepoint(world.memory, costs.savepoints[0].savepoint))
    assert costs.only_objects == len(objects) == costs.savepoints[0].objects
    sizes = [len(world.memory.get(name) or b"") for name in objects]
    assert 0.8 * sum(sizes) <= costs.only_bytes <= sum(sizes)
    assert [each.only_objects for each in costs.savepoints] == [0, 0], "both savepoints keep the same objects"
    Savepoints(world.home.root).delete("b")
    assert Savepoints(world.home.root).measure().savepoints[0].only_objects == len(objects)


def test_verify_finds_damage_in_a_savepoint(world: World) -> None:
    """`verify` finds a missing object of a savepoint's batch, and a missing savepoint object."""
    Savepoints(world.home.root).create("a")
    world.start()
    feed_six_keys(world, 6, 18)
    assert verify(world.home.root).findings == ()
    (savepoint,) = Savepoints(world.home.root).tail.savepoints
    lost = sorted(savepoint_objects(read_savepoint(world.memory, savepoint)))[0]
    data = world.memory.get(lost) or b""
    world.memory.delete([lost])
    assert [(finding.level, finding.where) for finding in verify(world.home.root).findings] == [("rollback", lost)]
    world.memory.put_if_absent(lost, data)
    world.memory.delete([paths.savepoint_name(savepoint.id)])
    (finding,) = verify(world.home.root).findings
    assert (finding.level, finding.where) == ("rollback", paths.savepoint_name(savepoint.id))
    costs = Savepoints(world.home.root).measure()
    assert "missing" in costs.savepoints[0].problem
    listed = run_command("savepoint", "list", world.home.root)
    assert (listed.exit_code, costs.savepoints[0].problem in listed.stderr) == (1, True)


def test_an_object_of_another_savepoint_is_damage(world: World) -> None:
    """A savepoint whose object is that of another savepoint is damaged, and the other one is not."""
    Savepoints(world.home.root).create("a", 4)
    Savepoints(world.home.root).create("b", 5)
    names = [paths.savepoint_name(savepoint.id) for savepoint in Savepoints(world.home.root).tail.savepoints]
    data = world.memory.get(names[1]) or b""
    world.memory.delete(names[:1])
    assert world.memory.put_if_absent(names[0], data)
    damaged, intact = Savepoints(world.home.root).measure().savepoints
    assert "contains record" in damaged.problem
    assert (intact.problem, intact.objects > 0) == ("", True)


def test_parts_of_savepoints_are_counted_by_encryption_key(world: World) -> None:
    """Parts of savepoints are counted by encryption key, because their key is still needed."""
    Savepoints(world.home.root).create("a")
    lines = switch_keys(world.home.root).steps
    assert [line.split(":")[0] for line in lines] == ["plain", "savepoint a"]


class TestTimes:
    """Rollbacks to a time choose the newest record that was written by then."""

    @staticmethod
    def text(seconds: float) -> str:
        """Return a rollback target for a time in seconds."""
        return "time:" + datetime.fromtimestamp(seconds, timezone.utc).isoformat()

    @pytest.fixture
    def written(self, world: World) -> dict[int, float]:
        """Return the commit time of each retained batch in seconds since the epoch."""
        log = world.log()
        assert log.tail is not None
        records = [log.read(sequence) for sequence in range(log.tail.promised, log.tail.sequence + 1)]
        return {each.version: each.written_ms / 1000 for each in records}

    @pytest.mark.parametrize("later", [0.0, 0.4])
    def test_a_time_chooses_the_newest_batch_committed_by_then(
        self, world: World, checkpoint: Path, written: dict[int, float], later: float
    ) -> None:
        """A time chooses the newest batch that was committed at or before it."""
        for version, second in written.items():
            assert rollback(world.home.root, self.text(second + later), str(checkpoint)).version == version

    def test_the_remedy_for_a_time_before_all_records_names_a_savepoint(
        self, world: World, checkpoint: Path, written: dict[int, float]
    ) -> None:
        """A time before all retained records is refused, and the remedy names an older savepoint."""
        Savepoints(world.home.root).create("a")
        world.start()
        feed_six_keys(world, 6, 18)
        with pytest.raises(ConfigError, match="RIFFLE-1582") as refused:
            rollback(world.home.root, self.text(max(written.values()) + 0.5), str(checkpoint))
        assert "savepoint a" in refused.value.remedy
        with pytest.raises(ConfigError, match="RIFFLE-1582") as refused:
            rollback(world.home.root, self.text(0), str(checkpoint))
        assert "savepoint a" not in refused.value.remedy

    def test_the_remedy_names_the_newest_of_several_older_savepoints(self, world: World, checkpoint: Path) -> None:
        """Of several older savepoints the remedy names the newest."""
        Savepoints(world.home.root).create("a")
        world.start()
        feed_six_keys(world, 6, 7)
        Savepoints(world.home.root).create("b")
        tail = world.log().tail
        assert tail is not None
        newer = tail.savepoints[1]
        world.start()
        feed_six_keys(world, 8, 20)
        with pytest.raises(ConfigError, match="RIFFLE-1582") as refused:
            rollback(world.home.root, self.text(newer.committed_ms / 1000 + 0.0004), str(checkpoint))
        assert "savepoint b" in refused.value.remedy

    def test_a_time_in_the_future_is_refused(self, world: World, checkpoint: Path) -> None:
        """A time in the future is refused, because its zone is probably wrong."""
        with pytest.raises(ConfigError, match="RIFFLE-1581"):
            rollback(world.home.root, "time:2999-01-01T00:00Z", str(checkpoint))

    @pytest.mark.parametrize("text", ["2026-11-26T14:00:00", "2026-11-26", "yesterday", "", "14:00Z", "1e400s"])
    @pytest.mark.sample(step=3)
    def test_a_time_without_a_zone_is_refused_and_changes_nothing(
        self, world: World, checkpoint: Path, text: str
    ) -> None:
        """A time without a zone is a usage error before anything is read."""
        before = world.memory.list("")
        result = run_command("rollback", world.home.root, "--checkpoint", checkpoint, "--to-time", text, "--execute")
        assert (result.exit_code, "RIFFLE-1580" in result.output) == (2, True), result.output
        assert world.memory.list("") == before

    def test_batches_that_a_rollback_abandoned_are_not_chosen_by_time(self, world: World, checkpoint: Path) -> None:
        """Batches that a rollback abandoned do not count for a later rollback to a time."""
        world.settings = world.settings.but(retained_versions=100)
        world.start()
        feed_six_keys(world, 6, 9)
        tail = world.log().tail
        assert tail is not None
        given_up = world.log().read(tail.sequence - 1)
        rollback(world.home.root, 7, str(checkpoint), execute=True)
        plan = rollback(world.home.root, self.text(given_up.written_ms / 1000), str(checkpoint))
        assert plan.version == 7


class TestCommands:
    """Output and exit codes of the savepoint commands."""

    def test_savepoints_of_a_stopped_query_are_created_listed_and_deleted(self, world: World, checkpoint: Path) -> None:
        """Savepoints of a stopped query are created, listed and deleted by command, with --stopped if there is no
        status.
        """
        root = world.home.root
        refused = run_command("savepoint", "create", root, "--name", "a")
        assert (refused.exit_code, "RIFFLE-1584" in refused.output) == (1, True)
        created = run_command("savepoint", "create", root, "--name", "a", "--stopped")
        assert (created.exit_code, "Savepoint a keeps batch 5" in created.output) == (0, True), created.output
        shown = read_json("savepoint", "list", root)
        assert [(each["name"], each["version"]) for each in shown["savepoints"]] == [("a", 5)]
        assert shown["savepoints"][0]["rollback_to"] == "savepoint:a"
        text = run_command("savepoint", "list", root)
        assert "Without the savepoints, " in text.output
        logged = read_json("log", root)
        assert (logged["records"][-1]["kind"], logged["savepoints"][0]["name"]) == ("savepoint", "a")
        assert "savepoint:a" in run_command("log", root).output
        assert read_json("status", root)["savepoints"] == ["a"]
        assert "1, the oldest is a of batch 5" in run_command("status", root).output
        plan = run_command("rollback", root, "--checkpoint", checkpoint, "--to-savepoint", "a")
        assert (plan.exit_code, "to batch 5" in plan.output) == (0, True), plan.output
        unknown = run_command("rollback", root, "--checkpoint", checkpoint, "--to-savepoint", "b")
        assert (unknown.exit_code, "RIFFLE-1571" in unknown.output) == (1, True)
        deleted = run_command("savepoint", "delete", root, "a", "--stopped", "--json")
        assert (deleted.exit_code, json.loads(deleted.output)["name"]) == (0, "a"), deleted.output
        assert "no savepoints" in run_command("savepoint", "list", root).output

    @pytest.mark.parametrize("state", ["stopped", "failed"])
    @pytest.mark.sample(step=2)
    def test_a_status_of_a_stopped_query_allows_several_commands(self, world: World, state: str) -> None:
        """A status of a stopped query is enough for several commands, because their own records start no driver."""
        write_status(world, state=state, epoch=1)
        for name in "ab":
            created = run_command("savepoint", "create", world.home.root, "--name", name)
            assert created.exit_code == 0, created.output
        assert run_command("savepoint", "delete", world.home.root, "a").exit_code == 0

    def test_a_command_is_refused_if_a_driver_started_since_the_status(self, world: World) -> None:
        """A command refuses if a driver has started since the status, because a record would fence that driver."""
        write_status(world, state="stopped", epoch=1)
        world.start()
        feed_six_keys(world, 6, 6)
        before = world.memory.list("")
        refused = run_command("savepoint", "create", world.home.root, "--name", "a")
        assert (refused.exit_code, "It is unknown whether" in refused.output) == (1, True), refused.output
        assert world.memory.list("") == before

    def test_a_command_does_not_fence_a_running_query_without_control(self, world: World) -> None:
        """A command does not write a record for a running query that reads no requests, because a record would fence
        its driver.
        """
        write_status(world, epoch=1)
        before = world.memory.list("")
        refused = run_command("savepoint", "create", world.home.root, "--name", "a")
        assert (refused.exit_code, "The query runs" in refused.output) == (1, True), refused.output
        assert world.memory.list("") == before

    @pytest.mark.parametrize(
        "arguments",
        [("--name", "a b"), ("--name", ""), ("--name", "a", "--version", "x"), (), ("--name", "a", "--wait", "soon")],
    )
    @pytest.mark.sample(step=3)
    def test_wrong_savepoint_arguments_are_usage_errors(self, world: World, arguments: tuple[str, ...]) -> None:
        """Wrong arguments are usage errors before anything is read."""
        assert run_command("savepoint", "create", world.home.root, *arguments).exit_code == 2

    @pytest.mark.parametrize("targets", [(), ("--to", "1", "--to-savepoint", "a"), ("--to-time", "1m", "--to", "1")])
    @pytest.mark.sample(step=3)
    def test_a_rollback_without_a_target_or_with_two_is_a_usage_error(
        self, world: World, checkpoint: Path, targets: tuple[str, ...]
    ) -> None:
        """A rollback without a target or with two is a usage error."""
        assert run_command("rollback", world.home.root, "--checkpoint", checkpoint, *targets).exit_code == 2

    def test_savepoints_of_savepoints_or_released_batches_are_refused(self, world: World) -> None:
        """Savepoints of savepoints and of released batches, and duplicate names, are refused."""
        savepoints = Savepoints(world.home.root)
        savepoints.create("a")
        with pytest.raises(ConfigError, match="RIFFLE-1585"):
            savepoints.create("b", "savepoint:a")
        with pytest.raises(ConfigError, match="RIFFLE-0132"):
            savepoints.create("b", 0)
        with pytest.raises(ConfigError, match="RIFFLE-1572"):
            savepoints.create("a")


def at_each_step(monkeypatch: pytest.MonkeyPatch, world: World, crash_at: int) -> Callable[[], bool]:
    """Let a rollback raise Crash at its request or file change number ``crash_at``. Return a function that tells
    whether it did.
    """
    steps = [0]

    def step() -> None:
        steps[0] += 1
        if steps[0] == crash_at:
            raise Crash(f"step {crash_at}")

    class CountingStore:
        def __getattr__(self, name: str) -> object:
            method = getattr(world.memory, name)
            if name in ("requests",):
                return method

            def call(*args: object, **named: object) -> object:
                step()
                return method(*args, **named)

            return call

    monkeypatch.setattr(recovery, "open_store", lambda *_: CountingStore())
    for name in ("_write", "_remove"):
        original = getattr(Checkpoint, name)

        def stepped(self: Checkpoint, *args: object, original: Callable[..., object] = original) -> object:
            step()
            return original(self, *args)

        monkeypatch.setattr(Checkpoint, name, stepped)
    return lambda: steps[0] >= crash_at


@pytest.mark.parametrize("stride", [29, pytest.param(1, marks=pytest.mark.long)])
def test_an_interrupted_rollback_to_a_savepoint_can_be_completed(tmp_path: Path, states: States, stride: int) -> None:
    """A rollback to a savepoint that dies between any two requests or file changes is completed by the same command."""
    settings = {"operators": [totals()], "snapshot_chain_links": 2}
    world = World(tmp_path / "before", **settings)  # type: ignore[arg-type]
    feed_six_keys(world, 0, 5, states)
    Savepoints(world.home.root).create("a")
    world.start()
    feed_six_keys(world, 6, 14)
    objects = {name: world.memory.get(name) or b"" for name in world.memory.list("")}
    crash_at, died = 1, True
    while died:
        world = World(tmp_path / f"{crash_at}", root=world.home.root, **settings)  # type: ignore[arg-type]
        world.memory.delete(world.memory.list(""))
        for name, data in objects.items():
            world.memory.put_if_absent(name, data)
        folder = written_checkpoint(tmp_path / f"checkpoint-{crash_at}", 15, first=11)
        with pytest.MonkeyPatch.context() as patch:
            has_died = at_each_step(patch, world, crash_at)
            with contextlib.suppress(Crash):
                rollback(world.home.root, "savepoint:a", str(folder), execute=True)
            died = has_died()
        rollback(world.home.root, "savepoint:a", str(folder), execute=True)
        assert world.state("totals") == states[5], f"step {crash_at}"
        assert sorted(p.name for p in (folder / "offsets").iterdir()) == ["4", "5"]
        assert sorted(p.name for p in (folder / "commits").iterdir()) == ["5"]
        world.start()
        feed_six_keys(world, 6, 7)
        assert missing(world) == []
        crash_at += stride
    assert crash_at > 15


@pytest.mark.long
def test_a_rollback_is_exact_after_ten_thousand_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten thousand batches a rollback to a savepoint is exact, and the root holds only retained objects."""
    monkeypatch.undo()
    world = World(tmp_path / "local", executors=["1"], operators=[totals()], retained_versions=2, key_groups=2)
    feed_six_keys(world, 0, 9)
    expected = world.state("totals")
    Savepoints(world.home.root).create("a")
    world.start()
    for version in range(10, 10_010):
        world.batch(version, rows_of((f"k{version % 50}", version, version)))
        world.clock.advance(60)
    (savepoint,) = Savepoints(world.home.root).tail.savepoints
    log = world.log()
    assert log.tail is not None
    records = [log.read(sequence) for sequence in range(log.first, log.tail.sequence + 1)]
    listed = set[str]().union(*log.listed_objects(records, log.first))
    savepoint_names = savepoint_objects(read_savepoint(world.memory, savepoint)) | {paths.savepoint_name(savepoint.id)}
    there = {*world.memory.list("")}
    assert savepoint_names <= there
    not_swept_yet = 16 * (len(world.operators) * 2 + 1)
    assert (
        len(there - listed - savepoint_names - {paths.record_name(record.sequence) for record in records})
        <= not_swept_yet
    )
    assert len(there) <= len(listed) + len(savepoint_names) + len(records) + not_swept_yet
    assert len(records) <= 64
    folder = written_checkpoint(tmp_path / "checkpoint")
    rollback(world.home.root, "savepoint:a", str(folder), execute=True)
    assert world.state("totals") == expected
