"""A store that was absent in some batches lacks their rows. It can return only if `accept` names it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.errors import ConflictError
from riffle_spark.offline.export import export_state
from riffle_spark.offline.recovery import adopt, rollback
from riffle_spark.offline.verify import verify
from riffle_spark.process.merging.accumulators import Accumulator
from riffle_spark.process.merging.aggregates import aggregate, max_, sum_
from riffle_spark.protocol.batch.acceptance import acceptance_warnings
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.settings import Settings
from riffle_spark.state.log.record import Record
from riffle_spark.testing import SimSink
from tests.kit.simulated.world import ROWS, World, one_row, rows_of, tails, totals, two_stores

Without = Callable[[], list[Operator]]
WITHOUT: dict[str, Without] = {
    "not durable": lambda: [replace(totals(), durable=False), tails()],
    "left out": lambda: [tails()],
    "under another name": lambda: [totals("sums"), tails()],
}
"""The operators of a job in whose batches store ``totals`` gets no rows."""


def tail_of(world: World) -> Record:
    """Return the newest record."""
    tail = world.log().tail
    assert tail is not None
    return tail


def restarted(world: World, operators: list[Operator], **changes: object) -> None:
    """Start the query again with other operators and settings."""
    world.operators = operators
    for operator in operators:
        world.sinks.setdefault(operator.store, SimSink())
    world.settings = Settings(**{**world.settings.given(), **changes})  # type: ignore[arg-type]
    world.start()


def with_a_gap(tmp_path: Path, without: Without, **settings: Any) -> World:
    """Return a query that ran batches 0 to 3 with store ``totals``, and batches 4 to 6 without it."""
    world = World(tmp_path, operators=two_stores(), **settings)
    for version in range(4):
        world.batch(version, one_row(1))
    restarted(world, without())
    for version in range(4, 7):
        world.batch(version, one_row(1))
    return world


def checkpoint_in(folder: Path, query_id: str, batches: int) -> str:
    """Return the Spark checkpoint of a query with the given number of committed batches."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for batch in range(batches):
        (folder / "offsets" / str(batch)).write_text(f"offsets-{batch}")
        (folder / "commits" / str(batch)).write_text("v1\n{}")
    (folder / "metadata").write_text(json.dumps({"id": query_id}))
    return str(folder)


@pytest.mark.parametrize("without", ["not durable", "left out"])
def test_a_store_that_lacks_batches_is_refused(without: str, tmp_path: Path) -> None:
    """The error names the store, nothing is written, and the job without the store continues."""
    world = with_a_gap(tmp_path, WITHOUT[without])
    restarted(world, two_stores())
    before = world.memory.list("")
    with pytest.raises(ConflictError, match="RIFFLE-0221") as caught:
        world.batch(7, one_row(1))
    assert "accept = 'totals'" in caught.value.remedy
    assert world.memory.list("") == before
    restarted(world, WITHOUT[without]())
    assert world.batch(7, one_row(1)).decision == "run"


@pytest.mark.parametrize(("without", "lost"), [("not durable", False), ("left out", True)])
def test_an_accepted_store_continues_with_its_earlier_batches(without: str, lost: bool, tmp_path: Path) -> None:
    """An accepted store continues with its own earlier batches, with one warning."""
    world = with_a_gap(tmp_path, WITHOUT[without])
    if lost:
        for executor in ("1", "2"):
            world.cluster.lose(executor, disk=True)
        world.cluster.add("3")
    restarted(world, two_stores(), accept=["totals"])
    (store_warning,) = (line for line in world.batch(7, one_row(1)).warnings if "totals" in line)
    assert store_warning.startswith("[RIFFLE-0812] Store 'totals' continues from batch 3")
    assert world.state("totals") == {"a": (5, 5)}
    assert "totals" not in tail_of(world).stale_stores
    restarted(world, two_stores(), accept=[])
    assert world.batch(8, one_row(1)).warnings == ()
    assert world.state("totals") == {"a": (6, 6)}


@pytest.mark.parametrize("without", WITHOUT)
def test_omitting_a_store_is_a_warning_once(without: str, tmp_path: Path) -> None:
    """The first batch without a store has a warning with the store and the batch to return to."""
    world = World(tmp_path, operators=two_stores())
    world.batch(0, one_row(1))
    restarted(world, WITHOUT[without]())
    (store_warning,) = world.batch(1, one_row(1)).warnings
    assert "totals" in store_warning
    assert "batch 0 (riffle rollback)" in store_warning
    assert world.batch(2, one_row(1)).warnings == ()


def test_a_store_without_rows_lacks_no_batches(tmp_path: Path) -> None:
    """Batches without rows, or without rows of some keys, leave every store complete."""
    world = World(tmp_path, operators=two_stores())
    world.batch(0, one_row(1))
    for version in range(1, 4):
        world.batch(version, rows_of())
    world.batch(4, one_row(1, key="another"))
    restarted(world, two_stores())
    assert world.batch(5, one_row(1)).warnings == ()
    assert tail_of(world).stale_stores == {}
    assert world.state("totals")["a"] == (2, 2)


def test_a_new_store_lacks_no_batches(tmp_path: Path) -> None:
    """A new store is complete from its first batch on."""
    world = World(tmp_path, operators=[tails()])
    world.batch(0, one_row(1))
    restarted(world, [tails(), totals()])
    for version in (1, 2):
        world.batch(version, one_row(1))
        restarted(world, [tails(), totals()])
    assert world.state("totals") == {"a": (2, 2)}


def test_a_cache_never_lacks_a_batch(tmp_path: Path) -> None:
    """A cache can be removed and added again, because it has no state in the root."""
    cache = [replace(totals(), durable=False), tails()]
    world = World(tmp_path, operators=cache)
    for version, operators in enumerate(([tails()], cache, [tails()], cache)):
        world.batch(version, one_row(1))
        restarted(world, operators)
    assert tail_of(world).stale_stores == {}


def test_every_record_after_the_gap_keeps_it_until_the_store_returns(tmp_path: Path) -> None:
    """Every record lists the store as incomplete until it returns."""
    world = with_a_gap(tmp_path, WITHOUT["left out"])
    for version in range(7, 30):
        world.batch(version, one_row(1))
    assert tail_of(world).stale_stores == {"totals": 3}
    restarted(world, two_stores())
    with pytest.raises(ConflictError, match="RIFFLE-0221"):
        world.batch(30, one_row(1))


def test_a_rollback_to_before_the_gap_ends_it(tmp_path: Path) -> None:
    """After a rollback to before the store was absent, the store is complete again."""
    world = with_a_gap(tmp_path / "world", WITHOUT["left out"], retained_versions=100)
    rollback(world.home.root, 3, checkpoint_in(tmp_path / "checkpoint", "query", 7), execute=True)
    restarted(world, two_stores())
    for version in range(4, 7):
        assert world.batch(version, one_row(1)).warnings == ()
    assert world.state("totals") == {"a": (7, 7)}


def test_a_rollback_into_the_gap_keeps_it(tmp_path: Path) -> None:
    """After a rollback to a batch without the store, the store is still refused."""
    world = with_a_gap(tmp_path / "world", WITHOUT["left out"], retained_versions=100)
    rollback(world.home.root, 5, checkpoint_in(tmp_path / "checkpoint", "query", 7), execute=True)
    restarted(world, two_stores())
    with pytest.raises(ConflictError, match="RIFFLE-0221"):
        world.batch(6, one_row(1))


def test_verify_notes_the_gap(tmp_path: Path) -> None:
    """`riffle verify` has a note about the incomplete store."""
    world = with_a_gap(tmp_path, WITHOUT["left out"])
    (note,) = verify(world.home.root).findings
    assert note.level == "note"
    assert "'totals' has the rows up to batch 3" in note.problem


def test_adopted_state_keeps_the_gap(tmp_path: Path) -> None:
    """The adopted store lacks rows from before the first batch of the new query, and must be accepted."""
    world = with_a_gap(tmp_path / "world", WITHOUT["left out"])
    adopt(world.home.root, checkpoint_in(tmp_path / "checkpoint", "another", 1), execute=True)
    world.query_id = "another"
    restarted(world, two_stores())
    with pytest.raises(ConflictError, match="RIFFLE-0221") as caught:
        world.batch(1, one_row(1))
    assert "accept = 'totals'" in caught.value.remedy
    assert "riffle rollback" not in caught.value.remedy
    (note,) = verify(world.home.root).findings
    assert "'totals' lacks rows from before the first batch" in note.problem
    restarted(world, two_stores(), accept=["totals"])
    (store_warning,) = world.batch(1, one_row(1)).warnings
    assert store_warning.startswith("[RIFFLE-0812]")
    assert world.state("totals") == {"a": (5, 5)}


def warnings_of(world: World, version: int, *accepted: str, operators: Sequence[Operator] = ()) -> tuple[str, ...]:
    """Start the query again with names in ``accept``, and return the warnings of its next batch."""
    restarted(world, list(operators) or two_stores(), accept=list(accepted))
    return world.batch(version, one_row(1)).warnings


@pytest.mark.parametrize("name", ["totals", "count", "nonsense"])
def test_an_unneeded_accepted_name_is_a_warning_at_the_start(name: str, tmp_path: Path) -> None:
    """An accepted name that nothing needs is a warning, because it would accept a later change."""
    world = World(tmp_path, operators=two_stores())
    for version in range(2):
        (warning,) = warnings_of(world, version, name)
        assert warning.startswith(f"[RIFFLE-0801] `accept` names {name!r}")
    assert world.batch(2, one_row(1)).warnings == ()


def named(name: str, function: Accumulator) -> Operator:
    """Return an operator with one result of the given name."""
    return operator_of("totals", ["k"], aggregate(**{name: function}), (), ROWS)


def test_a_result_with_a_changed_function_is_a_warning(tmp_path: Path) -> None:
    """A result that continues with another function has a warning. After that batch, the accepted name is no longer
    needed.
    """
    world = World(tmp_path, operators=[named("a, b", sum_("v")), tails()])
    world.batch(0, one_row(1))
    (warning,) = warnings_of(world, 1, "a, b", operators=[named("a, b", max_("v")), tails()])
    assert warning.startswith("[RIFFLE-0800] Store 'totals' continues with sum_('v') under 'a, b'")
    unneeded = warnings_of(world, 2, "a", " b", operators=[named("a, b", max_("v")), tails()])
    assert [warning[:13] for warning in unneeded] == ["[RIFFLE-0801]"] * 2


def test_an_accepted_name_may_contain_a_comma(tmp_path: Path) -> None:
    """Accepted names are split at commas, and a name with a comma is matched all the same."""

    def both(function: Callable[[str], Accumulator]) -> Operator:
        return operator_of("totals", ["k"], aggregate(**{"a": function("v"), "a, b": function("v")}), (), ROWS)

    world = World(tmp_path, operators=[both(sum_)])
    world.batch(0, one_row(1))
    warnings = list(acceptance_warnings(tail_of(world), [both(max_)], ["a", " b"]))
    assert [warning[:13] for warning in warnings] == ["[RIFFLE-0800]"] * 2


def test_an_export_has_the_newest_batch_of_its_store(tmp_path: Path) -> None:
    """An export of a store that lacks batches names the last batch that it has, from which its source continues."""
    world = with_a_gap(tmp_path, WITHOUT["left out"])
    versions = [export_state(world.home.root, store, str(tmp_path / store)).version for store in ("totals", "tails")]
    assert versions == [3, 6]
