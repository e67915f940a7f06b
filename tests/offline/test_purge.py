"""After a purge of keys no object and no local file contains them."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from riffle_spark import Stateful, aggregate, count, max_, transform_with_state
from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.offline import purge
from riffle_spark.offline.purge import purge_keys
from riffle_spark.offline.recovery import adopt, rollback
from riffle_spark.offline.state_edits import Editor, KeyChoice, delete_keys, set_value
from riffle_spark.offline.verify import verify
from riffle_spark.process.stages.distinct_rows import DistinctRows
from riffle_spark.process.types.stage_specs import DistinctSpec
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record, encode
from riffle_spark.state.objects.open import open_store
from riffle_spark.testing import Harness
from riffle_spark.testing.harness import Declared
from tests.kit.root_commands import run_command
from tests.kit.roots.key_search import find_files, find_objects, made_ids
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.simulated.world import World, rows_of
from tests.kit.state.everything import Everything

pytestmark = pytest.mark.usefixtures("short_cycles")

WHY = Editor("request 12", "ann", "laptop")
ROWS = pa.schema([("id", pa.binary()), ("n", pa.int64())])
IDS = pa.schema([("id", pa.binary())])


def aggregates() -> Declared:
    """Return an aggregate by id."""
    return Stateful("totals", "id", aggregate(visits=count(), most=max_("n")))


def distinct() -> Declared:
    """Return a deduplication by id."""
    return Stateful("totals", "id", DistinctRows(DistinctSpec("totals", IDS, ROWS, None, None)))


def processors() -> Declared:
    """Return a processor by id with all kinds of variables."""
    return transform_with_state(
        Everything("id"), key="id", output="id binary, shown string", output_mode="update", time_mode="ProcessingTime"
    )


KINDS = {"aggregate": aggregates, "distinct": distinct, "processor": processors}


def rows(ids: list[bytes], n: int = 1) -> pa.Table:
    """Return a row for each id."""
    return pa.table({"id": ids, "n": [n] * len(ids)}, schema=ROWS)


def tail_of(query: Harness) -> Record:
    """Return the newest record."""
    tail = Log(open_store(query.root), query.root).open()
    assert tail is not None
    return tail


def objects_with(query: Harness, ids: list[bytes], encryption_keys: str | None = None) -> set[str]:
    """Return the names of the objects that contain one of the ids."""
    return find_objects(query.root, ids, encryption_keys=encryption_keys)


def files_with(query: Harness, ids: list[bytes]) -> set[Path]:
    """Return the local files that contain one of the ids."""
    return find_files(query._folder / "copies", ids)


def local_dir(query: Harness) -> str:
    """Return the parent folder of the members' folders."""
    return str(query._folder / "copies")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sample("aggregate", "distinct")
def test_a_purge_removes_a_thousand_ids_from_objects_and_local_files(kind: str, tmp_path: Path) -> None:
    """A purge removes ids that have state, that were deleted before, and that only old versions have; others keep their
    state.
    """
    chance = random.Random(5)
    ids = made_ids(3_000)
    gone = ids[:1_000]
    batches = 2 if kind == "processor" else 5
    columns = ROWS if kind != "processor" else IDS
    with Harness(KINDS[kind](), columns, snapshot_chain_links=3) as query:
        feed = lambda some: query.feed(rows(some).select(columns.names))  # noqa: E731
        for _ in range(batches):
            feed(chance.sample(ids, 1_500))
        pq.write_table(pa.table({"id": ids[900:1_000]}), tmp_path / "earlier.parquet")
        store = next(iter(tail_of(query).schemas))
        delete_keys(query.root, store, KeyChoice(file=tmp_path / "earlier.parquet"), WHY, execute=True)
        query.restart()
        feed(ids[1_000:1_200])
        open_store(query.root).put_if_absent(paths.delta_name(2, f"1-{'0' * 32}"), b"orphan" + gone[0])
        assert {name.split("/")[0] for name in objects_with(query, gone)} == {"delta", store}
        assert files_with(query, gone)
        remaining = [row for row in readable(query) if row["id"] not in set(gone)]
        pq.write_table(pa.table({"id": gone}), tmp_path / "keys.parquet")
        choice = KeyChoice(file=tmp_path / "keys.parquet")
        dry = purge_keys(query.root, store, choice, WHY, local_dir=local_dir(query))
        assert objects_with(query, gone)
        plan = purge_keys(query.root, store, choice, WHY, local_dir=local_dir(query), execute=True)
        assert plan.steps == dry.steps
        assert not any("NOT REMOVED:" in step for step in plan.steps)
        assert objects_with(query, gone) == set()
        assert files_with(query, gone) == set()
        assert sorted(readable(query), key=repr) == sorted(remaining, key=repr)
        tail = tail_of(query)
        assert (tail.promised, tail.purged, tail.outputs) == (tail.sequence, tail.sequence, ())
        assert tail.edit["keys"] == 1_000
        query.restart()
        feed(ids[1_000:])
        assert objects_with(query, gone) == set()
        assert files_with(query, gone) == set()
        assert tail_of(query).purged == tail.purged
        assert verify(query.root).findings == ()
        if kind != "processor":
            assert tail_of(query).row_counts == {store: query.table().num_rows}


def readable(query: Harness) -> list[dict[str, Any]]:
    """Return all rows of the committed state."""
    return list(query.table().to_pylist())


def test_a_purge_removes_a_key_that_was_deleted_before() -> None:
    """A purge removes a key that was deleted before, because deltas of its key-group still contain it."""
    ids = made_ids(20)
    text = json.dumps({"base64": base64.b64encode(ids[0]).decode()})
    with Harness(aggregates(), ROWS) as query:
        query.feed(rows(ids))
        delete_keys(query.root, "totals", KeyChoice(text), WHY, execute=True)
        assert objects_with(query, ids[:1])
        steps = purge_keys(query.root, "totals", KeyChoice(text), WHY, execute=True).steps
        assert steps[0].startswith("remove 0 of 1 given keys")
        assert objects_with(query, ids[:1]) == set()
        assert objects_with(query, ids[1:2])


def test_an_unknown_row_count_stays_unknown_after_a_deletion() -> None:
    """If the log has no row count of a store, as in records of old versions, a deletion does not invent one."""
    with Harness(aggregates(), ROWS) as query:
        query.feed(rows([b"a", b"b"]))
        tail = tail_of(query)
        objects = open_store(query.root)
        objects.delete([paths.record_name(tail.sequence)])
        assert objects.put_if_absent(paths.record_name(tail.sequence), encode(replace(tail, row_counts={})))
        delete_keys(query.root, "totals", KeyChoice('{"base64": "YQ=="}'), WHY, execute=True)
        assert tail_of(query).row_counts == {}
        purge_keys(query.root, "totals", KeyChoice('{"base64": "Yg=="}'), WHY, execute=True)
        assert tail_of(query).row_counts == {}
        query.restart()
        assert query.state() == {}


def test_local_files_with_purged_keys_are_removed_at_the_next_claim() -> None:
    """Local files with purged keys on other machines are removed when an executor first claims its folder."""
    ids = made_ids(50)
    with Harness(aggregates(), ROWS) as query:
        query.feed(rows(ids))
        query.feed(rows(ids))
        text = json.dumps([{"base64": base64.b64encode(ids[3]).decode()}])
        purge_keys(query.root, "totals", KeyChoice(text), WHY, execute=True)
        assert files_with(query, ids[3:4])
        query.restart()
        query.feed(rows(ids[4:]))
        assert files_with(query, ids[3:4]) == set()
        assert files_with(query, ids[4:5])
        assert (ids[3],) not in query.state()
        query.feed(rows(ids))
        assert query.state()[(ids[3],)] == {"visits": 1, "most": 1}
        assert query.state()[(ids[4],)] == {"visits": 4, "most": 1}


def test_timers_of_other_keys_fire_after_a_purge() -> None:
    """Timers of other keys still fire, because the new snapshots have the time of the earliest timer."""
    ids = made_ids(8)
    text = json.dumps({"base64": base64.b64encode(ids[0]).decode()})
    with Harness(processors(), IDS, now_ms=100_000, key_groups=2) as query:
        query.feed(pa.table({"id": ids}, schema=IDS))
        purge_keys(query.root, next(iter(tail_of(query).schemas)), KeyChoice(text), WHY, execute=True)
        query.restart()
        query.advance(30)
        fired = {row["id"]: row["shown"] for row in query.feed()}
        assert fired == dict.fromkeys(ids[1:], "fired 130000")


def test_a_purge_keeps_encrypted_state_encrypted(tmp_path: Path) -> None:
    """Snapshots that a purge writes are encrypted and contain no purged ids."""
    file = tmp_path / "keys.txt"
    file.write_text("a = " + "AAAA" * 10 + "AAA=\n")
    file.chmod(0o600)
    keys = f"file:{file}"
    ids = made_ids(50)
    with Harness(aggregates(), ROWS, encryption_keys=keys, snapshot_chain_links=3) as query:
        for _ in range(3):
            query.feed(rows(ids))
        pq.write_table(pa.table({"id": ids[:10]}), tmp_path / "keys.parquet")
        choice = KeyChoice(file=tmp_path / "keys.parquet")
        purge_keys(query.root, "totals", choice, WHY, encryption_keys=keys, local_dir=local_dir(query), execute=True)
        assert objects_with(query, ids[:10], keys) == set()
        assert objects_with(query, ids[10:11], keys)
        objects = open_store(query.root)
        assert not any(ids[10] in (objects.get(name) or b"") for name in objects.list(""))
        query.restart()
        query.feed(rows(ids))
        assert query.state()[(ids[10],)]["visits"] == 4  # type: ignore[index]
        assert query.state()[(ids[0],)]["visits"] == 1  # type: ignore[index]


def test_a_rollback_to_before_a_purge_is_refused(tmp_path: Path) -> None:
    """A rollback to a batch or record before a purge is refused."""
    with Harness(aggregates(), ROWS) as query:
        query.feed(rows([b"a", b"b"]))
        query.feed(rows([b"a", b"b"]))
        before = tail_of(query).sequence
        purge_keys(query.root, "totals", KeyChoice('{"base64": "YQ=="}'), WHY, execute=True)
        checkpoint = str(written_checkpoint(tmp_path / "checkpoint", 2))
        for target in (0, f"record:{before}"):
            with pytest.raises((ConfigError, CorruptStateError), match="retained"):
                rollback(query.root, target, checkpoint, execute=True)
        query.restart()
        query.feed(rows([b"b"]))
        assert query.state() == {(b"b",): {"visits": 3, "most": 1}}


def test_an_interrupted_purge_is_completed_by_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge that died before its deletes is completed by the same command."""
    ids = made_ids(20)
    text = json.dumps({"base64": base64.b64encode(ids[0]).decode()})

    def stop(*_: object) -> list[str]:
        raise KeyboardInterrupt

    with Harness(aggregates(), ROWS) as query:
        query.feed(rows(ids))
        with monkeypatch.context() as patched:
            patched.setattr(purge, "_delete", stop)
            with pytest.raises(KeyboardInterrupt):
                purge_keys(query.root, "totals", KeyChoice(text), WHY, execute=True)
        assert objects_with(query, ids[:1])
        purge_keys(query.root, "totals", KeyChoice(text), WHY, execute=True)
        assert objects_with(query, ids[:1]) == set()
        query.restart()
        query.feed(rows(ids[1:]))
        assert len(query.state()) == 19


def test_sealed_output_is_deleted_only_after_confirmed_delivery(tmp_path: Path) -> None:
    """Sealed output rows are deleted only after the checkpoint or the operator confirms their delivery."""
    ids = made_ids(5)
    text = json.dumps({"base64": base64.b64encode(ids[0]).decode()})
    with Harness(aggregates(), ROWS, deliver_after_commit=True) as query:
        query.feed(rows(ids))
        with pytest.raises(ConfigError, match="may be undelivered"):
            purge_keys(query.root, "totals", KeyChoice(text), WHY, execute=True)
        behind = written_checkpoint(tmp_path / "behind", 0)
        with pytest.raises(ConfigError, match="may be undelivered"):
            purge_keys(query.root, "totals", KeyChoice(text), WHY, delivered=str(behind), execute=True)
        ahead = written_checkpoint(tmp_path / "ahead", 1)
        purge_keys(query.root, "totals", KeyChoice(text), WHY, delivered=str(ahead), execute=True)
        assert objects_with(query, ids[:1]) == set()
        query.restart()
        assert len(query.feed(rows(ids[1:]))) == 4


def test_a_purge_removes_requests_and_names_what_it_cannot_reach() -> None:
    """A purge removes requests of operators, which may have keys, and names versions that only S3 can delete."""
    ids = made_ids(2)
    with Harness(aggregates(), ROWS) as query:
        query.feed(rows(ids))
        objects = open_store(query.root)
        assert objects.put_if_absent(paths.MAILBOX, b"a request with " + ids[0])
        text = json.dumps({"base64": base64.b64encode(ids[0]).decode()})
        steps = purge_keys(query.root, "totals", KeyChoice(text), WHY, execute=True).steps
        assert not objects.exists(paths.MAILBOX)
    assert not any("noncurrent versions" in step for step in steps)
    assert any("noncurrent versions of objects" in step for step in purge._outside("s3://bucket/state"))


def test_the_purge_command_removes_unfinished_files(tmp_path: Path) -> None:
    """`riffle state delete --purge` also removes unfinished files of the root, and names what it cannot remove."""
    from tests.kit.simulated.world import World, one_row

    world = World(tmp_path / "local", root=f"file://{tmp_path}/state")
    for version in range(3):
        world.batch(version, one_row(version, "secret-key"))

    unfinished = tmp_path / "state" / ".unfinished"
    unfinished.mkdir(exist_ok=True)
    (unfinished / "x").write_bytes(b"secret-key")
    arguments = (world.home.root, "--store", "totals", "--key", "secret-key", "--reason", "r", "--purge")
    assert run_command("state", "delete", *arguments, "--variable", "x").exit_code == 2
    done = run_command("state", "delete", *arguments, "--execute")
    assert done.exit_code == 0, done.output
    assert "out of reach" in done.output
    for path in (tmp_path / "state").rglob("*"):
        assert not path.is_file() or b"secret-key" not in path.read_bytes()


def test_adopted_state_is_changed_before_the_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adopted state, whose batch is -1, is changed and then purged. An encrypted query continues with it."""
    monkeypatch.setenv("KEYS", f"a={base64.b64encode(bytes(32)).decode()}")
    keys = "env:KEYS"
    world = World(tmp_path / "copies", encryption_keys=keys)
    world.batch(0, rows_of(("a", 1, 0), ("b", 2, 1)))
    adopt(world.home.root, str(written_checkpoint(tmp_path / "new", 0, "another")), execute=True)
    set_value(world.home.root, "totals", "a", '{"total": 40}', WHY, encryption_keys=keys, execute=True)
    world.query_id = "another"
    world.start()
    for version in range(2):
        world.batch(version, rows_of(("a", 1, version)))
    assert world.state("totals") == {"a": (3, 42), "b": (1, 2)}
    adopt(world.home.root, str(written_checkpoint(tmp_path / "third", 0, "third")), execute=True)
    set_value(world.home.root, "totals", "a", '{"total": 1}', WHY, encryption_keys=keys, execute=True)
    purge_keys(world.home.root, "totals", KeyChoice("a"), WHY, encryption_keys=keys, execute=True)
    assert world.memory.list("delta/") == []
    assert world.state("totals") == {"b": (1, 2)}
