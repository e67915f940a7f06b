"""Spark's own tests of stateful and other streams pass as they are where each stream is wrapped, but for those that are
named here with the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.kit.queries.sparks_tests import own_tests, run_wrapped

if not pyspark.__version__.startswith("4.0."):
    pytest.skip("the names are those of Spark 4.0", allow_module_level=True)

pytestmark = pytest.mark.spark
CONF: Final = {"spark.riffle.key_groups": "1"}
"""Some look at the first row of a frame without an order: in Spark's partitions, and in one slot, it is of key 0."""

CLASSES: Final = {
    "GroupedApplyInPandasWithStateTests": "pandas.test_pandas_grouped_map_with_state",
    "TransformWithStateInPandasTests": "pandas.test_pandas_transform_with_state",
    "StreamingTests": "streaming.test_streaming",
    "StreamingTestsForeach": "streaming.test_streaming_foreach",
    "StreamingTestsForeachBatch": "streaming.test_streaming_foreach_batch",
    "StreamingListenerTests": "streaming.test_streaming_listener",
}
OFTEN: Final = (
    "test_transform_with_state_in_pandas_basic",
    "test_streaming_foreach_batch_tempview",
)
"""What ``./run test`` plays: a processor and a sink. Long runs play all."""

CHECKPOINT: Final = "looks into Spark's own checkpoint, by the sources state-metadata and statestore"
NOT: Final = {
    "test_transform_with_map_state_metadata": CHECKPOINT,
    "test_transform_with_list_state_metadata": CHECKPOINT,
    "test_transform_with_value_state_metadata": CHECKPOINT,
    "test_transform_with_state_restart_with_multiple_rows_init_state": CHECKPOINT,
    "test_transform_with_state_with_timers_single_partition": f"plays four others, one of which {CHECKPOINT}",
    "test_transform_with_state_in_pandas_proc_timer": "its processor fails in a batch that Spark plans and never runs, "
    "since its function does not look at the rows; here slots have run before a function is called",
    "test_not_nullable_fails": "wants a state variable refused that may not be null, for the sake of Spark's Avro "
    "store; it is kept here",
    "test_listener_events": "wants state operators in what a listener gets: these are Spark's own objects",
}
"""Those that do not pass, and why."""

TESTS: Final = {(of, name): tests for of in CLASSES for tests, names in [own_tests(CLASSES[of], of)] for name in names}


@pytest.mark.parametrize(
    ("of", "name"),
    [
        pytest.param(
            *one, marks=pytest.mark.skip(NOT[one[1]]) if one[1] in NOT else () if one[1] in OFTEN else pytest.mark.long
        )
        for one in TESTS
    ],
)
def test_sparks_own_test_passes(of: str, name: str, spark: SparkSession, tmp_path: Path) -> None:
    """With every stream that it reads wrapped, and nothing else done to it."""
    run_wrapped(spark, TESTS[of, name], name, tmp_path)


def test_what_is_named_is_there() -> None:
    """A name that no test of Spark's has would say nothing."""
    assert {*OFTEN, *NOT} <= {name for _, name in TESTS}
