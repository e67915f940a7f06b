"""The command `riffle dispatch` finds a user's function by its name, shows a plan, and switches the dispatch."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from riffle_spark.console.main import main
from riffle_spark.state.objects.open import open_store
from tests.kit.simulated.switched_state import contents, expected, filled, tail_of
from tests.kit.simulated.world import Oracle

SOURCE = """
import pyarrow as pa

NUMBER = 7


def by_length(keys):
    columns = {"topic": ["events"] * len(keys), "partition": [len(key) % 3 for key in keys["k"].to_pylist()]}
    return pa.RecordBatch.from_pydict(columns).to_struct_array()
"""


@pytest.fixture
def oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Oracle:
    """Put state and a module of the user into the current folder, and return the expected state."""
    world, oracle = filled(tmp_path / "world")
    copied = open_store(f"file://{tmp_path}/state")
    for name in world.memory.list(""):
        copied.put_if_absent(name, world.memory.get(name) or b"")
    (tmp_path / "routing_of_mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return oracle


def run(*arguments: str) -> Result:
    """Run `riffle dispatch` on this state."""
    return CliRunner().invoke(main, ["dispatch", f"file://{Path.cwd()}/state", *arguments])


def test_the_dispatch_command_changes_state_only_with_execute(oracle: Oracle) -> None:
    """Without --execute the state does not change, with it the dispatch does, and a switch back needs no function."""
    root = f"file://{Path.cwd()}/state"
    there = ["--to", "partition", "--partition-of", "routing_of_mine:by_length"]
    shown = run(*there)
    assert shown.exit_code == 0, shown.output
    assert "Add --execute" in shown.output
    assert tail_of(root).dispatch == "key_group"
    done = run(*there, "--execute")
    assert "Add --execute" not in done.output
    assert tail_of(root).dispatch == "partition"
    assert run("--to", "hashed", "--key-groups", "64", "--execute").exit_code == 0
    assert run("--to", "key_group", "--execute").exit_code == 0
    assert (tail_of(root).dispatch, tail_of(root).total) == ("key_group", 64)
    assert contents(root) == expected(oracle)


@pytest.mark.parametrize(
    ("path", "error_id"),
    [
        ("routing_of_mine:nothing", "RIFFLE-0112"),
        ("no_such_module:by_length", "RIFFLE-0112"),
        ("ends:by_length", "RIFFLE-0112"),
        ("routing_of_mine:NUMBER", "RIFFLE-0113"),
    ],
)
@pytest.mark.sample(step=3)
def test_a_name_that_is_not_a_function_is_refused(oracle: Oracle, path: str, error_id: str) -> None:
    """A name that is not a function is refused with the name, and exit code 2 says that nothing was changed."""
    Path("ends.py").write_text("import sys\n\nsys.exit(0)")
    done = run("--to", "partition", "--partition-of", path, "--execute")
    assert (done.exit_code, error_id in done.output) == (2, True), done.output
    assert contents(f"file://{Path.cwd()}/state") == expected(oracle)
