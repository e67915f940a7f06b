"""The Python calls in a slot do not grow with its rows. ``./run bench calls`` counts them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from riffle_spark.process.blocks.block import Computation
from riffle_spark.state.formats import part_codec
from riffle_spark.state.restore import stack_parts
from riffle_spark.worker import whole_groups
from tests.kit.worker.counted_slot import FEW, MANY, OneSlot, ending, sums, totals


@pytest.mark.parametrize(
    ("compute", "expired"), [(totals(), (0, 0)), (ending(), (501, 5001))], ids=["columns", "columns with an end"]
)
@pytest.mark.parametrize("whole_from_rows", [pytest.param(1, id="whole"), pytest.param(10**6, id="deltas")])
@pytest.mark.parametrize("headers_max", [pytest.param(1e-9, id="blocks"), pytest.param(math.inf, id="parts")])
def test_a_slot_makes_no_more_python_calls_for_more_rows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compute: Computation,
    expired: tuple[int, int],
    whole_from_rows: int,
    headers_max: float,
) -> None:
    """With ten times the rows and keys, a slot makes as many calls and runs as many lines, with and without expiry."""
    monkeypatch.setattr(whole_groups, "_ROWS_MIN", whole_from_rows)  # small and large groups are sealed alike
    monkeypatch.setattr(part_codec, "_HEADERS_MAX", headers_max)  # private: as above
    few, many = (OneSlot(tmp_path / str(rows), compute).settled(rows, rows // 2) for rows in (FEW, MANY))
    assert (few.receipt.expired, many.receipt.expired) == expired
    assert many.slot.is_like(few.slot), (many.slot, few.slot)


@pytest.mark.parametrize("headers_max", [pytest.param(1e-9, id="blocks"), pytest.param(math.inf, id="parts")])
def test_merges_and_restores_make_no_more_calls_for_more_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers_max: float
) -> None:
    """Merges after the answer and restores of copies make as many calls with ten times the rows."""
    monkeypatch.setattr(part_codec, "_HEADERS_MAX", headers_max)  # private: small and large groups are stored alike
    monkeypatch.setattr(whole_groups, "_ROWS_MIN", 10**6)  # whole deltas leave nothing to merge
    monkeypatch.setattr(stack_parts, "_MERGED_BYTES_MIN", 0)  # private: merges small stacks too
    slots = {rows: OneSlot(tmp_path / str(rows), totals()) for rows in (FEW, MANY)}
    few, many = (slot.settled(rows, rows // 2).tidied for rows, slot in slots.items())
    assert few.calls > 100 * 64, "nothing was merged"
    assert many.is_like(few), (many, few)
    cold_few, cold_many = (slot.batch(rows, rows // 2, executor="2") for rows, slot in slots.items())
    assert cold_few.receipt.restores == cold_many.receipt.restores == 64
    assert cold_many.slot.is_like(cold_few.slot), (cold_many.slot, cold_few.slot)


def test_a_processor_runs_only_the_lines_of_the_user_per_row(tmp_path: Path) -> None:
    """With more rows of the same keys, a processor makes no more calls, and runs only the two lines of the user's loop
    per row.
    """
    few, many = (OneSlot(tmp_path / str(rows), sums(), 16).settled(rows, 500).slot for rows in (FEW, MANY))
    assert many.calls <= 1.03 * few.calls
    assert many.lines - few.lines <= 2.01 * (MANY - FEW)
