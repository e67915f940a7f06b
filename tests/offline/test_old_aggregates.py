"""State of ``aggregate(...)`` that an earlier version stored is continued."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.state.objects.open import root_id
from tests.kit.folders import DATA
from tests.kit.process.aggregate_oracle import ORACLE, comparable
from tests.kit.roots.aggregates_query import KEYS, AggregatesQuery, rows_of_batch

STORED_BATCHES = 3


def _expected(batches: int, names: list[str]) -> dict[object, dict[str, object]]:
    """Return what plain Python answers over all rows of the first batches, for results named function_column."""
    rows = pa.concat_tables([rows_of_batch(version) for version in range(batches)]).to_pylist()
    results: dict[object, dict[str, object]] = {}
    for key in KEYS:
        own = [row for row in rows if row["k"] == key]
        results[key] = {"k": key}
        for name in names:
            function, _, column = name.rpartition("_") if name != "rows" else (name, "", "k")
            results[key][name] = comparable(ORACLE[function]([row[column] for row in own]))
    return results


@pytest.mark.parametrize("copies", ["there", "gone"])
def test_stored_aggregates_go_on(tmp_path: Path, copies: str) -> None:
    """Every function over every type goes on from the columns that version 0.1.0 stored."""
    with tarfile.open(DATA / "roots" / "0.1-aggregates" / "state.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    (local,) = (tmp_path / "local").iterdir()
    local.rename(local.with_name(f"{root_id(f'file://{tmp_path}/state')}-{local.name.partition('-')[2]}"))
    if copies == "gone":
        shutil.rmtree(tmp_path / "local")
    for batches in range(STORED_BATCHES + 1, STORED_BATCHES + 4):
        answers = AggregatesQuery(tmp_path).feed_next()
        names = [name for name in answers.column_names if name != "k"]
        assert len(names) > 100
        assert {row["k"]: comparable(row) for row in answers.to_pylist()} == _expected(batches, names)
