"""Spark's processors that are moved to riffle have the output and state that they would have without the move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

import riffle_spark
from riffle_spark import Settings
from riffle_spark.spark.imports.import_checkpoint import import_checkpoint
from riffle_spark.state.schemas.variable_kinds import TIMER
from tests.kit.processors.catalogue import CASES
from tests.kit.processors.processor_case import Case
from tests.kit.processors.record_cases import recorded
from tests.kit.queries.played_query import configured
from tests.kit.streams.sparks_operator import NO_DATA, ProcessorQuery, in_state_order

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.needs_spark4("transformWithState")]

PLAYED = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.session.timeZone": "UTC",
    NO_DATA: "false",
}
FORMS = ("pandas",) if spark_version.startswith("4.0.") else ("pandas", "rows")


def _cases() -> list[object]:
    return [pytest.param(CASES[name], form, id=f"{name}-{form}") for name in CASES for form in FORMS]


def state_of(root: str, case: Case) -> dict[str, Any]:
    """Return the committed state in the form of the recordings."""
    found = {name: in_state_order(_entries(root, name)) for name in case.variables}
    if case.time_mode != "None":
        found["timers"] = in_state_order(_entries(root, TIMER))
    return found


def _entries(root: str, variable: str) -> Iterator[list[Any]]:
    """Yield [key, map key if any, value, due time] of each element of a variable, or [key, time] of each timer."""
    reader = riffle_spark.read_state(root, variable=variable)
    roles = {field.name: (field.metadata or {}).get(b"riffle.role", b"").decode() for field in reader.schema}
    for row in reader.read_all().to_pylist():
        parts: dict[str, list[Any]] = {}
        for name, value in row.items():
            parts.setdefault(roles[name], []).append(value)
        columns = [parts[role] for role in ("key", "map_key", "state") if role in parts]
        yield [*columns, *parts["timer" if variable == TIMER else "due"]]


@pytest.mark.long
@pytest.mark.parametrize(("case", "form"), _cases())
def test_a_moved_processor_keeps_its_variables_timers_and_ttls(
    spark: SparkSession, case: Case, form: str, tmp_path: Path
) -> None:
    """Each batch has the recorded output, also at the last millisecond of a time to live and the next one. So has the
    final state.
    """
    settings = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    known = recorded(case)
    half = len(case.batches) // 2
    with configured(spark, PLAYED):
        native = ProcessorQuery(spark, case, form, tmp_path)
        native.play_some(range(half))
        before = native.state()
        moved = ProcessorQuery(
            spark, case, form, tmp_path, lambda stream: riffle_spark.on(stream, settings=settings), "checkpoint-riffle"
        )
        assert settings.root is not None
        import_checkpoint(settings.root, f"{tmp_path}/checkpoint", lambda _: moved.writer(), spark=spark, execute=True)
        assert state_of(settings.root, case) == before
        moved.play_some(range(half, len(case.batches)))
    outputs = {**native.outputs, **moved.outputs}
    assert [rows for _, rows in sorted(outputs.items())] == known["steady"]
    assert state_of(settings.root, case) == known["state"]
