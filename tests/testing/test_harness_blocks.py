"""A harness runs blocks: aggregates and Arrow functions, durable or not, with crashes and late rows."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, get_args

import pyarrow as pa
import pytest

from riffle_spark import Stateful, aggregate, arrow_function, count, sum_
from riffle_spark.errors import ConfigError
from riffle_spark.testing import Aborted, Crashed, Harness, Step

ROWS = pa.schema([("user", pa.string()), ("paid", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
BEST = pa.schema([("best", pa.int64())])


def totals(**options: Any) -> Stateful:
    """Return an aggregate."""
    return Stateful("totals", "user", aggregate(payments=count(), paid=sum_("paid")), **options)


def best_of(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the greatest payment per user as output and as state."""
    candidates = pa.concat_tables([rows.select(["user", "paid"]).rename_columns(["user", "best"]), state])
    best = candidates.group_by("user").aggregate([("best", "max")]).select(["user", "best_max"])
    best = best.rename_columns(["user", "best"])
    return best, best


def best() -> Stateful:
    """Return an operator of an Arrow function."""
    return Stateful("best", "user", arrow_function(best_of, state=BEST, output=pa.schema([("user", "string"), *BEST])))


def paid(user: str, amount: int, second: int = 0) -> dict[str, object]:
    """Return a row."""
    return {"user": user, "paid": amount, "at": datetime.fromtimestamp(second, timezone.utc)}


def test_an_aggregate_continues_from_stored_totals() -> None:
    """An aggregate continues from the stored totals after a loss of all local copies."""
    with Harness(totals(), ROWS) as query:
        query.feed([paid("ann", 3), paid("ann", 4), paid("bob", 1)])
        query.crash(lose_copies=True)
        assert query.feed([paid("ann", 5)]) == [{"user": "ann", "payments": 3, "paid": 12}]
        assert query.state() == {("ann",): {"payments": 3, "paid": 12}, ("bob",): {"payments": 1, "paid": 1}}


def test_an_arrow_function_gets_the_state_that_it_returned() -> None:
    """An Arrow function gets the state that it returned before."""
    with Harness(best(), ROWS) as query:
        query.feed([paid("ann", 3), paid("bob", 9)])
        assert query.feed([paid("ann", 2)]) == [{"user": "ann", "best": 3}]
        assert query.state() == {("ann",): {"best": 3}, ("bob",): {"best": 9}}


@pytest.mark.parametrize("step", get_args(Step))
def test_a_crash_at_any_step_counts_nothing_twice(step: Step) -> None:
    """After a crash at any step the batch is repeated. State and sink are as without the crash."""
    with Harness(totals(), ROWS) as query:
        query.feed([paid("ann", 3)])
        query.crash_at(step)
        with pytest.raises(Crashed):
            query.feed([paid("ann", 4)])
        query.feed([paid("ann", 4)])
        assert list(query.state().values()) == [{"payments": 2, "paid": 7}]
        assert len(query.delivered()) == 2


def test_an_aborted_source_leaves_the_state_unchanged() -> None:
    """After the source aborts, the sealed deltas of the slots are in no batch, and the state is unchanged."""
    with Harness(totals(), ROWS) as query:
        query.abort()
        with pytest.raises(Aborted):
            query.feed([paid("ann", 3)])
        assert query.state() == {}
        assert query.feed([paid("ann", 3)]) == [{"user": "ann", "payments": 1, "paid": 3}]


def test_rows_before_an_advanced_watermark_are_late() -> None:
    """Rows before the watermark are dropped, as in Spark, one batch after the first batch with this watermark."""
    with Harness(totals(watermark=("at", "1 second")), ROWS) as query:
        query.feed([paid("ann", 1, second=1)])
        query.advance_watermark(60_000)
        query.feed([paid("ann", 1, second=59)])
        assert query.feed([paid("ann", 1, second=59), paid("ann", 1, second=61)])[0]["payments"] == 3
        assert [report.late_rows for report in query.reports] == [0, 0, 1]


def test_a_store_that_is_not_durable_is_empty_after_a_crash() -> None:
    """A store that is not durable has no readable state, and is empty after a crash."""
    with Harness(totals(durable=False), ROWS) as query:
        query.feed([paid("ann", 1)])
        assert query.feed([paid("ann", 1)])[0]["payments"] == 2
        assert query.state() == {}
        query.crash()
        assert query.feed([paid("ann", 1)])[0]["payments"] == 1


def test_variables_and_timers_of_a_block_are_refused() -> None:
    """Asking a block for timers or variables raises an error that names `state()` and `table()`."""
    with Harness(totals(), ROWS) as query:
        for ask in (query.timers, lambda: query.state("paid"), lambda: query.expires("paid")):
            with pytest.raises(ConfigError) as caught:
                ask()
            assert "state() or table()" in caught.value.remedy
