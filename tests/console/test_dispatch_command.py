"""The command `riffle dispatch`: a user's function found by its name, a plan shown, a switch done."""

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
    return pa.table({"topic": ["events"] * len(keys), "partition": [len(key) % 3 for key in keys["k"].to_pylist()]})
"""


@pytest.fixture
def oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Oracle:
    """What state in the current folder holds, which has a module of the user's beside it."""
    world, oracle = filled(tmp_path / "world")
    copied = open_store(f"file://{tmp_path}/state")
    for name in world.memory.list(""):
        copied.put_if_absent(name, world.memory.get(name) or b"")
    (tmp_path / "routing_of_mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return oracle


def run(*arguments: str) -> Result:
    """Run the command on that state."""
    return CliRunner().invoke(main, ["dispatch", "--root", f"file://{Path.cwd()}/state", *arguments])


@pytest.mark.parametrize("source", ["import sys\n\nsys.exit(0)", "def by_length(keys", "raise RuntimeError('no')"])
def test_a_module_that_cannot_be_imported_ends_the_command_as_any_wrong_call(oracle: Oracle, source: str) -> None:
    """A script that ends by itself, too: nothing was done, and the exit code says so."""
    name = f"unfit_{len(source)}"
    Path(f"{name}.py").write_text(source)
    done = run("--to", "partition", "--partition-of", f"{name}:by_length", "--execute")
    assert done.exit_code == 2
    assert "no function is found at" in done.output
    assert tail_of(f"file://{Path.cwd()}/state").dispatch == "key_group"
    assert contents(f"file://{Path.cwd()}/state") == expected(oracle)


def test_a_plan_is_shown_and_then_done(oracle: Oracle) -> None:
    """Without --execute the state stays; with it, it has the new dispatch, and the way back needs no function."""
    root = f"file://{Path.cwd()}/state"
    there = ["--to", "partition", "--partition-of", "routing_of_mine:by_length"]
    shown = run(*there)
    assert shown.exit_code == 0, shown.output
    assert "add --execute" in shown.output
    assert tail_of(root).dispatch == "key_group"
    done = run(*there, "--execute")
    assert "add --execute" not in done.output
    assert tail_of(root).dispatch == "partition"
    assert run("--to", "hashed", "--key-groups", "64", "--execute").exit_code == 0
    assert run("--to", "key_group", "--execute").exit_code == 0
    assert (tail_of(root).dispatch, tail_of(root).total) == ("key_group", 64)
    assert contents(root) == expected(oracle)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("routing_of_mine:nothing", "no function is found"),
        ("routing_of_mine", "no function is found"),
        ("no_such_module:by_length", "no function is found"),
        ("routing_of_mine:NUMBER", "cannot be called"),
    ],
)
def test_a_name_that_is_no_function_is_refused(oracle: Oracle, path: str, said: str) -> None:
    """The error says what was looked for, and the exit code that nothing was done."""
    done = run("--to", "partition", "--partition-of", path, "--execute")
    assert done.exit_code == 2
    assert said in done.output


def test_without_a_function_the_remedy_is_shown(oracle: Oracle) -> None:
    """Errors come as sentences with what to do, not as tracebacks."""
    done = run("--to", "partition", "--execute")
    assert done.exit_code == 1
    assert "What to do: give a function from keys" in done.output
    assert "Traceback" not in done.output
