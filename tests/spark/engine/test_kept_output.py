"""The plan of a sink's rows is made once and reused. In each batch it returns the rows of that batch's attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark.messages.slot_orders import LETTER, attempt_number, letter_field, result_schema
from riffle_spark.spark.engine import kept_output, routing
from riffle_spark.spark.engine.kept_output import KeptOutputs
from riffle_spark.spark.engine.kept_plan import PlanFrame
from riffle_spark.spark.engine.stage_frames import StoredResult
from riffle_spark.worker.result_chunks import chunked_schema

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
STORE = "totals"
Values = tuple[object, ...]


def stored(
    spark: SparkSession, rows: Sequence[tuple[str, Values]], output: pa.Schema = OUTPUT, store: str = STORE
) -> StoredResult:
    """Return a stored result of a store with the rows of attempts and one receipt per attempt."""
    attempts = dict.fromkeys(attempt for attempt, _ in rows)
    has_letters = LETTER in output.names
    chunks: list[Values] = []
    for attempt in attempts:
        number, ours = attempt_number(attempt), [values for owner, values in rows if owner == attempt]
        plain = [values[:-1] for values in ours if values[-1] is None] if has_letters else ours
        chunks.append((number, None, plain, None)[: 3 + has_letters])
        if has_letters:
            chunks.append((number, None, None, [values[-1] for values in ours if values[-1] is not None]))
        chunks.append((number, "{}", None, None)[: 3 + has_letters])
    frame = spark.createDataFrame(chunks, routing.spark_schema(chunked_schema([result_schema(output)])))
    return StoredResult(PlanFrame(frame, lambda: len(rows)), {store: output}, is_replicated=False)


def values_in(frame: DataFrame) -> list[Values]:
    """Return the rows of a frame, sorted."""
    return sorted((tuple(row) for row in frame.collect()), key=str)


SINKS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "all": lambda rows: rows,
    "some": lambda rows: rows.where("n > 1"),
    "sums": lambda rows: rows.groupBy("k").agg(F.sum("n")),
    "with itself": lambda rows: rows.join(rows.withColumnRenamed("n", "m"), "k").select("k", "n", "m"),
    "without columns": lambda rows: rows.select(F.lit(1)),
}


def test_a_sink_may_use_its_frame_differently_in_each_batch(spark: SparkSession) -> None:
    """A sink may use its frame differently in each batch, several times, and together with the frame of
    another batch.
    """
    outputs = KeptOutputs()
    frames: list[DataFrame] = []
    for number, (name, sink) in enumerate(SINKS.items()):
        rows: list[Values] = [("a", number), ("b", number + 1), (None, None), ("a", 5)]
        attempts = [f"1-{number}", f"2-{number}"]
        result = stored(spark, [(attempts[at % 2], values) for at, values in enumerate(rows)])
        frames.append(outputs.rows(STORE, result, attempts))
        plain = spark.createDataFrame(rows, routing.spark_schema(OUTPUT))
        assert values_in(sink(frames[-1])) == values_in(sink(plain)), name
    before, frame = frames[-2:]
    assert values_in(frame) == values_in(plain)
    assert before.union(frame).count() == 2 * len(rows)
    assert before.join(frame, "k").count() == before.alias("x").join(plain, "k").count()
    assert outputs.fallbacks == 0


def test_a_row_of_another_attempt_fails_in_every_batch(spark: SparkSession) -> None:
    """A row of an attempt that is not of the current batch fails, also in batches that reuse the plan."""
    outputs = KeptOutputs()
    for number in range(3):
        rows: list[tuple[str, Values]] = [(f"1-{number}", ("a", 1)), (f"2-{number}", ("b", 2))]
        result = stored(spark, rows)
        assert outputs.rows(STORE, result, [f"1-{number}", f"2-{number}"]).count() == 2
        for others in ([f"1-{number}"], [f"1-{number}", "2-7"]):
            with pytest.raises(Exception, match="riffle: a row of an attempt that was given up"):
                outputs.rows(STORE, result, others).where("k = 'a'").collect()
    assert outputs.fallbacks == 0


def test_a_sinks_frame_has_no_dead_letters_and_no_receipts(spark: SparkSession) -> None:
    """The sink's frame has neither dead letters nor receipts nor their columns."""
    output = OUTPUT.append(letter_field(OUTPUT))
    outputs = KeptOutputs()
    letter = tuple(None for _ in output.field(LETTER).type)
    for number in range(3):
        rows: list[tuple[str, Values]] = [("1-a", ("a", number, None)), ("1-a", (None, None, letter))]
        frame = outputs.rows(STORE, stored(spark, rows, output), ["1-a"])
        assert (frame.columns, values_in(frame)) == (["k", "n"], [("a", number)])
    assert outputs.fallbacks == 0


OTHERS: dict[str, tuple[pa.Schema, Values]] = {
    "other types": (pa.schema([("k", pa.string()), ("n", pa.float64())]), ("a", 0.5)),
    "other names": (pa.schema([("k", pa.string()), ("m", pa.int64())]), ("a", 2)),
    "other order": (pa.schema([("n", pa.int64()), ("k", pa.string())]), (3, "a")),
    "fewer": (pa.schema([("k", pa.string())]), ("a",)),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.sample("other types", "other names")
def test_each_output_schema_and_each_store_has_its_own_plan(spark: SparkSession, other: str) -> None:
    """An output with other names, types or numbers of columns gets its own plan, and so does each store."""
    output, values = OTHERS[other]
    outputs = KeptOutputs()
    for columns, row in ((OUTPUT, ("b", 7)), (output, values), (output, values)):
        frame = outputs.rows(STORE, stored(spark, [("1-a", row)], columns), ["1-a"])
        assert (frame.columns, values_in(frame)) == (columns.names, [row])
    frame = outputs.rows("another", stored(spark, [("1-a", values)], output, "another"), ["1-a"])
    assert (frame.columns, values_in(frame)) == (output.names, [values])
    assert outputs.fallbacks == 0


def test_stores_of_one_result_have_their_own_rows(spark: SparkSession) -> None:
    """Each store of a result gets its own rows, even if the result's other stores change between batches."""
    outputs = KeptOutputs()
    texts = pa.schema([("t", pa.string())])
    stores: list[dict[str, pa.Schema]] = [
        {"a": OUTPUT, "b": texts},
        {"a": OUTPUT, "b": texts},
        {"b": texts, "a": OUTPUT},
        {"b": texts},
    ]
    expected: dict[str, list[Values]] = {"a": [("x", 1)], "b": [("y",), ("z",)]}
    for columns in stores:
        chunks: list[Values] = []
        for place, store in enumerate(columns):
            others = [None] * len(columns)
            number = attempt_number(f"1-{store}")
            chunks.append((number, None, *others[:place], expected[store], *others[place + 1 :]))
            chunks.append((number, "{}", *others))
        schema = chunked_schema([result_schema(output) for output in columns.values()])
        frame = spark.createDataFrame(chunks, routing.spark_schema(schema))
        result = StoredResult(PlanFrame(frame, lambda: 0), columns, is_replicated=False)
        for store in columns:
            rows = outputs.rows(store, result, [f"1-{each}" for each in columns])
            assert (rows.columns, values_in(rows)) == (columns[store].names, expected[store])
            with pytest.raises(Exception, match="riffle: a row of an attempt that was given up"):
                outputs.rows(store, result, ["1-c"]).collect()
    assert outputs.fallbacks == 0


def test_a_plan_that_fails_is_tried_three_times(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that fails is tried three times. Then Spark analyses each batch, and the batches are counted. Other
    columns are tried again.
    """
    made: list[int] = []
    make = kept_output._KeptOutput.__init__

    def making(plan: kept_output._KeptOutput, frame: DataFrame, column: str) -> None:
        made.append(len(frame.columns))
        make(plan, frame, column)

    monkeypatch.setattr(kept_output._KeptOutput, "__init__", making)
    monkeypatch.setattr(kept_output, "_EXPRESSIONS", "org.apache.spark.no.such")
    outputs = KeptOutputs()
    for number in range(7):
        frame = outputs.rows(STORE, stored(spark, [("1-a", ("a", number))]), ["1-a"])
        assert values_in(frame) == [("a", number)]
    assert (len(made), outputs.fallbacks) == (3, 7)
    fewer = OUTPUT.remove(1)
    assert values_in(outputs.rows(STORE, stored(spark, [("1-a", ("a",))], fewer), ["1-a"])) == [("a",)]
    assert len(made[3:]) == 1
