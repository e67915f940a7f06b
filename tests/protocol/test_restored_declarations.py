"""After a root is restored from a backup, new columns get an epoch that was used before. Local copies that were merged
with the earlier columns are not used.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.state.restore import stack_parts
from riffle_spark.testing import SimSink
from tests.kit.simulated.world import ROWS, World, rows_of

STORE = "seen"
KEYS = [f"key-{number}" for number in range(8)]


def seen(*names: str) -> Operator:
    """Return an operator that counts the batches of each key in each of these columns."""
    state = pa.schema([(name, pa.int64()) for name in names])
    output = pa.schema([("k", pa.string()), *state])

    def count(rows: pa.Table, before: pa.Table) -> tuple[pa.Table, pa.Table]:
        stored_rows = {row["k"]: row for row in before.to_pylist()}
        keys = sorted(set(rows["k"].to_pylist()))
        new_rows = [
            {"k": key, **{name: (stored_rows.get(key, {}).get(name) or 0) + 1 for name in names}} for key in keys
        ]
        now = pa.Table.from_pylist(new_rows, schema=output)
        return now, now

    return operator_of(STORE, ["k"], arrow_function(count, state=state, output=output), (), ROWS)


def batch_of(version: int) -> pa.Table:
    """Return a row for each key."""
    return rows_of(*[(key, version, 100 * version + index) for index, key in enumerate(KEYS)])


def test_copies_without_a_column_are_restored_after_a_root_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query without a column merges copies and fails. After the root is restored, a query with that column has the
    same epoch, and its state is complete.
    """
    monkeypatch.setattr(stack_parts, "_PARTS_MAX", 1)  # private: small state
    world = World(tmp_path, executors=["1"], operators=[seen("n", "c")], retained_versions=50)
    for version in range(2):
        world.batch(version, batch_of(version))
    backup = {name: world.memory.get(name) or b"" for name in world.memory.list("")}

    def fails(*_: object) -> None:
        raise ConnectionError

    world.operators, world.sinks[STORE] = [seen("n")], fails  # type: ignore[assignment]
    world.start()
    with pytest.raises(ConnectionError):
        world.batch(2, batch_of(2))
    given_up = world.log().tail
    world.memory.delete(world.memory.list(""))
    for name, data in backup.items():
        world.memory.put_if_absent(name, data)
    world.operators, world.sinks[STORE] = [seen("n", "c", "d")], SimSink()
    world.start()
    world.batch(2, rows_of((KEYS[0], 2, 200)))
    for version in range(3, 5):
        world.batch(version, batch_of(version))
    tail = world.log().tail
    assert tail is not None
    assert given_up is not None
    assert tail.epoch == given_up.epoch, "both queries have the same epoch"
    expected: dict[object, tuple[object, ...]] = dict.fromkeys(KEYS, (4, 4, 2))
    assert world.state(STORE) == {**expected, KEYS[0]: (5, 5, 3)}
