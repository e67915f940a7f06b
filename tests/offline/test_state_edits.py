"""Keys deleted from the state of a stopped query, and values set: what the query continues with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from riffle_spark import Stateful, aggregate, count, max_, sum_, transform_with_state
from riffle_spark.errors import ConfigError, ConflictError, RefusedError
from riffle_spark.offline.state_edits import Editor, KeyChoice, delete_keys, set_value
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.testing import Harness
from tests.kit.processors.catalogue import CASES
from tests.kit.processors.processor_case import Case

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


def delete(query: Harness, key: str, **options: Any) -> tuple[str, ...]:
    """Delete a key and restart the query; return the steps."""
    plan = delete_keys(query.root, query._operator.store, KeyChoice(key), WHY, execute=True, **options)
    query.restart()
    return plan.steps


def test_a_deleted_key_starts_again_and_others_continue() -> None:
    """The next row of the key is its first one. The record has the reason and no key."""
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


def test_the_null_key_is_not_the_text_null() -> None:
    """`[null]` names the key without a value."""
    with totals() as query:
        query.feed(rows("null", None))
        delete(query, "[null]")
        assert set(query.state()) == {("null",)}


def test_a_key_without_state_changes_nothing() -> None:
    """No record is written for it."""
    with totals() as query:
        query.feed(rows("ann"))
        sequence = tail_of(query).sequence
        steps = delete(query, "eve")
        assert "change nothing" in steps[0]
        assert tail_of(query).sequence == sequence


def test_a_value_that_was_set_is_what_the_query_continues_with() -> None:
    """Columns that the value omits stay. A new key has nulls there."""
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
    """Nothing is read or written for it."""
    with totals() as query:
        query.feed(rows("ann"))
        with pytest.raises(ConfigError) as error:
            set_value(query.root, "totals", "ann", value, WHY, execute=True)
        assert problem in error.value.problem


def test_unknown_stores_and_variables_are_refused() -> None:
    """With the nearest known name."""
    with totals() as query:
        query.feed(rows("ann"))
        with pytest.raises(ConfigError, match="Unknown store 'total'"):
            delete_keys(query.root, "total", KeyChoice("ann"), WHY)
        with pytest.raises(ConfigError, match="Unknown variable 'visits'"):
            delete_keys(query.root, "totals", KeyChoice("ann"), WHY, variable="visits")


def test_keys_of_a_file_are_deleted_together(tmp_path: Path) -> None:
    """Keys without state are ignored; a file with other columns is refused."""
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
        assert sum(state["visits"] for state in query.state().values()) == 450  # type: ignore[index,misc]
        pq.write_table(pa.table({"usr": users}), tmp_path / "keys.parquet")
        with pytest.raises(ConfigError, match="Unknown column 'usr'"):
            delete_keys(query.root, "totals", choice, WHY)
        (tmp_path / "keys.parquet").write_bytes(b"PAR1")
        with pytest.raises(ConfigError, match="cannot be read"):
            delete_keys(query.root, "totals", choice, WHY)


def test_a_driver_that_still_runs_is_fenced() -> None:
    """The record claims an epoch, as every command that changes a root does."""
    with totals() as query:
        query.feed(rows("ann"))
        delete_keys(query.root, "totals", KeyChoice("ann"), WHY, execute=True)
        with pytest.raises(Exception, match="Another driver"):
            query.feed(rows("ann"))


def test_a_command_that_loses_to_a_driver_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that appears meanwhile is a conflict, and the query continues with what it had."""
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


def test_encrypted_state_stays_encrypted(tmp_path: Path) -> None:
    """The delta is encrypted with the newest key, and without keys the command is refused."""
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
def test_a_processors_deleted_key_is_as_if_it_had_never_arrived(name: str) -> None:
    """All variables of the key go. What follows equals a query whose earlier batches lacked the key's rows."""
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
        delete_keys(query.root, query._operator.store, KeyChoice(text), WHY, execute=True)
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
