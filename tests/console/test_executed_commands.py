"""A command that has changed a root says so, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.root_commands import read_json, run_command, write_status
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.simulated.world import World, feed_six_keys, totals

DONE = "Done: the steps above were executed. "
EDIT = ("--store", "totals", "--key", "k1", "--reason", "ticket 7")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a query on files after four batches."""
    query = World(tmp_path / "local", operators=[totals()], root=f"file://{tmp_path}/root", retained_versions=4)
    feed_six_keys(query, 0, 3)
    return query


def _rollback(folder: Path) -> tuple[object, ...]:
    return ("--to", 2, "--checkpoint", written_checkpoint(folder, 4))


def _adopt(folder: Path) -> tuple[object, ...]:
    return ("--checkpoint", written_checkpoint(folder, 3, "another"))


NEXT_STEPS: dict[str, tuple[str, Callable[[Path], tuple[object, ...]], str]] = {
    "rollback": ("rollback", _rollback, "Start the query. It continues with batch 3."),
    "adopt": ("adopt", _adopt, "Start query another. It continues with batch 3."),
    "dispatch": (
        "dispatch",
        lambda _: ("--to", "key_group", "--key-groups", 16),
        "Start the query with dispatch = key_group, key_groups = 16.",
    ),
    "delete": ("state delete", lambda _: EDIT, "Start the query."),
    "set": ("state set", lambda _: (*EDIT, "--value", '{"total": 7}'), "Start the query."),
    "purge": ("state delete", lambda _: (*EDIT, "--purge"), "Start the query."),
}


@pytest.mark.parametrize("name", NEXT_STEPS)
def test_a_command_warns_if_the_query_runs(name: str, world: World, tmp_path: Path) -> None:
    """The record of these commands fences a running driver. So the plan warns if the status says that one runs."""
    command, arguments, _ = NEXT_STEPS[name]
    words = (*command.split(), world.home.root, *arguments(tmp_path / "checkpoint"))
    for changes, runs in (({}, True), ({"state": "stopped"}, False), ({"time_ms": 1}, False)):
        write_status(world, **changes)
        planned = run_command(*words)
        assert planned.exit_code == 0, planned.output
        assert ("RIFFLE-1783" in planned.stderr) == runs
        assert json.loads(run_command(*words, "--json").stdout)["executed"] is False


@pytest.mark.parametrize("name", NEXT_STEPS)
def test_an_executed_command_names_the_next_step(name: str, world: World, tmp_path: Path) -> None:
    """Only with --execute, a command ends with a line that says that it has changed the root, and what to do next."""
    command, arguments, next_step = NEXT_STEPS[name]
    words = (*command.split(), world.home.root, *arguments(tmp_path / "checkpoint"))
    planned = run_command(*words)
    assert (planned.exit_code, "Done:" in planned.output) == (0, False), planned.output
    assert "Nothing was changed. Add --execute" in planned.output
    executed = run_command(*words, "--execute")
    assert executed.exit_code == 0, executed.output
    assert f"{DONE}{next_step}\n" in executed.output


def test_a_command_that_finds_nothing_to_change_is_not_done(world: World) -> None:
    """A deletion of a key without state says that it changes nothing, and names no next step."""
    executed = run_command("state", "delete", world.home.root, *EDIT[:3], "no-such-key", *EDIT[4:], "--execute")
    assert executed.exit_code == 0, executed.output
    assert "change nothing" in executed.output
    assert "Done:" not in executed.output


def test_the_status_of_a_fork_names_riffle_adopt(world: World, tmp_path: Path) -> None:
    """`riffle fork` and `riffle status` of its root say that no query has the state until `riffle adopt` binds it."""
    fork = f"file://{tmp_path}/fork"
    done = run_command("fork", world.home.root, fork, "--at", 3, "--execute")
    assert "The state belongs to no query yet." in done.output
    problem = "The state belongs to no query until riffle adopt binds it."
    shown = read_json("status", fork)
    assert (shown["health"], shown["problem"]) == ("unknown", problem)
    assert f"unknown. {problem}" in run_command("status", fork).output
    checkpoint = written_checkpoint(tmp_path / "checkpoint", query_id="another")
    assert run_command("adopt", fork, "--checkpoint", checkpoint, "--execute").exit_code == 0
    assert read_json("status", fork)["problem"] is None
