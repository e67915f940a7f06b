"""Each command of docs/probes.md runs as printed on the root of a query that runs, is silent or restarts."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from riffle_spark.observe.status_exporter import StatusExporter
from riffle_spark.offline.root_status import read_status
from tests.kit.folders import CHECKOUT
from tests.kit.pages import blocks
from tests.kit.simulated.world import World, one_row

PAGE = CHECKOUT / "docs" / "probes.md"
ROOT = "s3://bucket/state/totals"
MAX_AGE_SECONDS = 300
MINUTE = 60


def block(info: str) -> str:
    """Return the only fenced block of the page with this language."""
    (command,) = [each.code for each in blocks(PAGE) if each.info == info]
    return command


def commands() -> dict[str, list[str]]:
    """Return the words of each command of the page by its name. Commands of cron and Airflow run in a shell."""
    (container,) = yaml.safe_load(block("yaml"))["spec"]["containers"]
    arguments = {
        keyword.arg: keyword.value
        for node in ast.walk(ast.parse(block("python")))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    }
    return {
        "first": shlex.split(block("")),
        "cron": ["sh", "-c", block("text cron").split(maxsplit=5)[5]],
        "startup": container["startupProbe"]["exec"]["command"],
        "liveness": container["livenessProbe"]["exec"]["command"],
        "airflow": ["sh", "-c", ast.literal_eval(arguments["bash_command"])],
    }


class Machine:
    """A machine with `riffle` and `logger` on its path, and a folder as the root of a query."""

    def __init__(self, folder: Path) -> None:
        self.root = f"file://{folder}/root"
        self.log = folder / "syslog"
        self._folder = folder
        programs = {"riffle": f'exec {sys.executable} -m riffle_spark "$@"', "logger": f'echo "$@" >>{self.log}'}
        for name, line in programs.items():
            (folder / name).write_text(f"#!/bin/sh\n{line}\n")
            (folder / name).chmod(0o755)

    def run(self, words: list[str]) -> int:
        """Run a command of the page on the root of the machine. Return its exit code."""
        words = [word.replace(ROOT, self.root) for word in words]
        path = f"{self._folder}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(CHECKOUT)}
        return subprocess.run(words, capture_output=True, check=False, env=environment, cwd=self._folder).returncode


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine without a query."""
    return Machine(tmp_path)


@pytest.fixture
def query(machine: Machine, tmp_path: Path) -> World:
    """Return a query after its first batch."""
    world = World(tmp_path / "local", root=machine.root)
    world.batch(0, one_row(1))
    return world


def write_status(query: World, age_seconds: float, *, is_stopped: bool = False) -> StatusExporter:
    """Write a status of this age, measured with the machine's clock."""
    query.clock.advance((time.time_ns() // 1_000_000 - query.clock.wall_ms()) / 1000 - age_seconds)
    moves = query.driver.ownership.moves.recent
    exporter = StatusExporter(query.memory, lambda: query.driver.settings, moves, "test", lambda _: None)
    exporter.export(None, query.driver.facts(), ())
    if is_stopped:
        exporter.close()
    return exporter


def test_all_probes_call_the_same_status_command() -> None:
    """All commands of the page call `riffle status` with the same root and duration."""
    for name, words in commands().items():
        assert f"riffle status {ROOT} --max-age 5m" in " ".join(words), name


@pytest.mark.parametrize("name", sorted(commands()))
@pytest.mark.sample("liveness", "cron")
def test_a_probe_succeeds_while_the_query_runs_and_fails_once_it_is_silent(
    machine: Machine, query: World, name: str
) -> None:
    """A probe succeeds while the query runs and fails once it is silent. The cron line then logs and still succeeds."""
    words = commands()[name]
    write_status(query, 0)
    assert (machine.run(words), machine.log.exists()) == (0, False)
    write_status(query, MAX_AGE_SECONDS + MINUTE)
    is_cron = name == "cron"
    assert (machine.run(words) != 0, machine.log.exists()) == (not is_cron, is_cron)
    assert not is_cron or "query totals: riffle status exits with 1" in machine.log.read_text()


def test_the_liveness_probe_succeeds_while_the_store_is_unreachable(machine: Machine, tmp_path: Path) -> None:
    """If the store is unreachable, the startup probe fails with exit code 3, and the liveness probe succeeds."""
    machine.root = "s3://bucket/prefix"
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "riffle.toml").write_text('s3_endpoint = "http://127.0.0.1:9"\ns3_patience = 0\n')
    assert machine.run(commands()["startup"]) == 3
    assert machine.run(commands()["liveness"]) == 0


@pytest.mark.parametrize(
    ("age_seconds", "is_stopped", "is_accepted"),
    [(MINUTE, True, True), (MINUTE, False, True), (MAX_AGE_SECONDS + MINUTE, True, False),
     (MAX_AGE_SECONDS + MINUTE, False, False)],
)  # fmt: skip
def test_the_probe_uses_the_previous_status_until_the_first_batch_ends(
    machine: Machine, query: World, age_seconds: float, is_stopped: bool, is_accepted: bool
) -> None:
    """After a restart the probe uses the status of the previous run until the first batch writes a new one."""
    write_status(query, age_seconds, is_stopped=is_stopped)
    probe: Callable[[], str | None] = lambda: read_status(machine.root).probe(MAX_AGE_SECONDS)  # noqa: E731
    assert (probe() is None) == is_accepted
    query.start()
    assert (probe() is None) == is_accepted
    query.batch(1, one_row(1))
    write_status(query, 0)
    assert probe() is None


@pytest.mark.long
def test_the_startup_probe_fails_for_a_new_root(machine: Machine, query: World) -> None:
    """The startup probe fails for a root without a status and for a root without a log."""
    assert machine.run(commands()["startup"]) == 1
    machine.root += "-other"
    assert machine.run(commands()["startup"]) == 1
