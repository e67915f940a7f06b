"""Run commands that read a root, as a user runs them, and write the status that they show."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner, Result

from riffle_spark.console.main import main
from riffle_spark.observe.status import Status, encode
from riffle_spark.offline.root_status import read_status
from riffle_spark.protocol.facts import DriverFacts, PartitionLag
from riffle_spark.state.log import paths
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.fixtures import full_record_every
from tests.kit.simulated.world import World

__all__ = ["query_with_standbys", "read_json", "run_command", "stored_query", "write_status"]


def query_with_standbys(folder: Path) -> Elastic:
    """Return a query over two executors with one standby per key-group, whose newest full record lists its members.

    ``folder`` gets the local copies.
    """
    world = _two_executors(folder)
    with pytest.MonkeyPatch.context() as patch:
        full_record_every(4, patch)
        world.feed(6)
    return world


def stored_query(folder: Path) -> Elastic:
    """Return the query of ``query_with_standbys`` before its first batch, on a root with all objects of a finished run.

    Commands read only the root. Its objects are made once per process.
    """
    world = _two_executors(folder)
    for name, data in _objects_of_query().items():
        assert world.memory.put_if_absent(name, data)
    return world


def _two_executors(folder: Path) -> Elastic:
    return Elastic(folder, executors=("1", "2"), num_standbys=1)


@cache
def _objects_of_query() -> Mapping[str, bytes]:
    with TemporaryDirectory() as folder:
        store = query_with_standbys(Path(folder)).memory
        return {name: store.get(name) or b"" for name in store.list("")}


def run_command(*arguments: object) -> Result:
    """Run `riffle` with these arguments and return its result."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def read_json(*arguments: object) -> dict[str, Any]:
    """Return the JSON object that `riffle` prints with these arguments and `--json`. The command must succeed."""
    result = run_command(*arguments, "--json")
    assert result.exit_code == 0, result.output
    fields: dict[str, Any] = json.loads(result.output)
    return fields


def write_status(query: World, **changes: object) -> None:
    """Write a status as the driver writes it at the newest record.

    ``changes`` replace fields of the status or its facts.
    """
    now_ms = read_status(query.home.root).now_ms
    source = (PartitionLag("orders", 0, 70, 3.0), PartitionLag("orders", 1, 5, None))
    of_facts = {field.name: changes.pop(field.name) for field in fields(DriverFacts) if field.name in changes}
    facts = replace(DriverFacts(now_ms, "q", "counts", source=source), **of_facts)  # type: ignore[arg-type]
    status = Status(facts, product="0.1.0", **changes)  # type: ignore[arg-type]
    query.memory.delete([paths.STATUS])
    assert query.memory.put_if_absent(paths.STATUS, encode(status))
