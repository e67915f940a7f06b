"""After random batches, restarts, snapshots and commands, every retained batch and all changes agree with a model."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError
from riffle_spark.offline.recovery import adopt, rollback
from riffle_spark.offline.switch import switch_dispatch
from riffle_spark.state.log import log
from riffle_spark.state_tables.differences import iterate_differences
from riffle_spark.state_tables.key_history import iterate_key_states
from riffle_spark.state_tables.read_state import read_table
from riffle_spark.state_tables.requested_keys import requested_keys
from riffle_spark.state_tables.state_view import StateRoot, open_root
from tests.kit.examples import costly
from tests.kit.simulated.world import Oracle, World, drawn_batch, two_stores

Content = dict[str, tuple[Any, ...]]


class Step(NamedTuple):
    """A batch, a start of a new driver, an adopt by another query, a rollback by ``number`` batches, or a switch to
    ``number`` key-groups.
    """

    kind: str
    number: int = 0


STEPS = st.lists(
    st.one_of(
        st.just(Step("batch")), st.just(Step("batch")), st.just(Step("batch")), st.just(Step("start")),
        st.just(Step("adopt")), st.builds(Step, st.just("rollback"), st.integers(1, 5)),
        st.builds(Step, st.just("switch"), st.integers(1, 9)),
    ),
    min_size=3, max_size=10,
)  # fmt: skip


class QueryHistory:
    """A simulated query with a model's state of each batch of its present history."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.world = World(folder / "copies", operators=two_stores(), executors=["1"], seed=seed, retained_versions=100)
        self.states: list[dict[str, Content]] = []
        (folder / "offsets").mkdir()
        (folder / "commits").mkdir()
        (folder / "metadata").write_text(json.dumps({"id": "query"}))

    def run(self, step: Step) -> None:
        """Apply a step."""
        if step.kind == "batch":
            self._batch()
            return
        world = self.world
        if step.kind == "adopt":
            world.query_id += "+"
            (self.folder / "metadata").write_text(json.dumps({"id": world.query_id}))
            adopt(world.home.root, str(self.folder), execute=True)
        elif step.kind == "switch" and step.number != world.settings.key_groups:
            switch_dispatch(world.home.root, "key_group", key_groups=step.number, execute=True)
        elif step.kind == "rollback" and len(self.states) > step.number:
            del self.states[len(self.states) - step.number :]
            rollback(world.home.root, len(self.states) - 1, str(self.folder), execute=True)
        tail = world.log().tail
        assert tail is not None
        world.settings = world.settings.but(key_groups=tail.total)
        world.start()

    def _batch(self) -> None:
        """Run a batch and append the model's state after it."""
        version = len(self.states)
        oracle = Oracle()
        if self.states:
            oracle.totals = dict(self.states[-1]["totals"])
            oracle.tails = {key: [*values] for key, (values,) in self.states[-1]["tails"].items()}
        rows = drawn_batch(self.chance, version)
        oracle.feed(rows)
        self.world.batch(version, rows)
        (self.folder / "offsets" / str(version)).write_text(f"offsets-{version}")
        (self.folder / "commits" / str(version)).write_text("v1\n{}")
        tails = {key: (tuple(values),) for key, values in oracle.tails.items()}
        self.states.append({"totals": dict(oracle.totals), "tails": tails})


@contextmanager
def past(steps: list[Step], seed: int) -> Iterator[tuple[QueryHistory, StateRoot]]:
    """Run the steps and open the root."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(log, "FULL_EVERY", 4)
        query = QueryHistory(Path(folder), seed)
        query.run(Step("batch"))
        for step in steps:
            query.run(step)
        yield query, open_root(query.world.home.root)


def content_of(rows: list[dict[str, Any]]) -> Content:
    """Return the rows of a store by key."""
    added = ("k", "key_group", "version", "due_ms")
    content = {
        row["k"]: tuple(tuple(v) if isinstance(v, list) else v for name, v in row.items() if name not in added)
        for row in rows
    }
    assert len(content) == len(rows)
    return content


@costly(3)
@given(STEPS, st.integers(0, 1000))
def test_each_retained_batch_equals_the_model(steps: list[Step], seed: int) -> None:
    """Each retained batch of both stores equals the model, as a whole and by key, and other batches are refused."""
    with past(steps, seed) as (query, root):
        for version, state in enumerate(query.states):
            for store, expected in state.items():
                table = root.view(version).table(store)
                rows = read_table(table).read_all().to_pylist()
                assert content_of(rows) == expected
                assert all(row["version"] <= version for row in rows)
                selected = [*sorted(expected)[:2], "absent"]
                keys = requested_keys(selected, table.store_schema)
                some = content_of(read_table(table, keys).read_all().to_pylist())
                assert some == {key: expected[key] for key in selected if key in expected}
        with pytest.raises(ConfigError):
            root.view(len(query.states))


@costly(3)
@given(STEPS, st.integers(0, 1000))
def test_differences_lead_from_one_batch_to_the_next(steps: list[Step], seed: int) -> None:
    """Differences between two batches lead from the first state to the second and contain no unchanged row."""
    with past(steps, seed) as (query, root):
        pairs = [*pairwise(range(len(query.states))), (0, len(query.states) - 1), (len(query.states) - 1, 0)]
        for first, second in pairs:
            for store in ("totals", "tails"):
                state = dict(query.states[first][store])
                before_table, after_table = (root.view(version).table(store) for version in (first, second))
                for difference in iterate_differences(before_table, after_table):
                    sides = zip(
                        difference.changes.to_pylist(), difference.before.to_pylist(), difference.after.to_pylist(),
                        strict=True,
                    )  # fmt: skip
                    for change, before, after in sides:
                        if change != "insert":
                            assert content_of([before]) == {before["k"]: state.pop(before["k"])}
                        if change != "delete":
                            assert after["k"] not in state
                            state |= content_of([after])
                            assert change == "insert" or content_of([before]) != content_of([after])
                assert state == query.states[second][store]


@costly(3)
@given(STEPS, st.integers(0, 1000))
def test_the_history_of_a_key_has_each_of_its_states(steps: list[Step], seed: int) -> None:
    """The history of a key has each of its states, newest first, with the batch in which it began."""
    with past(steps, seed) as (query, root):
        for store in ("totals", "tails"):
            newest = root.view().table(store)
            for key in ("key-0", "key-1", "absent"):
                expected: list[tuple[int, tuple[Any, ...] | None]] = [(-1, None)]
                for version, state in enumerate(query.states):
                    if expected[-1][1] != state[store].get(key):
                        expected.append((version, state[store].get(key)))
                keys = requested_keys([key], newest.store_schema)
                states = [*iterate_key_states(root, newest, keys)]
                history = [(state.version, content_of(state.rows.to_pylist()).get(key)) for state in states]
                assert [content for _, content in history] == [content for _, content in reversed(expected)]
                assert history[:-1] == expected[:0:-1]
                assert [state.is_oldest for state in states] == [False] * (len(states) - 1) + [True]
