"""If a batch changes most rows of a key-group, its delta has the whole state and replaces the chain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.state.log.manifest import EMPTY_HEAD
from riffle_spark.state.restore.follow import restore_tables
from riffle_spark.state.restore.reader import Reader
from riffle_spark.worker import whole_groups
from tests.kit.worker.slot_member import Member, kept_last, rows_of

KEYS = [f"k{number}" for number in range(24)]


@pytest.fixture(autouse=True, scope="module")
def few_rows_are_enough() -> Iterator[None]:
    """Let small key-groups be sealed whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_groups, "_ROWS_MIN", 1)  # seals small batches whole
        yield


def stored(member: Member, folder: Path) -> dict[str, object]:
    """Return the state in the log, as a new member restores it."""
    entries = {kg: entry for kg, entry in member.entries.items() if entry.head != EMPTY_HEAD}
    tables = restore_tables(member.operator.schema, entries, Reader(member.store), folder)
    return {row["k"]: row["last"] for table in tables.values() for row in table.to_pylist()}


BATCH = st.tuples(
    st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 9), max_size=24), st.sampled_from("112")
)


@pytest.mark.parametrize("bytes_max", [1 << 20, 200])
@given(st.lists(BATCH, max_size=8))
def test_the_log_has_the_state_for_whole_and_partial_deltas(
    tmp_path_factory: pytest.TempPathFactory, bytes_max: int, batches: list[tuple[dict[str, int | None], str]]
) -> None:
    """The log has the state of a dictionary, for changes of any size, on two executors of which one is behind."""
    folder = tmp_path_factory.mktemp("whole")
    member, state = Member(folder / "member", kept_last()), dict[str, object]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_groups, "_BYTES_MAX", bytes_max)  # a slot completes all or a few key-groups
        for number, (changes, executor) in enumerate(batches):
            member.feed(rows_of(*((k, v, 0) for k, v in changes.items())), executor)
            state.update(changes)
            state = {k: v for k, v in state.items() if v is not None}
            assert stored(member, folder / f"restored{number}") == state


def test_whole_deltas_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot completes key-groups up to a number of bytes. The other key-groups keep their deltas."""
    monkeypatch.setattr(whole_groups, "_BYTES_MAX", 700)  # small state
    member = Member(tmp_path, kept_last())
    member.feed(rows_of(*((f"k{number}", number, 0) for number in range(64))))
    _, receipt = member.answer(rows_of(*((f"k{number}", 1, 0) for number in range(64))))
    are_whole = [part.is_whole for part in sorted(receipt.parts)]
    assert 2 < sum(are_whole) < 8
    assert are_whole[:2] == [True, True]
    member.commit(receipt)
    assert stored(member, tmp_path / "restored") == {f"k{number}": 1 for number in range(64)}


@given(st.lists(st.tuples(st.lists(st.sampled_from(KEYS), max_size=24), st.sampled_from("112")), max_size=12))
def test_executors_that_missed_batches_output_all_counts(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[list[str], str]]
) -> None:
    """Each executor outputs the counts of all batches, whichever batches it missed."""
    member, counts = Member(tmp_path_factory.mktemp("m"), aggregate(total=count())), dict[str, int]()
    for keys, executor in batches:
        output = member.feed(rows_of(*((k, 1, 0) for k in keys)), executor)
        counts |= {k: counts.get(k, 0) + keys.count(k) for k in set(keys)}
        assert {str(row["k"]): row["total"] for row in output} == {k: counts[k] for k in set(keys)}


def test_a_batch_that_changes_most_rows_restarts_the_chain(tmp_path: Path) -> None:
    """A batch that changes most rows makes a chain of one link without a snapshot. A small batch adds a link."""
    member = Member(tmp_path, kept_last())
    for number in range(3):
        output, receipt = member.answer(rows_of(*((k, number, 0) for k in KEYS[:16])))
        assert output.num_rows == 16
        assert all(part.is_whole for part in receipt.parts) == bool(number)
        member.commit(receipt)
        assert {len(entry.chain) for entry in member.entries.values()} == {1}
    assert (receipt.restores, receipt.fetched_bytes, receipt.hits) == (0, 0, len(member.entries))
    assert {entry.base for entry in member.entries.values()} == {EMPTY_HEAD}
    _, receipt = member.answer(rows_of(*((k, None, 0) for k in KEYS[:16])))
    assert not any(part.is_whole for part in receipt.parts), "a key-group without rows keeps its deletions"
    member.commit(receipt)
    assert stored(member, tmp_path / "restored") == {}
