"""The changes of a batch lead from each state to the next, for every kind of store."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark import Stateful, aggregate, count
from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import LateRule
from riffle_spark.offline.state_edits import Editor, KeyChoice, delete_keys
from riffle_spark.offline.switch import switch_dispatch
from riffle_spark.process.stages.distinct_rows import DistinctRows
from riffle_spark.state.log import paths
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.schemas.variable_kinds import TIMER
from riffle_spark.state_tables import table_pieces
from riffle_spark.state_tables.change_feed import BATCH_ID, CHANGE_TYPE, read_changes
from riffle_spark.state_tables.differences import DELETE, iterate_differences
from riffle_spark.state_tables.read_state import read_table
from riffle_spark.state_tables.requested_keys import RequestedKeys, requested_keys
from riffle_spark.state_tables.state_view import StateTable, open_root
from riffle_spark.state_tables.table_columns import ROLE
from riffle_spark.state_tables.table_pieces import split_changes
from riffle_spark.testing import Harness
from riffle_spark.worker import whole_groups
from tests.kit.examples import costly
from tests.process.stages import test_distinct_rows as clicks
from tests.process.stages import test_paired_rows as joins
from tests.state_tables.test_versions_property import STEPS, Step, past
from tests.testing.test_harness_processors import baskets, took

State = dict[tuple[Any, ...], dict[str, Any]]


def names_of(schema: pa.Schema, *roles: bytes) -> list[str]:
    """Return the names of the columns with one of these roles."""
    return [field.name for field in schema if (field.metadata or {}).get(ROLE) in roles]


def frozen(value: Any) -> Any:
    """Return a hashable form of a value."""
    return repr(value)


def state_of(table: pa.Table) -> State:
    """Return rows by their identifying columns."""
    identity = names_of(table.schema, b"key", b"map_key", b"index", b"timer")
    content = names_of(table.schema, b"state", b"due")
    return {
        tuple(frozen(row[name]) for name in identity): {name: row[name] for name in content}
        for row in table.to_pylist()
    }


def applied(state: State, changes: pa.Table) -> State:
    """Return a state after the changes of one batch."""
    schema = changes.schema
    keys = names_of(schema, b"key")
    elements = names_of(schema, b"map_key", b"index", b"timer")
    content = names_of(schema, b"state", b"due")
    state = dict(state)
    for row in changes.to_pylist():
        key = tuple(frozen(row[name]) for name in keys)
        identity = (*key, *(frozen(row[name]) for name in elements))
        if row[CHANGE_TYPE] == "update":
            state[identity] = {name: row[name] for name in content}
        elif elements and all(row[name] is None for name in elements):
            state = {known: value for known, value in state.items() if known[: len(key)] != key}
        else:
            state.pop(identity, None)
            assert all(row[name] is None for name in content)
    return state


def check_changes(root: str, store: str | None = None, variable: str | None = None, first: int = 0) -> int:
    """Compare the state of each batch with the previous state and the batch's changes. Return the number of changes."""
    opened = open_root(root)
    newest = opened.view().table(store, variable)
    version = newest.view.record.version
    changes = read_changes(newest, first, version).read_all()
    rows_before = read_table(opened.view(first - 1).table(store, variable)).read_all() if first else None
    state = {} if rows_before is None else state_of(rows_before)
    for batch in range(first, version + 1):
        state = applied(state, changes.filter(pa.compute.equal(changes[BATCH_ID], batch)))
        assert state == state_of(read_table(opened.view(batch).table(store, variable)).read_all()), batch
    return changes.num_rows


@costly(3)
@given(STEPS, st.integers(0, 1000))
def test_changes_cover_all_batches_of_the_present_history(steps: list[Step], seed: int) -> None:
    """Changes lead through all batches of the present history, also after restarts, snapshots and rollbacks."""
    with past(steps, seed) as (query, root):
        for store in ("totals", "tails"):
            check_changes(root.root, store)
            if len(query.states) > 2:
                check_changes(root.root, store, first=2)


def test_changes_of_variables_include_elements_timers_and_deleted_keys() -> None:
    """Changes of variables include elements, timers, deleted keys, expired elements and fired timers."""
    chance = random.Random(5)
    with baskets(snapshot_chain_links=3) as query:
        for _ in range(12):
            names = ["ann", "bob", "cid"]
            query.feed(
                [
                    row
                    for name in names
                    for row in took(*chance.choices(["pen", "ink"], k=chance.randrange(3)), user=name)
                ]
            )
            query.advance(chance.choice([1, 5, 30, 70]))
        counts = {name: check_changes(query.root, variable=name) for name in ("count", "taken", "kinds", TIMER)}
        assert min(counts.values()) > 5


@pytest.mark.parametrize("whole_from_rows", [1, 128])
@pytest.mark.parametrize("name", ["within", "by_time"])
def test_expired_keys_are_not_read_and_count_as_deletes(
    monkeypatch: pytest.MonkeyPatch, name: str, whole_from_rows: int
) -> None:
    """Expired keys are not read and count as deletes, whether they are in a snapshot, a delta or a whole delta."""
    monkeypatch.setattr(whole_groups, "_ROWS_MIN", whole_from_rows)  # private: seals few rows whole, or never
    form = clicks.FORMS[name]
    late = LateRule("at", "rows")
    with Harness(
        Stateful("clicks", form.key, DistinctRows(form.spec)), form.spec.output, late=late, snapshot_chain_links=3,
        key_groups=16,
    ) as query:  # fmt: skip
        for batch in range(10):
            query.advance_watermark(1000 * batch)
            rows = [clicks.Click(1_000_000 * (batch + n) + 1, f"u{batch}-{n}", n, n) for n in range(3)]
            query.feed(clicks.rows_of(rows, form.spec))
        table = open_root(query.root).view().table(None)
        stored_keys = {tuple(row[name] for name in form.key) for row in read_table(table).read_all().to_pylist()}
        assert stored_keys == set(query.state())
        assert len(stored_keys) < 20
        assert read_changes(table, 0, 9).read_all()[CHANGE_TYPE].to_pylist().count("delete") > 9
        assert check_changes(query.root) > 39
        tables = [read_table(open_root(query.root).view(batch).table(None)).read_all() for batch in range(10)]
        known_keys = [{tuple(row[name] for name in form.key) for row in rows.to_pylist()} for rows in tables]
        for batch in range(1, 10):
            left, right = (open_root(query.root).view(version).table(None) for version in (batch - 1, batch))
            deleted = {
                tuple(row[name] for name in form.key)
                for difference in iterate_differences(left, right)
                for change, row in zip(difference.changes.to_pylist(), difference.before.to_pylist(), strict=True)
                if change == DELETE
            }
            assert deleted == known_keys[batch - 1] - known_keys[batch]


def test_changes_of_join_sides_include_buffered_and_removed_rows() -> None:
    """Changes of a join's sides include rows that are buffered and rows that are removed."""
    with joins.harness(joins.SPECS["full"]) as query:
        for batch in range(6):
            query.feed(
                joins.table_of([joins.Row(n % 2 == 0, "ab"[n % 2], 1000 * (batch * 9 + n), n, True) for n in range(6)])
            )
            query.advance_watermark(9000 * batch)
        assert min(check_changes(query.root, variable=side) for side in ("left", "right")) > 6


def test_an_operators_change_is_reported_with_the_next_batch() -> None:
    """A change by an operator is part of the changes of the next batch, and is reported once."""
    why = Editor("ticket 7", "ann", "laptop")
    with Harness(Stateful("visits", "user", aggregate(n=count())), "user string") as query:
        query.feed([{"user": "ann"}, {"user": "bob"}])
        delete_keys(query.root, "visits", KeyChoice("ann"), why, execute=True)
        table = open_root(query.root).view().table(None)
        assert read_changes(table, 0, 0).read_all().num_rows == 2
        query.restart()
        query.feed([{"user": "bob"}])
        query.feed([{"user": "cid"}])
        table = open_root(query.root).view().table(None)
        rows = [read_changes(table, batch, batch).read_all().to_pylist() for batch in range(3)]
        changes = [sorted((row[CHANGE_TYPE], row["user"], row["n"]) for row in of_batch) for of_batch in rows]
        assert changes == [
            [("update", "ann", 1), ("update", "bob", 1)],
            [("delete", "ann", None), ("update", "bob", 2)],
            [("update", "cid", 1)],
        ]
        whole = read_changes(table, 0, 2).read_all().to_pylist()
        assert sorted(whole, key=repr) == sorted([row for of_batch in rows for row in of_batch], key=repr)


def test_batches_after_the_newest_one_are_refused() -> None:
    """Batches after the newest one and an empty range are refused."""
    with baskets() as query:
        query.feed(took("pen"))
        table = open_root(query.root).view().table(None, "count")
        for first, last in ((0, 1), (1, 0)):
            with pytest.raises(ConfigError, match="RIFFLE-1561"):
                read_changes(table, first, last)


@pytest.mark.usefixtures("short_cycles")
def test_changes_that_are_no_longer_retained_are_refused() -> None:
    """Changes of batches whose records are deleted are refused with the oldest batch whose changes can be read."""
    with Harness(Stateful("visits", "user", aggregate(n=count())), "user string") as query:
        for _ in range(8):
            query.feed([{"user": "ann"}])
        store = open_store(query.root)
        store.delete(store.list(paths.LOG)[:4])
        table = open_root(query.root).view().table(None)
        with pytest.raises(ConfigError, match=r"RIFFLE-1562.* the oldest changes are those of batch 4\."):
            read_changes(table, 3, 7)
        assert [row["n"] for row in read_changes(table, 4, 7).read_all().to_pylist()] == [5, 6, 7, 8]


@pytest.mark.parametrize("is_small", [True, False])
def test_pieces_of_changes_have_all_changes_once(monkeypatch: pytest.MonkeyPatch, is_small: bool) -> None:
    """Changes are split into pieces of whole key-groups, which together have each change once."""
    if is_small:
        monkeypatch.setattr(table_pieces, "_PIECE_BYTES", 1)
    with Harness(Stateful("visits", "user", aggregate(n=count())), "user string", key_groups=4) as query:
        for _ in range(3):
            query.feed([{"user": name} for name in "abcdefgh"])
        table = open_root(query.root).view().table(None)
        pieces = split_changes(table, 0, 2, None, StoreOptions(), None)
        key_groups = {row["key_group"] for row in read_table(table).read_all().to_pylist()}
        assert len(key_groups) > 1
        assert len(pieces) == (len(key_groups) if is_small else 1)
        rows = [row for piece in pieces for row in piece.read().read_all().to_pylist()]
        assert sorted(rows, key=repr) == sorted(read_changes(table, 0, 2).read_all().to_pylist(), key=repr)
        assert split_changes(table, 0, 2, [], StoreOptions(), None) == []


def test_a_switch_of_key_groups_is_not_a_change_of_keys() -> None:
    """A switch to other key-groups changes no key. Changes by an operator around it belong to the next batch."""
    users = [{"user": f"u{n}"} for n in range(12)]
    with Harness(Stateful("visits", "user", aggregate(visits=count())), "user string") as query:
        query.feed(users)
        query.feed(users[:3])
        for total, user in ((5, "u9"), (3, "u8")):
            delete_keys(query.root, "visits", KeyChoice(user), Editor("ticket 7"), execute=True)
            switch_dispatch(query.root, "key_group", key_groups=total, execute=True)
        delete_keys(query.root, "visits", KeyChoice("u7"), Editor("ticket 7"), execute=True)
        query.restart(key_groups=3)
        query.feed(users[:1])
        opened = open_root(query.root)
        newest = opened.view().table(None)
        changes = read_changes(newest, 2, 2).read_all()
        kinds = dict(zip(changes["user"].to_pylist(), changes[CHANGE_TYPE].to_pylist(), strict=True))
        assert changes.num_rows == 4
        assert kinds == {"u0": "update", "u9": "delete", "u8": "delete", "u7": "delete"}
        before = opened.view(0).table(None)
        expected = {"u0": "update", "u1": "update", "u2": "update", "u9": "delete", "u8": "delete", "u7": "delete"}
        assert changed_users(before, newest, None) == expected
        keys = requested_keys(["u0", "u5", "u9"], newest.store_schema)
        assert changed_users(before, newest, keys) == {"u0": "update", "u9": "delete"}


def changed_users(before: StateTable, after: StateTable, keys: RequestedKeys | None) -> dict[str, str]:
    """Return the kind of change of each user that differs between two tables. A user must not be repeated."""
    kinds: dict[str, str] = {}
    for difference in iterate_differences(before, after, keys):
        sides = (difference.changes, difference.before["user"], difference.after["user"])
        for kind, old, new in zip(*(side.to_pylist() for side in sides), strict=True):
            assert (old or new) not in kinds
            kinds[old or new] = kind
    return kinds
