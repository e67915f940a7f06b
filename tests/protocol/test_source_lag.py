"""The source lag: records and seconds behind the newest offsets that Spark has seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.protocol.facts import PartitionLag
from riffle_spark.protocol.source_lag import SourceLag, offsets_of_entry


def lag_of(*steps: tuple[float, int, int]) -> SourceLag:
    """Return the lag of one partition after steps of (time, committed offset, newest offset)."""
    lag = SourceLag()
    for now, committed, newest in steps:
        lag.record([f'{{"events":{{"0":{committed}}}}}'], [f'{{"events":{{"0":{newest}}}}}'], now)
    return lag


def test_lag_seconds_start_when_an_unread_offset_is_first_seen() -> None:
    """Offsets seen at times 0 and 10 are unread. Once the first of them is read, the second counts."""
    lag = lag_of((0, 5, 20), (10, 10, 30))
    assert lag.lags(12) == (PartitionLag("events", 0, 20, 12.0),)
    lag.record(['{"events":{"0":20}}'], ['{"events":{"0":30}}'], 20)
    assert lag.lags(25) == (PartitionLag("events", 0, 10, 15.0),)
    lag.record(['{"events":{"0":30}}'], ['{"events":{"0":30}}'], 30)
    assert lag.lags(99) == (PartitionLag("events", 0, 0, 0.0),)


def test_the_lag_of_many_unread_offsets_is_thinned_and_a_little_too_low() -> None:
    """Of many unread offsets the oldest sighting stays, and later ones are thinned, so the lag is a little too low."""
    lag = lag_of(*((second, 0, second + 1) for second in range(1_000)))
    assert lag.lags(1_000) == (PartitionLag("events", 0, 1_000, 1_000.0),)
    lag.record(['{"events":{"0":501}}'], ['{"events":{"0":1000}}'], 1_000)
    (partition,) = lag.lags(1_000)
    assert partition.records == 499
    assert partition.seconds is not None
    assert 400 <= partition.seconds <= 499


def test_partitions_are_sorted_and_other_sources_are_skipped() -> None:
    """Only sources with offsets per topic and partition count. The result is sorted."""
    entry = "v1\n" + '{"batchWatermarkMs":0}' + '\n{"b":{"1":4,"0":5},"a":{"10":1}}\n{"logOffset":3}\n-\n7'
    lag = SourceLag()
    lag.record(offsets_of_entry(entry), ['{"b":{"1":4,"0":9},"a":{"10":2,"11":8}}'], 0)
    assert [(p.topic, p.partition, p.records) for p in lag.lags(0)] == [("a", 10, 1), ("b", 0, 4), ("b", 1, 0)]


def test_the_smaller_offset_of_two_sources_of_a_partition_counts() -> None:
    """If two sources read one partition, as in a self-join, the smaller offset counts."""
    lag = SourceLag()
    lag.record(['{"a":{"0":3}}', '{"a":{"0":8}}'], ['{"a":{"0":10}}', '{"a":{"0":10}}'], 0)
    assert lag.lags(0) == (PartitionLag("a", 0, 7, 0.0),)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=400))
def test_lag_seconds_never_exceed_the_age_of_the_oldest_unread_record(steps: list[tuple[int, int, int]]) -> None:
    """However offsets grow, the lag in seconds is a lower bound of the real one, and 0 without unread records."""
    lag = SourceLag()
    now = committed = newest = 0
    seen_at: dict[int, int] = {}
    for pause, read, arrived in steps:
        now += pause
        newest += arrived
        for offset in range(newest - arrived, newest):
            seen_at[offset] = now
        committed = min(newest, committed + read)
        lag.record([f'{{"t":{{"0":{committed}}}}}'], [f'{{"t":{{"0":{newest}}}}}'], now)
        (partition,) = lag.lags(now + 1)
        assert partition.records == newest - committed
        assert partition.seconds is not None
        if partition.records:
            assert 0 < partition.seconds <= now + 1 - seen_at[committed]
        else:
            assert partition.seconds == 0
