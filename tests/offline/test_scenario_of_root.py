"""Scenarios of `riffle plan` and `riffle capacity` for the members and owners in a query's log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.offline.scenario_of_root import (
    Changes,
    recorded_members,
    scenario_of_root,
    sizes_of_root,
)
from riffle_spark.protocol.batch.stored_requests import StoredRequests, read_requests
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.state.objects.open import open_store
from tests.kit.root_commands import run_command, stored_query
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.partitioned_query import Played
from tests.kit.simulated.world import World, totals
from tests.kit.state.drawn_records import PLAIN

pytestmark = pytest.mark.usefixtures("names_in_order")


@pytest.fixture
def query(tmp_path: Path) -> Elastic:
    """Return a query over two executors with a standby each, whose newest full record lists its members."""
    return stored_query(tmp_path / "local")


def test_the_scenario_has_the_members_owners_and_sizes_of_the_log(query: Elastic) -> None:
    """Members, owners, standbys, slots and sizes of the scenario are those of the log."""
    scenario = scenario_of_root(query.home.root, Settings(), Changes())
    record = Log(query.memory, query.home.root).open()
    assert record is not None
    owned = {str(task.key_group): client.member.id for client in scenario.clients for task in client.owned}
    assert owned == dict(record.owners)
    standbys = {str(task.key_group): (client.member.id,) for client in scenario.clients for task in client.standbys}
    assert standbys == dict(record.standbys)
    assert [client.member.slots for client in scenario.clients] == [1, 1]
    sizes = sizes_of_root(query.home.root)
    assert sizes.key_groups == len(scenario.tasks) == 6
    assert sizes.rows == sum(task.size for task in scenario.tasks) > 0
    assert sizes.state_bytes > 0


def test_plan_shows_the_assignment_after_members_join_or_leave(query: Elastic) -> None:
    """`riffle plan --add` and `--drop` show the assignment after members join or leave."""
    done = run_command("plan", query.home.root, "--add", 2, "--json")
    now, then = json.loads(done.output)["converge"]["phases"]
    assert (now["clients"], then["clients"]) == (2, 4)
    assert sorted(len(tasks["active"]) for tasks in then["assignment"].values()) == [1, 1, 2, 2]
    assert then["net_stateful_active_moves"] == then["fewest_stateful_active_moves"] == 2
    planned = json.loads(run_command("plan", query.home.root, "--drop", "1", "--json").output)
    gone = planned["converge"]["phases"][1]
    assert [len(tasks["active"]) for tasks in gone["assignment"].values()] == [6]
    assert gone["moves"]["active_placed_not_caught_up"] == 0
    assert "new0" in run_command("plan", query.home.root, "--add", 1).output


def test_a_plan_can_drop_and_add_racks(tmp_path: Path) -> None:
    """Dropping a rack drops its members, and added members are placed in the remaining or given racks."""
    world = Elastic(tmp_path / "local", executors=("1", "2", "3"))
    world.feed(4)
    log = Log(world.memory, world.home.root)
    record = log.open()
    assert record is not None
    known = recorded_members(log, record)
    members = [replace(each, rack=rack) for each, rack in zip(known, "abb", strict=True)]
    log.append(
        replace(record, kind="adopt", members=tuple(members), commit_id="with racks", epoch=record.epoch + 1),
        log.manifest,
    )
    dropped = scenario_of_root(world.home.root, Settings(), Changes(drop_racks=("b",), add=2)).events[0]
    assert (len(dropped.drop), [each.member.rack for each in dropped.add]) == (2, ["a", "a"])
    placed = scenario_of_root(world.home.root, Settings(), Changes(add=3, add_racks=("c", "a"))).events[0]
    assert [each.member.rack for each in placed.add] == ["c", "a", "c"]
    refused = run_command("plan", world.home.root, "--drop-rack", "c")
    assert "Unknown rack 'c'" in refused.output


def test_operator_requests_of_the_log_apply_to_the_scenario(query: Elastic) -> None:
    """Pins, drains and changed settings in the log's operator requests apply to the scenario."""
    record = Log(query.memory, query.home.root).open()
    assert record is not None
    first, second = sorted(set(record.owners.values()))
    requests = {"pins": {"3": second}, "drained": [first], "settings": {"max_warmup_replicas": 7}}
    assert read_requests(record.orders) == StoredRequests()
    log = Log(query.memory, query.home.root)
    log.open()
    log.append(replace(record, kind="adopt", orders=requests, commit_id="asked", epoch=record.epoch + 1), log.manifest)
    scenario = scenario_of_root(query.home.root, Settings(max_warmup_replicas=1), Changes())
    assert {task.key_group: member for task, member in scenario.pins.items()} == {3: second}
    assert scenario.settings.exclude == (("id", first),)
    assert (scenario.settings.max_warmup_replicas, scenario.settings.num_standbys) == (7, 1)


def test_task_weights_are_those_of_the_last_assignment_in_the_log(query: Elastic) -> None:
    """The weights of tasks are those of the last assignment in the log, not the measured ones."""
    log = Log(query.memory, query.home.root)
    record = log.open()
    assert record is not None
    weights = {"measured": {"5": 1.5}, "assigned": {"3": 40, "4": 1}}
    log.append(
        replace(record, kind="adopt", weights=weights, commit_id="weighed", epoch=record.epoch + 1), log.manifest
    )
    tasks = scenario_of_root(query.home.root, Settings(), Changes()).tasks
    assert {task.id.key_group: task.weight for task in tasks if task.weight} == {3: 40, 4: 1}


def test_live_members_are_known_from_the_first_batch_on(tmp_path: Path) -> None:
    """Live members are known from the first batch on, also drained ones, and lost members are left out."""
    world = Elastic(tmp_path / "local", executors=("1", "2"), scheduled_rebalance_max_delay=0)
    world.feed(1)
    log = Log(world.memory, world.home.root)
    record = log.open()
    assert record is not None
    assert {each.executor for each in recorded_members(log, record)} == {"1", "2"}
    idle = replace(record, owners=dict.fromkeys(record.owners, record.owners["0"]), commit_id="drained")
    log.append(replace(idle, kind="orders"), log.manifest)
    assert len(scenario_of_root(world.home.root, Settings(), Changes(drop=("1",))).clients) == 2
    world.start()
    world.cluster.lose("2")
    world.feed(2)
    assert len(scenario_of_root(world.home.root, Settings(), Changes()).clients) == 1


def test_members_of_an_old_log_are_derived_from_its_owners(query: Elastic) -> None:
    """Without a retained record that lists members, owners and standbys are known by id."""
    log = Log(query.memory, query.home.root)
    record = log.open()
    assert record is not None
    old = replace(record, members=(), full=record.sequence, between=())
    assert {each.id for each in recorded_members(log, old)} == set(record.owners.values())


def test_unknown_members_and_an_empty_root_are_refused(query: Elastic) -> None:
    """Unknown members, an empty root, files beside a root, and options without a root are refused."""
    for words, text in (
        ((query.home.root, "--drop", "9"), "Unknown member, executor or host '9'"),
        (("memory://nothing-here",), "RIFFLE-0151"),
        ((query.home.root, "memory://other"), "several roots"),
        ((), "Either ROOT or --scenario is required"),
        (("--scenario", ".", "--add", 1), "require ROOT"),
        ((query.home.root, "."), "Either ROOT or --scenario is required"),
        ((query.home.root, "--add-rack", "a"), "requires --add"),
        ((query.home.root, "--drop", "1", "--drop", "2"), "RIFFLE-0153"),
    ):
        assert text in run_command("plan", *words).output
    more = run_command("plan", query.home.root, "--add", 2, "--add-rack", "a, b", "--strategy", "min_cost")
    assert "new1" in more.output


def test_capacity_takes_state_size_and_row_size_from_the_root(query: Elastic) -> None:
    """`riffle capacity` takes the state size and the row size from the root."""
    words = ("--rows-per-second", 10, "--rows-per-worker", 10, "--rows-in-flight", 1, "--cache-fraction", 0, "--json")
    capacity = json.loads(run_command("capacity", query.home.root, *words).stdout)
    sizes = sizes_of_root(query.home.root)
    assert capacity["disk_bytes"] == sizes.state_bytes
    assert capacity["memory_per_worker"] == pytest.approx(sizes.state_bytes / sizes.rows)
    wider = json.loads(run_command("capacity", query.home.root, *words, "--row-bytes", 1e6).stdout)
    assert wider["memory_per_worker"] == 1e6


def test_a_plan_needs_members_in_the_log(tmp_path: Path) -> None:
    """A log without members, as before the first batch, cannot be planned, and the error says what to wait for."""
    root = f"file://{tmp_path}/state"
    log = Log(open_store(root), root)
    log.open()
    log.append(PLAIN, log.manifest)
    refused = run_command("plan", root)
    assert (refused.exit_code, "RIFFLE-0150" in refused.output) == (1, True), refused.output
    assert "Wait until the query has run a batch." in refused.output


def test_a_plan_names_tasks_by_partition_and_refuses_hashed_dispatch(tmp_path: Path) -> None:
    """With partition dispatch tasks are named by their partitions, and hashed dispatch is refused."""
    played = Played(World(tmp_path / "parted", dispatch="partition", key_groups=16))
    played.batches(2)
    root = played.world.home.root
    tail = Log(played.world.memory, root).open()
    assert tail is not None
    scenario = scenario_of_root(root, Settings(), Changes())
    assert list(scenario.names.values()) == [f"{topic}/{partition}" for topic, partition in tail.shards]
    assert sizes_of_root(root).key_groups == len(tail.shards) < 16
    hashed = Played(World(tmp_path / "hashed", dispatch="hashed", key_groups=16))
    hashed.batches(1)
    assert "RIFFLE-0149" in run_command("plan", hashed.world.home.root).output


def test_a_cache_is_planned_in_its_group_and_unknown_groups_are_refused(tmp_path: Path) -> None:
    """A cache is planned in its group of the settings, and groups that do not match the root's owners are refused."""
    operators = [totals(), replace(totals("seen"), durable=False)]
    world = Elastic(tmp_path, operators=operators, key_groups=5, store_groups={"seen": "light"})
    world.feed(2)
    scenario = scenario_of_root(world.home.root, Settings(store_groups=(("seen", "light"),)), Changes())
    assert {task.id.group for task in scenario.tasks} == {"query", "light"}
    assert sum(len(client.owned) for client in scenario.clients) == len(scenario.tasks) == 10
    for strange in ((), (("totals", "heavy"), ("seen", "light"))):
        with pytest.raises(ConfigError, match="RIFFLE-0152"):
            scenario_of_root(world.home.root, Settings(store_groups=strange), Changes())
