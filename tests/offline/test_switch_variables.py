"""State variables of processors after switches of dispatch: values, lists, maps, TTLs and timers."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark import transform_with_state
from riffle_spark.errors import ConflictError
from riffle_spark.offline import reshard
from riffle_spark.offline.recovery import rollback
from riffle_spark.offline.switch import switch_dispatch
from riffle_spark.state.log.log import Log
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.schemas.variable_kinds import DUE
from riffle_spark.testing import Harness
from tests.kit.processors.catalogue import CASES
from tests.kit.processors.processor_case import Case
from tests.kit.simulated.switched_state import partition_of, shards_of, tail_of

pytestmark = pytest.mark.usefixtures("short_cycles")

TIMED = [name for name, case in CASES.items() if case.time_mode != "None"]
LATER = [name for name, case in CASES.items() if case.initial is None]
"""Cases without initial state, which has no partition."""
NUMBERS = (3, 32, 8, 1)
MODES = (("partition", 16), ("hashed", 16), ("key_group", 5), ("hashed", 16))


def harness(case: Case, **settings: Any) -> Harness:
    """Return a query of a case, whose rows also have their partition."""
    columns = [("topic", pa.string()), ("partition", pa.int64())]
    operator = transform_with_state(
        case.processor("rows"), key=case.key, output=case.output, output_mode=case.output_mode,
        time_mode=case.time_mode, watermark=case.watermark, order_by="seq",
    )  # fmt: skip
    usual = {"key_groups": 8, "retained_versions": 100, "snapshot_chain_links": 2}
    return Harness(operator, pa.schema([*case.input, *columns]), initial=case.initial, **{**usual, **settings})


def fed(query: Harness, case: Case, number: int) -> list[str]:
    """Run a batch of the case and return its sorted output."""
    rows = case.batches[number]
    places = partition_of(rows.select(list(case.key)))
    if case.times_ms:
        query.now_ms = case.times_ms[number]
    return sorted(
        map(repr, query.feed(pa.table([*rows.columns, *places.columns], [*rows.column_names, *places.column_names])))
    )


def state_of(query: Harness) -> list[str]:
    """Return all rows of the committed state of all shards."""
    return sorted(map(repr, query.table().to_pylist()))


def switch(query: Harness, dispatch: str, key_groups: int) -> None:
    """Switch the state of a stopped query, and start the query with the matching settings."""
    switch_dispatch(query.root, dispatch, partition_of=partition_of, key_groups=key_groups, execute=True)
    query.restart(dispatch=dispatch, key_groups=key_groups)


def entries_of(query: Harness) -> dict[int, Any]:
    """Return the listed entries by shard."""
    log = Log(open_store(query.root), query.root)
    log.open()
    return {shard: entry for (_, shard), entry in log.manifest.entries.items()}


def undisturbed(case: Case) -> list[tuple[list[str], list[str]]]:
    """Return the output and the state of each batch of a query that is not switched."""
    with harness(case) as query:
        return [(fed(query, case, number), state_of(query)) for number in range(len(case.batches))]


@functools.cache
def known(name: str) -> list[tuple[list[str], list[str]]]:
    """Return the output and the state of each batch of a catalogued case that is not switched."""
    return undisturbed(CASES[name])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sample(step=12)
def test_processors_are_correct_over_changes_of_the_key_group_number(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and state stay correct if the number of key-groups changes after each batch, also without local copies."""
    case = CASES[name]
    with harness(case) as query:
        for number, (output, state) in enumerate(known(name)):
            assert fed(query, case, number) == output
            switch(query, "key_group", NUMBERS[number % len(NUMBERS)])
            if number % 2:
                query.crash(lose_copies=True)
                monkeypatch.setattr(reshard, "_RUN_BYTES", 1)
            assert state_of(query) == state


@pytest.mark.parametrize("name", LATER)
@pytest.mark.sample(step=12)
def test_processors_are_correct_over_switches_of_dispatch(name: str) -> None:
    """Output and state are correct if the dispatch changes after every batch."""
    case = CASES[name]
    with harness(case) as query:
        for number, (output, state) in enumerate(known(name)):
            assert fed(query, case, number) == output
            switch(query, *MODES[number % len(MODES)])
            assert state_of(query) == state


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.sample(step=3)
def test_each_shard_has_its_earliest_due_time_after_a_switch(name: str) -> None:
    """The entry of each shard has its earliest due time after a switch."""
    case = CASES[name]
    with harness(case) as query:
        for number in range(2):
            fed(query, case, number)
        before = {shard: entry.timer_ms for shard, entry in entries_of(query).items() if entry.timer_ms is not None}
        switch(query, "key_group", 3)
        entries = entries_of(query)
        for _, shard, rows in shards_of(query.root):
            assert entries[shard].timer_ms == min((ms for ms in rows[DUE].to_pylist() if ms is not None), default=None)
        switch(query, "key_group", 8)
        after = {shard: entry.timer_ms for shard, entry in entries_of(query).items() if entry.timer_ms is not None}
        assert after == before


def test_a_key_with_variables_in_two_partitions_is_refused() -> None:
    """A key with variables in two partitions is refused."""
    case = CASES["count"]
    with harness(case, dispatch="partition", key_groups=16) as query:
        rows = case.batches[0].slice(0, 1)
        for partition in (0, 1):
            query.feed(rows.append_column("topic", [["events"]]).append_column("partition", [[partition]]))
        with pytest.raises(ConflictError, match="RIFFLE-0160") as caught:
            switch_dispatch(query.root, "key_group", execute=True)
        assert repr(rows[case.key[0]][0].as_py()) in caught.value.problem
        assert tail_of(query.root).dispatch == "partition"


def test_a_rollback_over_a_switch_restores_variables_and_timers(tmp_path: Path) -> None:
    """A rollback over a switch restores the variables, timers and number of key-groups."""
    case = CASES[TIMED[0]]
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    (tmp_path / "metadata").write_text('{"id": "query"}')
    with harness(case) as query:
        states = []
        for number in range(2):
            fed(query, case, number)
            states.append((state_of(query), entries_of(query)))
        switch(query, "key_group", 3)
        fed(query, case, 2)
        rollback(query.root, 0, str(tmp_path), execute=True)
        assert tail_of(query.root).total == 8
        assert (state_of(query), entries_of(query)) == states[0]
