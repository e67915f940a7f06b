"""`riffle state delete` and `set` change the state of a stopped query, and the query continues with the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from riffle_spark import Stateful, aggregate, count, max_, sum_, transform_with_state
from riffle_spark.errors import ConfigError, ConflictError, RefusedError
from riffle_spark.offline.recovery import rollback
from riffle_spark.offline.state_edits import Editor, KeyChoice, delete_keys, set_value
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.restore.edits import EditOfState, check_edit, count_state_rows, read_key_group
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import make_recorded_text, schema_of_text
from riffle_spark.state.schemas.variables import VariableColumns
from riffle_spark.testing import Harness
from tests.kit.process.counted_windows import ENDS, KEY, CountedWindows, rows_of
from tests.kit.processors.catalogue import CASES
from tests.kit.processors.processor_case import Case
from tests.kit.root_commands import run_command
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.simulated.partitioned_query import Played
from tests.kit.simulated.world import World
from tests.kit.state.everything import Everything

pytestmark = pytest.mark.usefixtures("short_cycles")

WHY = Editor("ticket 7", "ann", "laptop")
ROWS = pa.schema([("user", pa.string()), ("n", pa.int64())])
UNTIMED = [name for name, case in CASES.items() if case.time_mode == "None" and case.initial is None]


def totals(**settings: Any) -> Harness:
    """Return a query of an aggregate."""
    operator = Stateful("totals", "user", aggregate(visits=count(), most=max_("n"), total=sum_("n")))
    return Harness(operator, ROWS, **settings)


def rows(*users: str | None, n: int = 1) -> list[dict[str, object]]:
    """Return a row for each user."""
    return [{"user": user, "n": n} for user in users]


def tail_of(query: Harness) -> Record:
    """Return the newest record."""
    tail = Log(open_store(query.root), query.root).open()
    assert tail is not None
    return tail


def store_of(query: Harness) -> str:
    """Return the name of the only store."""
    (store,) = tail_of(query).schemas
    return store


def delete(query: Harness, key: str, **options: Any) -> tuple[str, ...]:
    """Delete a key, restart the query, and return the steps of the plan."""
    plan = delete_keys(query.root, store_of(query), KeyChoice(key), WHY, execute=True, **options)
    query.restart()
    return plan.steps


def test_a_deleted_key_starts_again_and_others_continue() -> None:
    """A deleted key starts again with its next row, and the record has the reason but not the key."""
    with totals() as query:
        query.feed(rows("ann", "bob", "ann", None))
        before = tail_of(query)
        plan = delete_keys(query.root, "totals", KeyChoice("ann"), WHY)
        assert not plan.executed
        assert tail_of(query).commit_id == before.commit_id
        steps = delete(query, "ann")
        tail = tail_of(query)
        assert (tail.kind, tail.epoch, tail.version) == ("state", before.epoch + 1, before.version)
        assert dict(tail.edit) == {
            "action": "delete", "store": "totals", "keys": 1, "user": "ann", "host": "laptop", "reason": "ticket 7",
        }  # fmt: skip
        assert f"record:{before.sequence}" in steps[1]
        assert tail.row_counts == {"totals": 2}
        assert set(query.state()) == {("bob",), (None,)}
        query.feed(rows("ann", "bob"))
        assert query.state()[("ann",)] == {"visits": 1, "most": 1, "total": 1}
        assert query.state()[("bob",)] == {"visits": 2, "most": 1, "total": 2}
        assert tail_of(query).edit == {}
        assert tail_of(query).row_counts == {"totals": 3}


def test_the_null_key_differs_from_the_text_null() -> None:
    """The key `[null]` is the NULL key, not the text "null"."""
    with totals() as query:
        query.feed(rows("null", None))
        delete(query, "[null]")
        assert set(query.state()) == {("null",)}


def test_deleting_a_key_without_state_writes_no_record() -> None:
    """Deleting a key without state writes no record."""
    with totals() as query:
        query.feed(rows("ann"))
        sequence = tail_of(query).sequence
        steps = delete(query, "eve")
        assert "change nothing" in steps[0]
        assert tail_of(query).sequence == sequence
        for user in "abcdefgh":  # most key-groups are empty
            assert "change nothing" in delete_keys(query.root, "totals", KeyChoice(user), WHY).steps[0]
            assert "set 1 of 1" in set_value(query.root, "totals", user, '{"total": 1}', WHY).steps[0]


def test_the_query_continues_with_a_set_value() -> None:
    """A set value replaces the given columns, and keeps the others or sets them to NULL for a new key."""
    with totals() as query:
        query.feed(rows("ann", "ann"))
        set_value(query.root, "totals", "ann", '{"total": 40}', WHY, execute=True)
        set_value(query.root, "totals", "eve", '{"total": 1, "visits": 5}', WHY, execute=True)
        query.restart()
        assert query.state()[("ann",)] == {"visits": 2, "most": 1, "total": 40}
        assert query.state()[("eve",)] == {"visits": 5, "most": None, "total": 1}
        assert tail_of(query).row_counts == {"totals": 2}
        query.feed(rows("ann", "eve", n=2))
        assert query.state()[("ann",)] == {"visits": 3, "most": 2, "total": 42}
        assert query.state()[("eve",)] == {"visits": 6, "most": 2, "total": 3}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ('{"total": "40"}', "total must be int64"),
        ('{"total": 1.5}', "total must be int64"),
        ('{"totl": 1}', "Unknown column 'totl'"),
        ("7", "a JSON object with the columns"),
        ("{", "not JSON"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_column_and_type(value: str, problem: str) -> None:
    """A value that does not fit is refused with the column and its type."""
    with totals() as query:
        query.feed(rows("ann"))
        with pytest.raises(ConfigError) as error:
            set_value(query.root, "totals", "ann", value, WHY, execute=True)
        assert problem in error.value.problem


def test_unknown_stores_and_variables_are_refused() -> None:
    """Unknown stores and variables are refused."""
    with totals() as query:
        query.feed(rows("ann"))
        with pytest.raises(ConfigError, match="Unknown store 'total'"):
            delete_keys(query.root, "total", KeyChoice("ann"), WHY)
        with pytest.raises(ConfigError, match="Unknown variable 'visits'"):
            delete_keys(query.root, "totals", KeyChoice("ann"), WHY, variable="visits")


def test_keys_of_a_parquet_file_are_deleted_together(tmp_path: Path) -> None:
    """Keys of a Parquet file are deleted together, absent keys are ignored, and other columns are refused."""
    users = [f"u{n}" for n in range(300)]
    with totals() as query:
        query.feed(rows(*users, None))
        pq.write_table(pa.table({"user": [*users[::2], "eve", None]}), tmp_path / "keys.parquet")
        choice = KeyChoice(file=tmp_path / "keys.parquet")
        plan = delete_keys(query.root, "totals", choice, WHY, execute=True)
        assert "delete 151 of 152 given keys" in plan.steps[0]
        query.restart()
        assert set(query.state()) == {(user,) for user in users[1::2]}
        query.crash(lose_copies=True)
        query.feed(rows(*users))
        assert sum(state["visits"] for state in query.state().values()) == 450  # type: ignore[index]
        pq.write_table(pa.table({"usr": users}), tmp_path / "keys.parquet")
        with pytest.raises(ConfigError, match="Unknown column 'usr'"):
            delete_keys(query.root, "totals", choice, WHY)
        (tmp_path / "keys.parquet").write_bytes(b"PAR1")
        with pytest.raises(ConfigError, match="cannot be read"):
            delete_keys(query.root, "totals", choice, WHY)


def test_a_state_command_fences_a_running_driver() -> None:
    """A state command fences a running driver."""
    with totals() as query:
        query.feed(rows("ann"))
        delete_keys(query.root, "totals", KeyChoice("ann"), WHY, execute=True)
        with pytest.raises(Exception, match="Another driver"):
            query.feed(rows("ann"))


def test_a_state_command_that_loses_against_a_driver_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state command that loses against a commit of a driver changes nothing, and the query continues."""
    with totals() as query:
        query.feed(rows("ann"))
        append = Log.append

        def late(log: Log, *arguments: Any, **options: Any) -> Record:
            monkeypatch.setattr(Log, "append", append)
            query.feed(rows("ann"))
            return append(log, *arguments, **options)

        monkeypatch.setattr(Log, "append", late)
        with pytest.raises(ConflictError, match="Nothing was changed"):
            delete_keys(query.root, "totals", KeyChoice("ann"), WHY, execute=True)
        query.feed(rows("ann"))
        assert query.state()[("ann",)]["visits"] == 3  # type: ignore[index]


def test_a_state_command_keeps_encrypted_state_encrypted(tmp_path: Path) -> None:
    """The delta of a state command is encrypted with the newest key, and without keys the command is refused."""
    keys = tmp_path / "keys.txt"
    keys.write_text("a = " + "AAAA" * 10 + "AAA=\n")
    keys.chmod(0o600)
    with totals(encryption_keys=f"file:{keys}") as query:
        query.feed(rows("ann", "secret-user"))
        with pytest.raises((ConfigError, RefusedError), match="encryption_keys"):
            delete_keys(query.root, "totals", KeyChoice("ann"), WHY, execute=True)
        delete(query, "ann", encryption_keys=f"file:{keys}")
        set_value(
            query.root, "totals", "secret-user", '{"total": 40}', WHY,
            encryption_keys=f"file:{keys}", execute=True,
        )  # fmt: skip
        query.restart()
        assert query.state() == {("secret-user",): {"visits": 1, "most": 1, "total": 40}}
        objects = open_store(query.root)
        assert not any(b"secret-user" in (objects.get(name) or b"") for name in objects.list(""))


@pytest.mark.parametrize("name", UNTIMED)
@pytest.mark.sample(step=4)
def test_after_its_deletion_a_processors_key_starts_anew(name: str) -> None:
    """After a key of a processor is deleted, state and output equal those of a query that never received the key."""
    case = CASES[name]
    half = len(case.batches) // 2 or 1
    with processor(case) as query, processor(case) as other:
        keys = sorted({repr(row) for batch in case.batches[:half] for row in batch.select(list(case.key)).to_pylist()})
        gone = keys[len(keys) // 2]
        for batch in case.batches[:half]:
            query.feed(batch)
            is_other = [repr(row) != gone for row in batch.select(list(case.key)).to_pylist()]
            other.feed(batch.filter(pa.array(is_other)))
        values = next(
            row
            for batch in case.batches[:half]
            for row in batch.select(list(case.key)).to_pylist()
            if repr(row) == gone
        )
        text = json.dumps(list(values.values()), default=str)
        delete_keys(query.root, store_of(query), KeyChoice(text), WHY, execute=True)
        query.restart()
        assert contents(query) == contents(other)
        for batch in case.batches[half:]:
            assert sorted(map(repr, query.feed(batch))) == sorted(map(repr, other.feed(batch)))
        assert contents(query) == contents(other)
        query.crash(lose_copies=True)
        assert tail_of(query).row_counts == tail_of(other).row_counts


def processor(case: Case) -> Harness:
    """Return a query of a processor."""
    operator = transform_with_state(
        case.processor("rows"), key=case.key, output=case.output, output_mode=case.output_mode,
        time_mode=case.time_mode, watermark=case.watermark, order_by="seq",
    )  # fmt: skip
    return Harness(operator, case.input, initial=case.initial, snapshot_chain_links=3)


def contents(query: Harness) -> list[str]:
    """Return all rows of the committed state."""
    return sorted(map(repr, query.table().to_pylist()))


VISITS = pa.schema([("user", pa.string())])


def everything() -> Harness:
    """Return a query with all kinds of variables."""
    operator = transform_with_state(
        Everything("user"),
        key="user",
        output="user string, shown string",
        output_mode="update",
        time_mode="ProcessingTime",
    )
    return Harness(operator, VISITS, now_ms=100_000, key_groups=2)


def shown(rows: list[dict[str, object]]) -> dict[object, object]:
    """Return the shown text by user."""
    return {row["user"]: row["shown"] for row in rows}


def test_the_timer_and_ttls_of_a_deleted_key_are_deleted() -> None:
    """The timer and the TTLs of a deleted key are deleted, and other timers of its key-group fire."""
    with everything() as query:
        users = [f"u{n}" for n in range(8)]
        query.feed([{"user": user} for user in users])
        query.advance(10)
        query.feed([{"user": "u0"}])
        delete(query, "u0")
        assert not any(("u0",) in query.state(name) for name in ("last", "seen", "tags"))
        assert ("u0",) not in query.timers()
        query.advance(20)
        fired = shown(query.feed())
        assert fired == dict.fromkeys(users[1:], "fired 130000")
        log = Log(open_store(query.root), query.root)
        log.open()
        assert {entry.timer_ms for entry in log.manifest.entries.values()} == {160_000}


def test_deleting_one_variable_keeps_the_others() -> None:
    """Deleting one variable of a key keeps its other variables and its timer."""
    with everything() as query:
        query.feed([{"user": "ann"}, {"user": "bob"}])
        steps = delete(query, "ann", variable="tags")
        assert "variable 'tags' of 1 of 1" in steps[0]
        assert tail_of(query).edit["variable"] == "tags"
        assert set(query.state("tags")) == {("bob",)}
        assert set(query.state("last")) == set(query.timers()) == {("ann",), ("bob",)}
        assert tail_of(query).row_counts == {store_of(query): 5}


def test_a_set_value_replaces_the_whole_variable() -> None:
    """A set value, list or map replaces the whole variable, and its TTL starts at the newest batch."""
    with everything() as query:
        query.feed([{"user": "ann"}, {"user": "bob"}])
        store = store_of(query)
        for variable, value in (
            ("last", "41"),
            ("seen", '[{"at": 1, "n": 2}, {"at": 3, "n": null}]'),
            ("tags", '{"x": 7, "y": 8}'),
        ):
            set_value(query.root, store, "ann", value, WHY, variable=variable, execute=True)
        set_value(query.root, store, "eve", '[["t", {"n": 5}]]', WHY, variable="tags", execute=True)
        query.restart()
        assert query.state("last")[("ann",)] == (41,)
        assert query.state("seen")[("ann",)] == [(1, 2), (3, None)]
        assert query.state("tags") == {
            ("ann",): {("x",): (7,), ("y",): (8,)},
            ("bob",): {("t",): (1,)},
            ("eve",): {("t",): (5,)},
        }
        assert query.expires("tags")[("eve",)] == [160_000]
        assert tail_of(query).row_counts == {store: 9}
        query.advance(1)
        text = shown(query.feed([{"user": "ann"}]))["ann"]
        assert text == "42 [[(1, 2), (3, None), (101000, 1)], [('t', 1), ('x', 7), ('y', 8)]]"
        set_value(query.root, store, "ann", "[]", WHY, variable="seen", execute=True)
        query.restart()
        assert ("ann",) not in query.state("seen")


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("", "1", "several state variables"),
        ("lst", "1", "Unknown variable 'lst'"),
        ("last", '"x"', "last.at must be int64"),
        ("seen", "1", "seen must be a JSON list"),
        ("seen", "[1]", "must be struct"),
        ("tags", "[1]", "list of .key, value. pairs"),
        ("tags", '[["x", 1], ["x", 2]]', "different keys"),
    ],
)
def test_a_value_that_does_not_fit_a_variable_is_refused(variable: str, value: str, problem: str) -> None:
    """A value that does not fit a variable is refused with the variable, the field and the type."""
    with everything() as query:
        query.feed([{"user": "ann"}])
        with pytest.raises(ConfigError, match=problem):
            set_value(query.root, store_of(query), "ann", value, WHY, variable=variable)


def test_a_set_value_with_a_due_time_expires_in_time() -> None:
    """The timer of a key-group moves when a key with a due time is deleted or set, and the set key ends in time."""
    operator = Stateful("windows", ("end", "k"), CountedWindows("append", False))
    with Harness(operator, KEY, late=ENDS, key_groups=1) as query:
        query.feed(rows_of((100, "a"), (200, "b")))
        assert timer_of(query) == 110_000
        first = next(key for key in query.state() if key[1] == "a")
        text = json.dumps([str(first[0]), "c"])
        state = dict(query.state()[first])  # type: ignore[call-overload]
        delete(query, json.dumps([str(first[0]), "a"]))
        assert timer_of(query) == 210_000
        set_value(query.root, "windows", text, json.dumps(state), WHY, execute=True)
        query.restart()
        assert timer_of(query) == 110_000
        query.advance_watermark(150_000)
        assert [(row["k"]) for row in query.feed()] == ["c"]


def timer_of(query: Harness) -> int | None:
    """Return the due time of the only key-group."""
    log = Log(open_store(query.root), query.root)
    log.open()
    return next(iter(log.manifest.entries.values())).timer_ms


def test_setting_values_of_joins_and_sessions_is_refused() -> None:
    """Values of deduplications, joins, sessions and DISTINCT cannot be set, and the remedy is `riffle state delete`."""
    key = pa.schema([("k", pa.string())])
    dues = PlainColumns("s", key, pa.schema([("due", pa.int64())]), "due", "EventTime")
    lists = pa.schema([(name, pa.list_(pa.int64())) for name in ("start", "end")])
    sessions = make_recorded_text(None, PlainColumns("s", key, lists), 0, {"end": "key session_window"})
    join = make_recorded_text(None, VariableColumns("s", key, ()), 0, {"join": "inner"})
    counted = PlainColumns("s", pa.schema([*key, ("v", pa.int64())]), pa.schema([("n", pa.int64())]), routed_by=("k",))
    for text, problem in (
        (dues.to_text(), "only its keys"),
        (sessions, "open sessions"),
        (join, "rows of its inputs"),
        (counted.to_text(), "DISTINCT"),
    ):
        edit = EditOfState("s", pa.table({"k": ["a"]}), value=({},))
        with pytest.raises(ConfigError, match=problem) as error:
            check_edit(edit, text)
        assert "riffle state delete" in error.value.remedy
    with pytest.raises(ConfigError, match="RIFFLE-1592") as error:
        check_edit(EditOfState("s", pa.table({"v": [1]})), counted.to_text())
    assert error.value.remedy == "Give the columns k."
    open_sessions = pa.table({"k": ["a", "b"], "start": [[1, 5], [9]], "end": [[2, 6], [10]]})
    assert count_state_rows(schema_of_text("s", sessions), "session", open_sessions) == 3


def test_partitions_are_searched_for_a_key(tmp_path: Path) -> None:
    """With partition dispatch all partitions are searched for a key, and a key without state cannot be set."""
    world = World(tmp_path, root=f"file://{tmp_path}/state", dispatch="partition")
    query = Played(world)
    query.batches(3)
    root = world.home.root
    tail = Log(open_store(root), root).open()
    assert tail is not None
    store = next(iter(tail.schemas))
    table = read_store(root, store)
    key, value = table.select(table.column_names[:1]).to_pylist()[0], table.column_names[1]
    text = str(next(iter(key.values())))
    plan = set_value(root, store, text, json.dumps({value: 4711}), WHY, execute=True)
    assert "set 1 of 1" in plan.steps[0]
    assert 4711 in read_store(root, store).column(value).to_pylist()
    plan = set_value(root, store, "never-seen", json.dumps({value: 4711}), WHY, execute=True)
    assert "partition is unknown" in plan.steps[0]
    plan = delete_keys(root, store, KeyChoice(text), WHY, execute=True)
    assert 4711 not in read_store(root, store).column(value).to_pylist()


def read_store(root: str, store: str) -> pa.Table:
    """Return the state of a store."""
    objects = open_store(root)
    log = Log(objects, root)
    tail = log.open()
    assert tail is not None
    schema = schema_of_text(store, tail.schemas[store])
    entries = ((key_group, entry) for (name, key_group), entry in log.manifest.entries.items() if name == store)
    return pa.concat_tables(read_key_group(schema, kg, entry, Reader(objects)) for kg, entry in entries)


def test_a_rollback_to_the_previous_record_undoes_a_deletion(tmp_path: Path) -> None:
    """The plan of a deletion names the record to roll back to, and batches continue from there."""
    with totals() as query:
        query.feed(rows("ann", "bob"))
        state = query.state()
        steps = delete(query, "ann")
        target = steps[1].partition("--to record:")[2].split()[0]
        checkpoint = tmp_path / "checkpoint"
        written_checkpoint(checkpoint, 1)
        rollback(query.root, f"record:{target}", str(checkpoint), execute=True)
        query.restart()
        assert query.state() == state
        query.feed(rows("ann"))
        assert query.state()[("ann",)]["visits"] == 2  # type: ignore[index]


def test_state_commands_show_a_plan_and_change_only_with_execute(tmp_path: Path) -> None:
    """`riffle state delete` and `set` show a plan and change state only with --execute, and `riffle log` shows user and
    reason.
    """
    with totals() as query:
        query.feed(rows("ann", "bob"))
        common = (query.root, "--store", "totals", "--reason", "ticket 7")
        done = run_command("state", "delete", *common, "--key", "ann")
        assert "Nothing was changed" in done.output
        assert run_command("state", "delete", *common).exit_code == 2
        assert run_command("state", "delete", *common[:3], "--key", "ann", "--reason", " ").exit_code == 2
        done = run_command("state", "set", *common, "--key", "bob", "--value", '{"total": 9}', "--execute")
        assert done.exit_code == 0, done.output
        assert json.loads(run_command("state", "delete", *common, "--key", "ann", "--execute", "--json").output)[
            "executed"
        ]
        query.restart()
        assert query.state() == {("bob",): {"visits": 1, "most": 1, "total": 9}}
        shown_log = run_command("log", query.root).output
        assert shown_log.count("ticket 7") == 2
        assert "ann" not in shown_log.replace("ann@", "")
