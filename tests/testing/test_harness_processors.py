"""A harness runs processors: processing time, event time, crashes at every step, and access to state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pyarrow as pa
import pytest
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle, transform_with_state
from riffle_spark.errors import ConfigError
from riffle_spark.testing import Aborted, Crashed, Harness, Step

ROWS = pa.schema([("user", pa.string()), ("what", pa.string())])
START_MS = 1_700_000_000_000
WAITS_MS = 10_000


class Basket(StatefulProcessor):
    """A processor with a count, a list and a map of items. A timer reports users without rows for ten seconds."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare one variable of each kind."""
        self.handle = handle
        lives = None if self.event_time else 60_000
        self.count: Any = handle.getValueState("count", "n long")
        self.taken = handle.getListState("taken", "what string")
        self.kinds = handle.getMapState("kinds", "what string", "n long", lives)

    def __init__(self, *, event_time: bool = False) -> None:
        self.event_time = event_time

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Store the items and set the timer again."""
        for row in rows:
            self.count.update(((self.count.get() or (0,))[0] + 1,))
            self.taken.appendValue((row.what,))
            self.kinds.updateValue((row.what,), ((self.kinds.getValue((row.what,)) or (0,))[0] + 1,))
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(self._now(timerValues) + WAITS_MS)
        yield Row(user=key[0], count=self.count.get()[0], told="took")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002
        """Report the user."""
        yield Row(user=key[0], count=self.count.get()[0], told=f"waits at {self._now(timerValues)}")

    def _now(self, times: Any) -> int:
        return int(times.getCurrentWatermarkInMs() if self.event_time else times.getCurrentProcessingTimeInMs())


def baskets(*, event_time: bool = False, **settings: Any) -> Harness:
    """Return a harness of the processor."""
    operator = transform_with_state(
        Basket(event_time=event_time), key="user", output="user string, count long, told string",
        time_mode="EventTime" if event_time else "ProcessingTime",
    )  # fmt: skip
    return Harness(operator, ROWS, **settings)


def took(*whats: str, user: str = "ann") -> list[dict[str, str]]:
    """Return rows of one user."""
    return [{"user": user, "what": what} for what in whats]


def test_state_timers_and_ttl_are_shown_by_key() -> None:
    """The harness shows values, lists, maps, expiry times and timers by key."""
    with baskets() as query:
        query.feed(took("pen", "ink", "pen"))
        assert query.state("count") == {("ann",): (3,)}
        assert query.state("taken") == {("ann",): [("pen",), ("ink",), ("pen",)]}
        assert query.state("kinds") == {("ann",): {("ink",): (1,), ("pen",): (2,)}}
        assert query.expires("kinds") == {("ann",): [START_MS + 60_000] * 2}
        assert query.expires("count") == {("ann",): [None]}
        assert query.timers() == {("ann",): [START_MS + WAITS_MS]}
        with pytest.raises(ConfigError, match="RIFFLE-0477"):
            query.state()


def test_time_advances_only_on_request() -> None:
    """Time advances only on request: then the timer fires, and an element with a TTL expires."""
    with baskets() as query:
        query.feed(took("pen"))
        query.advance(9.999)
        assert query.feed() == []
        query.advance(0.001)
        assert query.feed() == [{"user": "ann", "count": 1, "told": f"waits at {START_MS + WAITS_MS}"}]
        query.advance(50)
        query.feed()
        assert query.state("kinds") == {}
        assert query.state("count") == {("ann",): (1,)}


def test_the_watermark_advances_only_on_request() -> None:
    """The watermark advances only on request. Event-time timers fire in the next batch, also without rows."""
    with baskets(event_time=True) as query:
        query.advance_watermark(5_000)
        assert query.watermark_ms == 5_000
        query.feed(took("pen"))
        query.advance_watermark(14_999)
        assert query.feed() == []
        query.advance_watermark(15_000)
        assert query.feed() == [{"user": "ann", "count": 1, "told": "waits at 15000"}]
        with pytest.raises(ConfigError, match="RIFFLE-0474"):
            query.advance_watermark(14_999)


@pytest.mark.parametrize("lose_copies", [False, True], ids=["driver", "everything"])
@pytest.mark.parametrize("step", get_args(Step))
@pytest.mark.sample(step=3)
def test_a_crash_at_any_step_changes_nothing(step: Step, lose_copies: bool) -> None:
    """After a crash at any step the batch is repeated, counts once, and each row reaches the sink once."""
    with baskets(key_groups=4) as query, baskets(key_groups=4) as undisturbed:
        for batch in (took("pen") + took("ink", user="bob"), took("ink", "ink"), took("cap", user="eve")):
            undisturbed.feed(batch)
            query.crash_at(step, lose_copies=lose_copies)
            with pytest.raises(Crashed, match=step):
                query.feed(batch)
            assert (query.feed(batch) == []) is (step == "after record")
        assert query.table() == undisturbed.table()
        assert sorted(map(repr, query.delivered())) == sorted(map(repr, undisturbed.delivered()))


def test_a_crash_happens_once_and_an_unknown_step_is_refused() -> None:
    """A crash happens once, and the next batch succeeds. An unknown step is refused."""
    with baskets() as query:
        with pytest.raises(ConfigError, match="RIFFLE-0479"):
            query.crash_at("after lunch")  # type: ignore[arg-type]
        query.crash_at("after sink")
        with pytest.raises(Crashed):
            query.feed(took("pen"))
        query.feed(took("pen"))
        assert query.feed(took("pen"))[0]["count"] == 2


@pytest.mark.parametrize("after_slots", [1, 2])
def test_a_batch_is_repeated_after_its_source_aborts(after_slots: int) -> None:
    """After the source aborts, the batch is repeated as a whole, and no row counts twice."""
    rows = [row for number in range(20) for row in took("pen", user=f"user-{number}")]
    with baskets() as query:
        query.abort(after_slots)
        with pytest.raises(Aborted):
            query.feed(rows)
        assert query.table().num_rows == 0
        query.crash()
        assert {row["count"] for row in query.feed(rows)} == {1}
        assert len(query.delivered()) == 20


def test_settings_may_change_with_a_restart() -> None:
    """A restarted query has its earlier settings, overridden by the given ones."""
    with baskets(deliver_after_commit=False) as query:
        query.feed(took("pen"))
        query.restart(deliver_after_commit=True)
        assert query.feed(took("pen")) == [{"user": "ann", "count": 2, "told": "took"}]
        query.restart(key_groups=4)
        with pytest.raises(ConfigError, match="RIFFLE-0219"):
            query.feed(took("pen"))
