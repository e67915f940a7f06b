"""Commands send few requests to the store: each object once, and several at a time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.offline import recovery, rollback_targets
from riffle_spark.offline.recovery import adopt, rollback
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import FULL_EVERY, Log
from riffle_spark.state.objects.store import ObjectStore
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.simulated.fixtures import full_record_every
from tests.kit.simulated.world import World, one_row, rows_of

SECONDS = 0.01


class CountingStore:
    """A store that counts its calls and delays those of one method; ``most`` is the largest number at the same time."""

    def __init__(self, objects: ObjectStore, method: str) -> None:
        self._objects, self._method = objects, method
        self.requests = objects.requests
        self.calls: Counter[tuple[str, str]] = Counter()
        self.before: Callable[[str, str], object] = lambda _, __: None
        self.most = self._inside = 0
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> object:
        def counted(*args: object) -> object:
            self.before(name, str(args[0]))
            with self._lock:
                self.calls[name, str(args[0])] += 1
                self._inside += 1
                self.most = max(self.most, self._inside)
            try:
                time.sleep(SECONDS if name == self._method else 0)
                return getattr(self._objects, name)(*args)
            finally:
                with self._lock:
                    self._inside -= 1

        return counted

    def times(self, method: str, kind: str) -> list[int]:
        """Return how often each object with a prefix was requested."""
        return [n for (called, name), n in self.calls.items() if called == method and name.startswith(kind)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint without batches."""
    return written_checkpoint(tmp_path / "checkpoint")


def grown(folder: Path, batches: int) -> World:
    """Return a query after ``batches`` batches on all its key-groups."""
    world = World(folder / "local", retained_versions=100)
    for version in range(batches):
        world.batch(version, rows_of(*((f"k{n}", version, version * 100 + n) for n in range(12))))
    return world


def seen_by(monkeypatch: pytest.MonkeyPatch, world: World, method: str) -> CountingStore:
    """Return the store that commands use from now on."""
    store = CountingStore(world.memory, method)
    monkeypatch.setattr(recovery, "open_store", lambda *_: store)
    return store


def damage(objects: ObjectStore, sequence: int) -> None:
    """Replace a record by other bytes."""
    objects.delete([paths.record_name(sequence)])
    objects.put_if_absent(paths.record_name(sequence), b"rotten")


def test_a_rollback_checks_each_object_once_and_several_at_a_time(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback checks each object once, and several at a time, because the newest record protects objects from
    deletes.
    """
    world = grown(tmp_path, 4)
    store = seen_by(monkeypatch, world, "exists")
    rollback(world.home.root, 2, str(checkpoint), execute=True)
    names = [name for called, name in store.calls if called == "exists" and not name.startswith(paths.LOG)]
    assert len(names) > 2
    assert {store.calls["exists", name] for name in names} == {1}
    assert store.most > 1, "the objects were checked one after the other"


@pytest.mark.parametrize("newest", ["whole", "damaged"])
def test_a_rollback_checks_again_if_the_newest_record_is_unreadable(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, newest: str
) -> None:
    """A rollback checks the objects again if the newest record is unreadable, because that record may have released
    objects.
    """
    world = grown(tmp_path, 4)
    tail = world.log().tail
    assert tail is not None
    store = seen_by(monkeypatch, world, "")
    lost = sorted(name for name in world.log().manifest_of(world.log().read(tail.sequence - 2)).object_names())[0]
    store.before = lambda called, _: world.memory.delete([lost]) if called == "put_if_absent" else None
    if newest == "whole":
        rollback(world.home.root, 1, str(checkpoint), execute=True)
        assert store.calls["exists", lost] == 1
        return
    damage(world.memory, tail.sequence)
    with pytest.raises(CorruptStateError, match="RIFFLE-0900"):
        rollback(world.home.root, 1, str(checkpoint), execute=True)
    assert not [*(checkpoint / "commits").iterdir()]


@pytest.mark.long
def test_adopt_reads_most_records_once_and_several_at_a_time(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find whether a query has ever run, `riffle adopt` reads all records, most of them once, several at a time."""
    world = grown(tmp_path, 3 * FULL_EVERY)
    (checkpoint / "metadata").write_text('{"id": "another"}')
    store = seen_by(monkeypatch, world, "get")
    assert adopt(world.home.root, str(checkpoint)).version == -1
    reads = store.times("get", paths.LOG)
    assert len(reads) == len(world.memory.list(paths.LOG)) > 2 * FULL_EVERY
    assert sum(reads) <= 1.25 * len(reads), "full records are not read again for each record that refers to them"
    assert store.most > 2


def test_a_rollback_to_the_previous_batch_reads_few_records(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback to the previous batch reads only the newest record, the target, their bases and the records before
    those.
    """
    full_record_every(8, monkeypatch)
    world = grown(tmp_path, 3 * 8)
    store = seen_by(monkeypatch, world, "")
    rollback(world.home.root, 3 * 8 - 2, str(checkpoint))
    assert len(store.times("get", paths.LOG)) <= 6 + 6


def test_a_batch_with_a_damaged_base_is_no_rollback_target(tmp_path: Path, checkpoint: Path) -> None:
    """A batch whose record has a damaged base is no target, and later batches that do not need the base are."""
    world = grown(tmp_path, 6)
    log = world.log()
    third = log.read(3)
    assert third.bases == (0, 2)
    damage(world.memory, 2)
    with pytest.raises(ConfigError, match="RIFFLE-0132"):
        rollback(world.home.root, third.version, str(checkpoint), execute=True)
    plan = rollback(world.home.root, third.version + 1, str(checkpoint), execute=True)
    assert plan.version == third.version + 1


def test_a_record_corrupted_in_transit_does_not_change_the_target(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that is corrupted in transit during any read does not change the target of a rollback."""
    world = grown(tmp_path, 4)
    rollback(world.home.root, 1, str(checkpoint), execute=True)
    world.start()
    world.batch(2, one_row(7))
    store, left = seen_by(monkeypatch, world, ""), 0

    def damaged(name: str, *range_of_bytes: int) -> bytes | None:
        nonlocal left
        data = world.memory.get(name, *range_of_bytes)
        left -= 1
        return data and data[:-1] if left == 0 else data

    monkeypatch.setattr(store, "get", damaged)
    log = Log(store, world.home.root)  # type: ignore[arg-type]
    tail = log.open()
    assert tail is not None
    for version in (2, 1, 0):
        target, damaged_read = rollback_targets.find_target(log, tail, version), 0
        while left <= 0:
            damaged_read += 1
            left = damaged_read
            assert rollback_targets.find_target(log, tail, version) == target, (
                f"batch {version}, damaged at read {damaged_read}"
            )
        assert damaged_read > 1
        left = 0
