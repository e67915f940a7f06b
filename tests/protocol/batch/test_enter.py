"""The driver runs, repeats or refuses each batch of Spark. Every refusal has its remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.errors import ConfigError, ConflictError
from riffle_spark.protocol.batch.enter import Decision, check_matches_stored_state, decide
from riffle_spark.protocol.batch.records import Stamp, first_record
from riffle_spark.protocol.ports import IncomingBatch
from riffle_spark.settings import Settings
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Head, Link
from riffle_spark.state.log.record import Record
from tests.kit.printed_commands import printed
from tests.kit.simulated.world import World, rows_of, totals
from tests.kit.state.faulty_store import Fault

ROOT = "s3://bucket/state"
TAIL = replace(first_record("query", 8, "key_group", Stamp("c", 0)), version=5, offsets="offsets-5", kind="batch")


def incoming(version: int, **changes: Any) -> IncomingBatch:
    """Return a batch as Spark hands it over."""
    return replace(IncomingBatch(version, "query", "run", f"offsets-{version}", None, 0, None), **changes)


def conflict(tail: Record | None, batch: IncomingBatch) -> ConflictError:
    """Return the error that refuses a batch."""
    with pytest.raises(ConflictError) as caught:
        decide(tail, batch, ROOT, Settings())
    assert caught.value.where == ROOT
    return caught.value


SPARKS = 'v1\n{"batchTimestampMs":1}\n{"t":{"0":5}}'
"""An entry of Spark's offset log."""


@pytest.mark.parametrize(
    ("stored", "before"), [(SPARKS, SPARKS), (SPARKS, SPARKS.replace(":1", ":2")), (None, SPARKS), (SPARKS, None)]
)
def test_the_next_batch_runs_if_state_and_checkpoint_offsets_match(stored: str | None, before: str | None) -> None:
    """The next batch runs if state and checkpoint have the same offsets, or if one of them is unknown. Other fields of
    the offset log are ignored.
    """
    assert decide(replace(TAIL, offsets=stored), incoming(6, offsets_before=before), ROOT, Settings()) is Decision.RUN


def test_the_next_batch_is_refused_if_last_offsets_differ() -> None:
    """The next batch is refused if state and checkpoint have different offsets of the last batch, because one of them
    is from a backup.
    """
    error = conflict(replace(TAIL, offsets=SPARKS), incoming(6, offsets_before=SPARKS.replace("5", "7")))
    assert error.id == "RIFFLE-0211"
    assert printed(error.remedy)[0][-2] == "5"


def test_the_last_committed_batch_is_skipped_as_a_repeat() -> None:
    """A batch with the id, query and offsets of the last committed batch is skipped."""
    assert decide(TAIL, incoming(5), ROOT, Settings()) is Decision.REPEAT


def test_a_repeat_is_found_after_an_upgrade_of_spark() -> None:
    """A batch is a repeat although another version of Spark writes the settings of its entry in another order. A batch
    with other offsets, watermark, time or settings is refused.
    """
    stored = 'v1\n{"batchWatermarkMs":1,"batchTimestampMs":2,"conf":{"a":"3","b":"4"}}\n{"t":{"0":5}}'
    tail = replace(TAIL, offsets=stored)
    upgraded = stored.replace('"a":"3","b":"4"', '"b":"4","a":"3"')
    assert decide(tail, incoming(5, offsets=upgraded), ROOT, Settings()) is Decision.REPEAT
    for number in "12345":
        changed = upgraded.replace(f":{number}", ":9").replace(f'"{number}"', '"9"')
        assert conflict(tail, incoming(5, offsets=changed)).id == "RIFFLE-0214"


@pytest.mark.parametrize(
    ("store", "delivers", "rows"), [("new", True, 1), ("old", False, 1), ("old", True, 1), ("new", True, 0)]
)
def test_a_repeat_with_sealed_output_and_no_sink_is_refused(store: str, delivers: bool, rows: int) -> None:
    """A repeat is refused if the committed batch has sealed output of a store that was renamed or has no sink any more.
    The next batch is accepted.
    """
    link = Link(Head(5, f"1-{5:032x}"), 0, 9, 0, rows)
    sealed = replace(TAIL, delivers_after_commit=True, outputs=(("old", link),))
    operators = [replace(totals(store), delivers=delivers)]
    for tail, decision in ((sealed, Decision.RUN), (replace(sealed, delivers_after_commit=False), Decision.REPEAT)):
        check_matches_stored_state(tail, Settings(key_groups=8), operators, ROOT, "", decision)
    if (store, delivers) == ("old", True) or not rows:
        check_matches_stored_state(sealed, Settings(key_groups=8), operators, ROOT, "", Decision.REPEAT)
        return
    with pytest.raises(ConflictError, match="RIFFLE-0217"):
        check_matches_stored_state(sealed, Settings(key_groups=8), operators, ROOT, "", Decision.REPEAT)


@pytest.mark.parametrize(("stored", "requested"), [("key_group", "hashed"), ("hashed", "partition")])
def test_the_remedy_for_another_dispatch_is_a_complete_command(stored: str, requested: str) -> None:
    """The remedy for another dispatch has a complete command. From key-group dispatch on it has `--partition-of`."""
    with pytest.raises(ConfigError, match="RIFFLE-0218") as caught:
        check_matches_stored_state(replace(TAIL, dispatch=stored), Settings(dispatch=requested, key_groups=8), [], ROOT)
    assert ("--partition-of" in caught.value.remedy) == (stored == "key_group")
    assert printed(caught.value.remedy)[0][0] == "dispatch"


def test_another_number_of_key_groups_is_refused() -> None:
    """Another number of key-groups is refused, because keys would be in other key-groups."""
    with pytest.raises(ConfigError, match="RIFFLE-0219"):
        check_matches_stored_state(TAIL, Settings(key_groups=16), [], ROOT)


def test_a_later_batch_on_an_empty_root_is_refused() -> None:
    """A later batch on an empty root is refused, because the root may be wrong. The remedy is an explicit start."""
    error = conflict(None, incoming(7))
    assert error.id == "RIFFLE-0209"
    assert printed(error.remedy)[0][0] == "adopt"
    assert "--empty" in error.remedy


@pytest.mark.parametrize("version", [0, 6])
def test_another_query_is_refused(version: int) -> None:
    """Another query is refused, whatever its batch. The remedy is to adopt the state or to use another root."""
    error = conflict(TAIL, incoming(version, query_id="another"))
    assert error.id == "RIFFLE-0210"
    assert "riffle adopt s3://bucket/state" in error.remedy


@pytest.mark.parametrize("query_id", ["", "fork of query"])
def test_state_without_a_query_is_refused_with_the_steps_that_bind_it(query_id: str) -> None:
    """The state of a fork or a loaded export has no query, so the error names none, and no checkpoint of one."""
    error = conflict(replace(TAIL, query_id=query_id), incoming(0))
    assert error.id == "RIFFLE-1784"
    assert "its checkpoint" not in error.remedy
    assert "riffle adopt s3://bucket/state" in error.remedy


@pytest.mark.parametrize("version", [7, 100])
def test_a_gap_is_refused(version: int) -> None:
    """A batch after a gap is refused. The remedy takes Spark's offsets back to the last batch."""
    error = conflict(TAIL, incoming(version))
    assert error.id == "RIFFLE-0212"
    assert printed(error.remedy)[0][-2] == "5"


def test_the_same_batch_with_other_input_is_refused() -> None:
    """The last batch with other offsets is refused, because the state has rows that the checkpoint does not know."""
    error = conflict(TAIL, incoming(5, offsets="other"))
    assert error.id == "RIFFLE-0214"
    assert printed(error.remedy)[0][-2] == "4"


@pytest.mark.parametrize("version", [0, 4])
def test_an_older_batch_is_refused(version: int) -> None:
    """An older batch is refused, because the checkpoint is older than the state. The remedy takes the state back."""
    error = conflict(TAIL, incoming(version))
    assert error.id == "RIFFLE-0215"
    assert printed(error.remedy)[0][-2] == str(version - 1)


@pytest.mark.parametrize(
    ("stored", "digest", "repeat"), [("d", "d", True), ("d", "e", False), (None, "d", False), (None, None, False)]
)
def test_the_row_digest_is_compared_if_offsets_are_unknown(
    stored: str | None, digest: str | None, repeat: bool
) -> None:
    """Without Spark's offset log, a repeat must have the digest of the committed rows. An unknown digest differs from
    all.
    """
    tail = replace(TAIL, offsets=None, input_digest=stored)
    repeated_batch = incoming(5, offsets=None, input_digest=digest)
    if repeat:
        assert decide(tail, repeated_batch, ROOT, Settings()) is Decision.REPEAT
    else:
        conflict(tail, repeated_batch)


def test_a_claim_keeps_the_offsets_of_the_last_batch(tmp_path: Path) -> None:
    """A claim keeps the offsets of the last batch, so that a restarted query recognises a repeat."""
    world = World(tmp_path, operators=[totals()])
    world.batch(0, rows_of(("a", 1, 0)))
    for _ in range(3):
        world.start()
        assert world.batch(0, rows_of(("a", 1, 0))).decision == "repeat"
        assert world.work.drained == 1
    assert [record.kind for record in _records(world)] == ["claim", "batch", "claim", "claim", "claim"]
    assert [record.epoch for record in _records(world)] == [1, 1, 2, 3, 4], "each claim has a new epoch (I4)"
    with pytest.raises(ConflictError, match="RIFFLE-0214"):
        world.batch(0, rows_of(("a", 1, 0)), offsets="other")


@pytest.mark.parametrize(
    ("version", "changes", "error"),
    [
        (1, {"query_id": "another"}, "RIFFLE-0210"),
        (3, {}, "RIFFLE-0212"),
        (0, {"offsets": "other"}, "RIFFLE-0215"),
        (1, {"offsets": "other"}, "RIFFLE-0214"),
    ],
)
def test_a_refused_batch_changes_nothing(tmp_path: Path, version: int, changes: dict[str, Any], error: str) -> None:
    """A refused batch writes no object and calls no sink. The correct batch still runs."""
    world = World(tmp_path, operators=[totals()])
    for done in range(2):
        world.batch(done, rows_of(("a", 1, 0)))
    world.start()
    before = world.memory.list("")
    with pytest.raises(ConflictError, match=error):
        world.batch(version, rows_of(("a", 1, 0)), **changes)
    assert world.memory.list("") == before
    assert world.batch(2, rows_of(("a", 1, 0))).decision == "run"


def test_every_batch_has_a_record_even_if_empty(tmp_path: Path) -> None:
    """Every batch has a record. The record of an empty batch changes only the batch id and the offsets."""
    world = World(tmp_path, operators=[totals()])
    for version in range(3):
        report = world.batch(version, rows_of())
        assert (report.decision, report.rows, report.slots_that_wrote) == ("run", 0, 0)
    assert [record.version for record in _records(world)] == [-1, 0, 1, 2]
    assert world.log().tail.offsets == "offsets-2"  # type: ignore[union-attr]
    assert not [name for name in world.memory.list("") if not name.startswith(paths.LOG)]


def _records(world: World) -> list[Record]:
    log = world.log()
    names = world.memory.list(paths.LOG)
    return [log.read(sequence) for sequence in range(len(names))]


def test_an_overwriting_object_store_is_refused_before_any_batch(world: World) -> None:
    """A store that overwrites objects is refused before a batch runs, because drivers would undo others' commits."""
    world.store.script(Fault("overwrites", times=None))
    with pytest.raises(ConfigError, match="RIFFLE-0459"):
        world.batch(0, rows_of(("a", 1, 0)))
    assert world.steps == []
    world.store.heal()
    world.start()
    world.batch(0, rows_of(("a", 1, 0)))
    assert world.state("totals") == {"a": (1, 1)}


@pytest.mark.parametrize("name", ["status.json", "status.html", "requests.json", "queries"])
def test_a_new_store_whose_folder_name_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    """A new store is refused if its folder would have the name of another object. An existing store continues."""
    world = World(tmp_path, operators=[totals(name)], root=f"file://{tmp_path}/state")
    with pytest.raises(ConfigError, match="RIFFLE-1471") as raised:
        world.batch(0, rows_of(("a", 1, 0)))
    assert "Rename the store" in raised.value.remedy
    assert world.log().tail is None
    schema = totals(name).schema.to_text()
    check_matches_stored_state(replace(TAIL, schemas={name: schema}), Settings(key_groups=8), [totals(name)], ROOT)
