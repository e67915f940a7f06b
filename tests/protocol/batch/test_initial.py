"""Records list the loaded initial states. The driver loads missing ones, also after a rollback or adoption."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import USUAL_INITIAL
from riffle_spark.offline.recovery import adopt, rollback
from riffle_spark.protocol.batch.initial import check_initial, is_initial_state_due, loaded_names, with_initial_state
from riffle_spark.protocol.operator import Operator
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.memory import MemoryStore
from tests.kit.simulated.world import World, totals
from tests.kit.state.drawn_records import PLAIN, drafted

COLUMNS = pa.schema([("k", pa.string())])


def operator_with_initial(name: str, store: str = "totals") -> Operator:
    """Return an operator with an initial state."""
    return replace(totals(store), initial=COLUMNS, initial_name=name)


def after(*names: str, stores: tuple[str, ...] = ("totals",)) -> Record:
    """Return the record of a batch after which these initial states were loaded."""
    schemas = {store: {"text": ""} for store in stores}
    return replace(PLAIN, schemas=schemas, initial_states={"totals": names} if names else {})


def test_an_initial_state_is_due_until_a_record_lists_it() -> None:
    """An initial state is due until a record lists its name for the store. One without a name is due until the store
    exists.
    """
    assert is_initial_state_due(after(), operator_with_initial("a"))
    assert is_initial_state_due(after("a"), operator_with_initial("b"))
    assert not is_initial_state_due(after("a", "b"), operator_with_initial("a"))
    assert is_initial_state_due(after("a", stores=("totals", "other")), operator_with_initial("a", "other"))
    assert is_initial_state_due(PLAIN, operator_with_initial(USUAL_INITIAL))
    assert not is_initial_state_due(after(), operator_with_initial(USUAL_INITIAL))
    assert not is_initial_state_due(PLAIN, totals())


def test_a_record_lists_earlier_and_new_initial_states() -> None:
    """A record lists each earlier and new initial state once, also of stores that do not run."""
    tail = after("a")
    operators = [operator_with_initial("b"), operator_with_initial("c", "other"), totals()]
    assert loaded_names(tail, operators) == {"totals": ("a", "b"), "other": ("c",)}
    assert loaded_names(tail, [operator_with_initial("a")]) == {"totals": ("a",)}
    assert loaded_names(PLAIN, [totals()]) == {}


@pytest.mark.parametrize("dispatch", ["partition", "hashed"])
def test_partition_dispatch_refuses_an_initial_state_that_is_due(dispatch: str) -> None:
    """With partition or hashed dispatch, an initial state is refused if no record lists it."""
    for tail in (None, after("a")):
        with pytest.raises(ConfigError, match="RIFFLE-0807"):
            check_initial(tail, dispatch, [operator_with_initial("b")])
        check_initial(tail, "key_group", [operator_with_initial("b")])
    check_initial(after("a"), dispatch, [operator_with_initial("a"), totals()])


def test_an_aggregate_refuses_an_initial_state() -> None:
    """An aggregate refuses an initial state, because it has no function to handle it."""
    with pytest.raises(ConfigError, match="RIFFLE-0804"):
        with_initial_state(totals(), COLUMNS, "a")
    assert with_initial_state(totals(), None, "a") == totals()


def test_batches_without_initial_state_keep_the_listed_names(tmp_path: Path) -> None:
    """Batches without initial state keep the list of the previous record, also after a restart."""
    world = World(tmp_path)
    log = world.log()
    tail = log.append(replace(PLAIN, query_id="query", initial_states={"gone": ("a",)}), Manifest())
    world.start()
    world.batch(0, pa.table([["a"], [1], [1]], schema=totals().input))
    newest = world.log().tail
    assert newest is not None
    assert (newest.kind, newest.initial_states) == ("batch", tail.initial_states)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a Spark checkpoint of a query of two batches."""
    folder = tmp_path / "checkpoint"
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
        for batch in range(2):
            (folder / name / str(batch)).write_text("")
    (folder / "metadata").write_text('{"id":"query"}')
    return folder


def test_a_rollback_makes_later_initial_states_due_again(checkpoint: Path) -> None:
    """After a rollback, initial states that were loaded later are due again. An adopted query keeps its list."""
    store = MemoryStore(uuid.uuid4().hex)
    root = f"memory://{store.name}"
    log = Log(store, root)
    log.open()
    log.append(PLAIN, Manifest())
    for version, names in enumerate([("a",), ("a", "b")]):
        log.append(replace(drafted(f"c{version}", version), initial_states={"totals": names}), Manifest())
    adopt(root, str(checkpoint), execute=True)
    log.open()
    assert log.tail.initial_states == {"totals": ("a", "b")}  # type: ignore[union-attr]
    rollback(root, 0, str(checkpoint), execute=True)
    log.open()
    assert log.tail.initial_states == {"totals": ("a",)}  # type: ignore[union-attr]
