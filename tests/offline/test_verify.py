"""`riffle verify` finds every kind of damage of every kind of object."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from riffle_spark.console.main import main
from riffle_spark.errors import ConfigError, ConflictError, CorruptStateError, RiffleError
from riffle_spark.offline.recovery import adopt, rollback
from riffle_spark.offline.verify import verify
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.record import encode
from riffle_spark.state.objects.open import open_store
from tests.kit.printed_commands import printed
from tests.kit.roots.damaged_root import (
    BATCHES,
    FULL_EVERY,
    KEYS,
    checkpoint_of,
    damage,
    files_of,
    flipped,
    grown,
    held_at,
    listed_so,
    newer,
    newest_without,
    object_of,
    put_back,
    root_of,
    world_of,
)
from tests.kit.simulated.fixtures import full_record_every
from tests.kit.simulated.world import Crash, World, one_row, totals, two_stores


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folders of two similar queries with their checkpoints, snapshots and several full records."""
    return grown(tmp_path_factory.mktemp("one"), 0), grown(tmp_path_factory.mktemp("other"), 1)


@pytest.fixture
def first_query(stock: tuple[Path, Path], tmp_path: Path) -> World:
    """Return the first query with its root and checkpoint, on machines without local copies."""
    for name in ("state", "checkpoint"):
        shutil.copytree(stock[0] / name, tmp_path / name)
    return world_of(tmp_path)


def refusal_of(world: World, version: int) -> RiffleError | None:
    """Start the query, run its next batch, and return the error or None."""
    world.start()
    try:
        world.batch(version, pa.concat_tables([one_row(100, key) for key in KEYS]))
    except RiffleError as error:
        return error
    return None


def test_an_undamaged_root_gives_no_finding(first_query: World) -> None:
    """An undamaged root gives no finding, and `verify` reads all objects and changes none."""
    before = files_of(root_of(first_query).parent)
    report = verify(first_query.home.root, checkpoint_of(first_query))
    assert report.findings == ()
    assert report.is_whole
    assert (report.records, report.version) == (BATCHES + 1, BATCHES - 1)
    assert report.checked_bytes > 0
    assert files_of(root_of(first_query).parent) == before


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("record", "missing"),
        ("record", "from a newer format"),
        ("full record", "from another root"),
        ("full record", "empty"),
        ("record between", "missing"),
        ("record between", "truncated"),
        ("delta", "missing"),
        ("delta", "flipped"),
        ("snapshot", "from another root"),
        ("snapshot", "from a newer format"),
    ],
)
@pytest.mark.sample(step=2)
def test_verify_names_a_damaged_object_and_a_remedy_that_works(
    first_query: World, stock: tuple[Path, Path], kind: str, way: str
) -> None:
    """`verify` names a damaged object and its effect, and the query is correct or refused with a remedy that works."""
    name, is_unread = object_of(first_query, kind), kind == "record between" and way != "missing"
    newest = newest_without(first_query, name)
    good = damage(first_query, name, way, stock[1])
    damaged = files_of(root_of(first_query).parent)
    report = verify(first_query.home.root, checkpoint_of(first_query))
    assert not report.is_whole
    texts = [str(finding) for finding in report.findings]
    is_newest_gone = (kind, way) == ("record", "missing")
    assert any((checkpoint_of(first_query) if is_newest_gone else name) in text for text in texts), texts
    assert all("What to do: " in text for text in texts)
    assert [printed(text) for text in texts]
    assert any(finding.level == "state" for finding in report.findings) != is_unread, texts
    assert files_of(root_of(first_query).parent) == damaged
    bad = put_back(first_query, good)
    assert verify(first_query.home.root, checkpoint_of(first_query)).is_whole
    put_back(first_query, bad)
    error = refusal_of(first_query, BATCHES)
    assert (error is None) == is_unread, error
    if error is None:
        assert first_query.state("totals") == held_at(BATCHES - 1, 100)
        return
    assert isinstance(error, CorruptStateError | ConflictError), error
    assert error.remedy
    assert name.rpartition("/")[2] in str(error) or isinstance(error, ConflictError), error
    if newest + 1 < BATCHES - 1:
        assert not leads_to_whole_state(first_query, newest + 1)
    if report.way_back:
        assert printed(report.way_back)[0][-2] == str(newest), "the way back names the newest intact batch"
    assert report.way_back or kind == "record"
    assert leads_to_whole_state(first_query, newest)
    assert refusal_of(first_query, newest + 1) is None
    assert first_query.state("totals") == held_at(newest, 100)


def test_verify_finds_missing_objects_of_each_store(tmp_path: Path) -> None:
    """`verify` finds each missing object of a query with two stores."""
    query = World(tmp_path / "local", operators=two_stores(), snapshot_chain_links=2, retained_versions=100)
    for version in range(4):
        query.batch(version, pa.concat_tables([one_row(version, key) for key in KEYS]))
    assert verify(query.home.root).is_whole
    names = query.log().manifest.object_names()
    assert {name.partition("/")[0] for name in names} >= {"totals", "tails"}
    for name in names:
        data = query.memory.get(name) or b""
        query.memory.delete([name])
        found_at = [finding.where for finding in verify(query.home.root).findings]
        assert any(name in where for where in found_at), (name, found_at)
        query.memory.put_if_absent(name, data)
    assert verify(query.home.root).is_whole


def leads_to_whole_state(world: World, target: int) -> bool:
    """Roll back to a batch. Return whether the rollback succeeded and the state is complete."""
    try:
        rollback(world.home.root, target, checkpoint_of(world), execute=True)
    except (ConfigError, CorruptStateError):
        return False
    return not any(finding.level == "state" for finding in verify(world.home.root, checkpoint_of(world)).findings)


def test_a_damaged_second_newest_record_is_damage_of_the_newest_state(
    first_query: World, stock: tuple[Path, Path]
) -> None:
    """A damaged second newest record refuses a start, because the newest one has its digest."""
    name = paths.record_name(BATCHES - 1)
    good = damage(first_query, name, "flipped", stock[1])
    assert ("state", name) in [(f.level, f.where) for f in verify(first_query.home.root).findings]
    assert isinstance(refusal_of(first_query, BATCHES), CorruptStateError)
    put_back(first_query, good)
    assert verify(first_query.home.root).is_whole


def test_objects_of_a_newer_driver_than_the_log_has_are_noted(first_query: World) -> None:
    """An object that a newer driver wrote is a note, because the newest records may have been lost."""
    name = paths.delta_name(BATCHES, f"99-{'0' * 32}")
    assert first_query.memory.put_if_absent(name, b"rows")
    (finding,) = verify(first_query.home.root).findings
    assert (finding.level, finding.where) == ("note", name)
    assert "of epoch 99" in finding.problem
    assert "restore log/" in finding.remedy


def test_a_record_far_beyond_the_log_blocks_rollbacks_until_removed(first_query: World) -> None:
    """A record with a number far beyond the log is the only finding, and no rollback works until it is removed."""
    far = root_of(first_query) / paths.record_name(10**20 - 1)
    shutil.copy(root_of(first_query) / paths.record_name(0), far)
    report = verify(first_query.home.root, checkpoint_of(first_query))
    (finding,) = report.findings
    assert (finding.level, finding.where, report.way_back) == ("state", paths.record_name(10**20 - 1), None)
    with pytest.raises(CorruptStateError, match="RIFFLE-0413"):
        rollback(first_query.home.root, BATCHES - 1, checkpoint_of(first_query), execute=True)
    far.unlink()
    assert verify(first_query.home.root, checkpoint_of(first_query)).is_whole


def check_takes_over(remedy: str) -> None:
    """Check that a remedy has all steps: read the offsets, start the query there, then adopt."""
    assert [("--execute" in arguments, arguments[0]) for arguments in printed(remedy)] == [
        (False, "adopt"),
        (True, "adopt"),
    ]
    assert "startingOffsets" in remedy


def test_a_lost_or_new_checkpoint_is_reported_with_adoption_steps(first_query: World) -> None:
    """A lost or new checkpoint is reported with the steps to adopt the state, and these work."""
    shutil.rmtree(checkpoint_of(first_query))
    (finding,) = verify(first_query.home.root, checkpoint_of(first_query)).findings
    check_takes_over(finding.remedy)
    for name in ("offsets", "commits"):
        (Path(checkpoint_of(first_query)) / name).mkdir(parents=True)
    (Path(checkpoint_of(first_query)) / "metadata").write_text('{"id": "new"}')
    (finding,) = verify(first_query.home.root, checkpoint_of(first_query)).findings
    check_takes_over(finding.remedy)
    first_query.query_id = "new"
    refusal = refusal_of(first_query, 0)
    assert isinstance(refusal, ConflictError)
    check_takes_over(refusal.remedy)
    adopt(first_query.home.root, checkpoint_of(first_query), execute=True)
    assert verify(first_query.home.root, checkpoint_of(first_query)).is_whole
    assert refusal_of(first_query, 0) is None
    assert first_query.state("totals") == held_at(BATCHES - 1, 100)


def test_a_lost_root_is_reported_with_the_command_to_start_empty(first_query: World) -> None:
    """A lost root is reported with the command to start without state, and this works."""
    shutil.rmtree(root_of(first_query))
    (finding,) = verify(first_query.home.root, checkpoint_of(first_query)).findings
    assert "--empty" in finding.remedy
    assert printed(finding.remedy)
    error = refusal_of(first_query, BATCHES)
    assert isinstance(error, ConflictError)
    assert "--empty" in printed(error.remedy)[0]
    adopt(first_query.home.root, checkpoint_of(first_query), empty=True, key_groups=8, execute=True)
    assert verify(first_query.home.root, checkpoint_of(first_query)).is_whole
    assert refusal_of(first_query, BATCHES) is None
    assert first_query.state("totals") == held_at(-1, 100)


def test_objects_without_a_log_are_reported(first_query: World, tmp_path: Path) -> None:
    """Objects without a log are reported, and starting without state works after they are moved away."""
    shutil.rmtree(root_of(first_query) / "log")
    (finding,) = verify(first_query.home.root, checkpoint_of(first_query)).findings
    with pytest.raises(ConfigError, match="RIFFLE-0411"):
        adopt(first_query.home.root, checkpoint_of(first_query), empty=True, key_groups=8, execute=True)
    assert "--empty" in printed(finding.remedy)[0]
    root_of(first_query).rename(tmp_path / "left")
    adopt(first_query.home.root, checkpoint_of(first_query), empty=True, key_groups=8, execute=True)
    assert refusal_of(first_query, BATCHES) is None
    assert first_query.state("totals") == held_at(-1, 100)


@pytest.mark.parametrize("older", ["state", "checkpoint"])
def test_state_and_checkpoint_of_different_batches_are_reported(first_query: World, older: str) -> None:
    """State and checkpoint of different batches are reported, and a rollback makes them agree."""
    batch_left = BATCHES - 4
    if older == "state":
        for sequence in range(batch_left + 2, BATCHES + 1):
            (root_of(first_query) / paths.record_name(sequence)).unlink()
    else:
        for name in ("offsets", "commits"):
            for batch in range(batch_left + 1, BATCHES):
                (Path(checkpoint_of(first_query)) / name / str(batch)).unlink()
    report = verify(first_query.home.root, checkpoint_of(first_query))
    assert [f.where for f in report.findings if f.level == "state"] == [checkpoint_of(first_query)]
    next_batch = BATCHES if older == "state" else batch_left + 1
    assert isinstance(refusal_of(first_query, next_batch), ConflictError)
    rollback(first_query.home.root, batch_left, checkpoint_of(first_query), execute=True)
    assert verify(first_query.home.root, checkpoint_of(first_query)).is_whole
    assert refusal_of(first_query, batch_left + 1) is None
    assert first_query.state("totals") == held_at(batch_left, 100)


@pytest.mark.parametrize("change", [flipped, newer])
def test_damaged_undelivered_output_is_found_and_not_delivered(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    """Damaged output that is not delivered yet is found, and the driver does not deliver it."""
    world = world_of(tmp_path, deliver_after_commit=True)
    for version in range(3):
        world.batch(version, one_row(version))
    world.crash_at = "after record"
    with pytest.raises(Crash):
        world.batch(3, one_row(3))
    tail = world.log().tail
    assert tail is not None
    link = dict(tail.outputs)["totals"]
    data = (root_of(world) / link.object).read_bytes()
    part = slice(link.start, link.start + link.length)
    good = put_back(world, {link.object: data[: part.start] + change(data[part]) + data[part.stop :]})
    (finding,) = verify(world.home.root).findings
    assert (finding.level, finding.where.startswith(link.object)) == ("state", True)
    other = world_of(tmp_path / "other", root=world.home.root, deliver_after_commit=True)
    with pytest.raises(CorruptStateError, match=link.object):
        other.batch(3, one_row(3))
    assert other.sinks["totals"].by_id == {}
    put_back(world, good)
    assert verify(world.home.root).is_whole
    other.start()
    assert other.batch(3, one_row(3)).decision == "repeat"
    assert [rows.to_pylist() for rows in other.sinks["totals"].by_id.values()] == [[{"k": "a", "count": 4, "total": 6}]]


def test_verify_names_damage_of_an_encrypted_root(tmp_path: Path) -> None:
    """Damage of an encrypted root is named for each kind of part, and missing keys are reported with counts."""
    (tmp_path / "keys").write_text(f"a = {'A' * 43}=\n")
    setting = f"file:{tmp_path}/keys"
    world = world_of(tmp_path, encryption_keys=setting)
    for version in range(12):
        world.batch(version, one_row(version, KEYS[version % 2]))
    whole = verify(world.home.root, encryption_keys=setting)
    assert whole.is_whole
    for kind in ("delta", "snapshot"):
        name = object_of(world, kind)
        data = (root_of(world) / name).read_bytes()
        for bad in (flipped(data), data[:-9], b"", None):
            good = put_back(world, {name: bad})
            findings = verify(world.home.root, encryption_keys=setting).findings
            assert {f.where.partition("[")[0] for f in findings} == {name}
            put_back(world, good)
        good = listed_so(world, name, flipped)
        findings = verify(world.home.root, encryption_keys=setting).findings
        assert name in {f.where.partition("[")[0] for f in findings if f.level == "state"}
        put_back(world, good)
    assert verify(world.home.root, encryption_keys=setting) == whole
    (tmp_path / "keys").write_text(f"b = {'B' * 43}=\n")
    findings = verify(world.home.root, encryption_keys=setting).findings
    assert {f.level for f in findings} == {"unread"}
    assert all("'a'" in f.problem for f in findings)
    counts = [
        re.search(r" (\d+) (snapshots|parts of deltas) that (the state|only a rollback) needs", f.problem)
        for f in findings
    ]
    assert len({match[0] for match in counts if match}) == len(findings) <= 4
    assert sum(int(match[1]) for match in counts if match) > 8


@pytest.mark.parametrize(("gone", "level"), [(3, "rollback"), (FULL_EVERY, "rollback"), (FULL_EVERY + 1, "state")])
def test_missing_old_records_are_reported_with_what_they_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: int, level: str
) -> None:
    """Missing old records that are promised harm a rollback, and a missing full record of the newest one harms the
    state.
    """
    full_record_every(FULL_EVERY, monkeypatch)
    world = World(tmp_path, operators=[totals()], retained_versions=100)
    for version in range(FULL_EVERY + 4):
        world.batch(version, one_row(1))
    world.memory.delete([paths.record_name(sequence) for sequence in range(gone)])
    levels = {finding.where: finding.level for finding in verify(world.home.root).findings}
    assert levels.keys() == {paths.record_name(sequence) for sequence in range(gone)}
    assert levels[paths.record_name(gone - 1)] == level
    assert levels[paths.record_name(0)] == "rollback"


@pytest.mark.usefixtures("short_cycles")
def test_records_with_low_or_far_numbers_are_reported(tmp_path: Path) -> None:
    """A record that reappears below the log is a note, and a record with a far number is damage."""
    world = World(tmp_path, operators=[totals()], retained_versions=2)
    for version in range(12):
        world.batch(version, one_row(1))
    assert paths.record_name(2) not in world.memory.list(paths.LOG)
    tail = world.log().tail
    assert tail is not None
    other = replace(tail, sequence=2, full=2, between=(), log_id="another")
    world.memory.put_if_absent(paths.record_name(2), encode(other))
    (finding,) = verify(world.home.root).findings
    assert (finding.level, finding.where) == ("note", paths.record_name(2))
    far = f"{paths.LOG}{'9' * 20}"
    world.memory.put_if_absent(far, b"nothing")
    world.memory.put_if_absent(paths.record_name(2 * 10**9), b"nothing")
    findings = verify(world.home.root).findings
    assert {f.where for f in findings if f.level == "state"} >= {far}
    assert len(findings) < 300


def test_a_record_with_a_far_promise_is_reported_without_enumeration(tmp_path: Path) -> None:
    """A record that promises records far before it is reported without enumerating all of them."""
    world = World(tmp_path)
    world.batch(0, one_row(1))
    tail = world.log().tail
    assert tail is not None
    for far in (20_000, 10**18):
        root = f"memory://{tmp_path.name}-{far}"
        damaged = encode(replace(tail, sequence=far, full=far, between=(), promised=0))
        open_store(root).put_if_absent(paths.record_name(far), damaged)
        report = verify(root)
        assert {finding.level for finding in report.findings} == {"state", "rollback"}, "all its objects are missing"
        assert (report.records, report.way_back) == (1, None)
        assert len(report.findings) < 200


def test_a_folder_with_other_files_is_reported_as_no_root(tmp_path: Path) -> None:
    """A folder with other files is reported once as no riffle root."""
    for number in range(9):
        (tmp_path / f"report-{number}.csv").write_text("1,2\n")
    result = CliRunner().invoke(main, ["verify", f"file:{tmp_path}"])
    assert (result.exit_code, result.output.count("not a riffle root"), result.output.count(".csv")) == (1, 1, 0)


def test_verify_decodes_parts_whose_checksum_is_right(first_query: World) -> None:
    """`verify` decodes a part even if its checksum is right, and finds rows that the log does not list."""
    log = first_query.log()
    (store, key_group), entry = next((a, e) for a, e in log.manifest.entries.items() if e.snapshot)
    assert entry.snapshot is not None
    name = paths.snapshot_name(store, key_group, entry.snapshot.id)
    assert log.tail is not None
    for data in (part_codec.encode(pa.table({"k": ["a", "b", "c"]})), b"no part at all"):
        (root_of(first_query) / name).write_bytes(data)
        snapshot = entry.snapshot._replace(checksum=part_codec.checksum(data), length=len(data))
        records = {address: replace(entry, snapshot=snapshot) if address == (store, key_group) else other
                   for address, other in log.manifest.entries.items()}  # fmt: skip
        record = replace(log.tail, entries=records, full=log.tail.sequence, between=())
        (root_of(first_query) / paths.record_name(log.tail.sequence)).write_bytes(encode(record))
        assert [f.where for f in verify(first_query.home.root).findings if f.level == "state"] == [name]


def test_the_verify_command_exits_with_1_if_it_finds_damage(first_query: World) -> None:
    """The command exits with 1 if it finds damage, and its text and JSON name the object."""
    arguments = ["verify", first_query.home.root, "--checkpoint", checkpoint_of(first_query)]
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.output.endswith(" No problems found.\n")) == (0, True)
    name = object_of(first_query, "delta")
    (root_of(first_query) / name).unlink()
    done = CliRunner().invoke(main, [*arguments, "--json"])
    assert done.exit_code == 1
    assert name in {finding["where"] for finding in json.loads(done.output)["findings"]}


WRONG = [
    ["rollback", "--to", "record:999"],
    ["adopt", "--emtpy"],
    ["dispatch", "--to", "key_group", "--key-groups", "0"],
    ["rollback", "--to", "3", "--checkpoint", "/nowhere"],
    ["adopt", "file:///nowhere/at/all"],
    ["verify", "--execute"],
    ["keys", "--rewrite"],
]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_wrong_arguments_change_no_file(first_query: World, words: list[str]) -> None:
    """Wrong arguments change no file and give an exit code other than 0, even with ``--execute``."""
    before = files_of(root_of(first_query).parent)
    arguments: list[str] = []
    if words[0] != "verify" and not any("://" in word for word in words):
        arguments.append(first_query.home.root)
    if words[0] in ("rollback", "adopt") and "--checkpoint" not in words:
        arguments += ["--checkpoint", checkpoint_of(first_query)]
    done = CliRunner().invoke(main, [*words, *arguments, *(["--execute"] if "--execute" not in words else [])])
    assert done.exit_code != 0, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert files_of(root_of(first_query).parent) == before
