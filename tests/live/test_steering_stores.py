"""Commands in other processes steer a query whose root is on each object store, and two operators at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark.offline.steering import Mailroom
from tests.live.test_object_stores_live import CREDENTIALS, Place, place
from tests.live.test_steering_live import Steered, latency

__all__ = ["place"]

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.fixture(scope="module")
def master(request: pytest.FixtureRequest) -> str:
    """Two executors, which inherit the credentials of this process: they are set before Spark starts."""
    for name in CREDENTIALS:
        request.getfixturevalue(name)
    return "local-cluster[2,1,600]"


@pytest.fixture
def steered(spark: SparkSession, tmp_path: Path, place: Place) -> Iterator[Steered]:
    """A query that is not started."""
    made = Steered(spark, tmp_path, root=place.root, **place.settings)
    yield made
    made.query.stop()


def test_operators_on_other_machines_steer_a_query_on_every_store(
    steered: Steered, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """An idle query is pinned and drained. Then two operators at a time make requests, and none is lost."""
    steered.start()
    first, second = sorted(steered.owned())
    pinned = steered.run("pin", "0", first)
    drained = steered.run("drain", second, "--until-empty", "--timeout", "60 s")
    assert (pinned["state"], drained["state"], drained["is_empty"]) == ("applied", "applied", True)
    assert steered.owned()[second] == 0
    running = [steered.start_command("set", f"acceptable_recovery_lag={number}") for number in range(1, 5)]
    answers = [json.loads(each.communicate(timeout=120)[0]) for each in running]
    assert sorted(answer["number"] for answer in answers) == [3, 4, 5, 6]
    assert {answer["state"] for answer in answers} <= {"applied", "superseded"}
    listed = Mailroom(place.root, place.options).requests()
    assert [each.request.number for each in listed] == [1, 2, 3, 4, 5, 6]
    assert listed[-1].state == "applied"
    with capsys.disabled():
        print(f"\n{place.root.partition(':')[0]}: seconds to the answer: {latency(pinned):.2f}, {latency(drained):.2f}")
