"""What the runs beside Flink and Kafka Streams say is read from their logs as it is meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.page import TEXTS, filled
from benchmarks.peers.comparison import table, with_ratios
from benchmarks.peers.ground import ENGINES
from benchmarks.peers.kafka_streams import copies_in
from benchmarks.peers.programs import JARS
from benchmarks.peers.readings import Mark, Result, ages_ms, interval_rates, marks_in, results_in, stand_still

EVENT = 10.0
END = 30.0


def _each_second(partition: int, *pauses: tuple[float, float], spread: float = 0.0) -> list[Result]:
    """Results each second, two at a time, but for the pauses (from, to), at whose end all that waited comes."""
    times = [float(second) for second in range(int(END)) if not any(a < second < b for a, b in pauses)]
    return [Result(at + late, partition, at + late) for at in times for late in (0.0, spread)]


def test_lines_of_a_log_are_read() -> None:
    """Marks and results are found among other lines; the last line may still be being written."""
    log = "INFO rows\nrows 1500 10\nresult 2500000 3 2000000\nready 2\nrows 1600 20\nresult 2600000 3 21"
    assert marks_in(log) == [Mark(1.5, 10), Mark(1.6, 20)]
    assert results_in(log) == [Result(2.5, 3, 2.0)]


def test_rates_begin_with_the_first_row() -> None:
    """Intervals count from the last moment without rows; what comes after the last one does not count."""
    marks = [Mark(at, max(0, at - 5) * 100) for at in range(20)]
    assert interval_rates(marks, 2.0, 3) == [100.0, 100.0, 100.0]
    assert interval_rates(marks[:5], 2.0, 3) == []


def test_a_rate_that_is_not_reached_is_left_out() -> None:
    """Where rows end within an interval there is no figure for it, rather than a low one."""
    marks = [Mark(at, min(at, 5) * 100) for at in range(20)]
    assert interval_rates(marks, 2.0, 6) == [100.0, 100.0]


def test_batches_count_over_the_time_they_took() -> None:
    """A batch of 300 rows that ends within an interval counts for the part of it that lies there."""
    marks = [Mark(0, 0), Mark(3, 300), Mark(6, 600)]
    assert interval_rates(marks, 2.0, 3) == pytest.approx([100.0, 100.0, 100.0])


def test_ages_are_of_rows_put_in_time() -> None:
    """The age of a result is from put to arrival; rows of the warm-up are left out, and those of the end, of which only
    the quick ones have results.
    """
    results = [Result(1.5, 0, 1.0), Result(9.25, 0, 9.0), Result(11.0, 0, 10.0)]
    assert ages_ms(results, since=5.0, until=10.0) == [250.0]


def test_a_partition_that_goes_on_does_not_stand_still() -> None:
    """The usual time between results is taken off."""
    stood = stand_still(_each_second(0), EVENT, END)
    assert (stood.worst, stood.mean) == (0.0, 0.0)


def test_a_batch_that_is_written_bit_by_bit_is_one_arrival() -> None:
    """Results 100 ms after the first of their batch do not make the usual time shorter."""
    stood = stand_still(_each_second(0, (EVENT, 15.0), spread=0.1), EVENT, END)
    assert stood.worst == pytest.approx(4.0)


def test_the_mean_is_by_rows() -> None:
    """A partition with few rows weighs little; the worst is the worst whatever its weight. What paused before the event
    is not looked at.
    """
    many = _each_second(0, (2.0, 8.0))
    many += [Result(each.at, 0, each.put_at + 1e-3 * more) for each in many for more in (1, 2, 3)]
    few = _each_second(1, (EVENT, 16.0))
    stood = stand_still(many + few, EVENT, END)
    rows = len({(each.partition, each.put_at) for each in many}), len({each.put_at for each in few})
    assert stood.worst == pytest.approx(5.0)
    assert stood.mean == pytest.approx(5.0 * rows[1] / sum(rows))


def test_results_that_come_again_do_not_end_a_stand_still() -> None:
    """After a restart results may come that are no newer than those before it: the partition still stands."""
    again = [Result(12.0, 0, 9.0), Result(13.0, 0, 10.0)]
    stood = stand_still([*_each_second(0, (EVENT, 16.0)), *again], EVENT, END)
    assert stood.worst == pytest.approx(5.0)


def test_a_partition_that_never_returns_stands_to_the_end() -> None:
    """Nothing after the event is the longest stand-still there is, not none."""
    assert stand_still(_each_second(0, (EVENT, END)), EVENT, END).worst == pytest.approx(END - EVENT - 1)


def test_without_results_before_there_is_no_figure() -> None:
    """What is usual has to be known, of each partition."""
    with pytest.raises(ValueError, match="no results"):
        stand_still([], EVENT, END)
    with pytest.raises(ValueError, match="before the event"):
        stand_still(_each_second(0, (-1.0, EVENT)), EVENT, END)


def test_copies_are_the_newest_that_are_told() -> None:
    """An instance tells how many partitions it has a copy of and what they lack; before that it has none."""
    assert copies_in("state RUNNING\n") == (0, 0)
    assert copies_in("copies 4 900\ncopies 8 20\ncopies are not told any more: x\ncopies 9") == (8, 20)


def test_engines_are_compared_where_both_are_known() -> None:
    """Kafka Streams is compared from Kafka; what was not measured has no ratio and is a dash in the table."""
    found = {
        "riffle": {"rows_per_s": 300.0, "rows_per_s_from_kafka": 200.0},
        "flink_rocksdb": {"rows_per_s": 100.0},
        "kafka_streams": {"rows_per_s_from_kafka": 50.0},
    }
    figures = with_ratios(found)
    assert {name: each for name, each in figures["riffle"].items() if "ratio" in name} == {
        "flink_rocksdb_ratio": 3.0,
        "kafka_streams_ratio": 4.0,
    }
    assert figures["kafka_streams"]["rows_per_s"] == 50.0
    lines = {line.split()[0]: line.split()[1:] for line in table(figures).splitlines()[1:]}
    assert lines["flink_rocksdb_ratio"] == ["3", "1", "0.5"]
    assert lines["kill_cold_s"] == ["-", "-", "-"]


def test_the_text_names_figures_that_there_are() -> None:
    """The section can be written before all is measured, and names engines and figures that the benchmark has."""
    text = (TEXTS / "peers.md").read_text()
    assert "{" not in filled(text, [])
    named = [place.split(".") for place in re.findall(r"\{([\w.]+):if_measured\}", text)]
    figures = {line.split()[0] for line in table({}).splitlines()[1:]}
    assert {engine for engine, _ in named} == set(ENGINES)
    assert {name.replace("_worst", "").replace("_exactly_once", "") for _, name in named} <= figures


def test_the_list_of_jars_is_of_what_is_asked_for() -> None:
    """Each library that the list of modules asks for has a jar with a digest, under its configuration."""
    asked = re.findall(r'name="([\w.-]+)" rev="([\w.-]+)" conf="(\w+)->', (JARS.lists / "ivy.xml").read_text())
    listed = [line.split() for line in Path(JARS.lists / "jars.sha256").read_text().splitlines()]
    assert len(asked) > 8
    assert {f"{conf}/{name}-{version}.jar" for name, version, conf in asked} <= {name for _, name in listed}
    assert all(len(digest) == 64 for digest, _ in listed)
