"""The requests that a job sends to a real S3 server, as counted in the server's access log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from apps.demo.servers import S3Server
from riffle_spark import Stateful, aggregate, count, sum_
from tests.kit.streams.streaming import CollectingSink, rest, settings_in, wait_for

pytestmark = pytest.mark.cluster

KEYS = 200
WARM_UP, STEADY = 2, 4
CONF = {
    "spark.executorEnv.AWS_ACCESS_KEY_ID": "demo",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "demo-secret",
    "spark.executorEnv.AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.fixture(scope="module")
def s3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the server's log."""
    return tmp_path_factory.mktemp("s3")


@pytest.fixture(scope="module")
def s3_server(s3_folder: Path) -> Iterator[S3Server]:
    """A server only for this module, so that its log has no other requests."""
    with S3Server(s3_folder) as server:
        yield server


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> None:
    """Set the server's credentials in this process."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def logged_requests(s3_folder: Path) -> Callable[[str], list[str]]:
    """Return a function that returns the log's requests for a prefix, oldest first."""
    log = s3_folder / "s3.log"
    return lambda prefix: [line for line in log.read_text().splitlines() if prefix in line and "HTTP/1" in line]


def kind(line: str) -> str:
    """Return the kind of request in a line of the access log."""
    method = re.search(r"(GET|PUT|HEAD|DELETE|POST) /", line)
    assert method, line
    return "list" if "list-type" in line or "prefix=" in line else method[1].lower()


@pytest.mark.promise("cost is bounded")
def test_a_steady_batch_sends_few_requests_and_no_list_request(
    spark: SparkSession, s3_server: S3Server, tmp_path: Path, logged_requests: Callable[[str], list[str]]
) -> None:
    """A batch after warm-up sends at most (slots that wrote + 2) requests and no list request. The report counts the
    requests that the server logs.
    """
    settings = settings_in(tmp_path, root=f"s3://{s3_server.bucket}/steady", s3_endpoint=s3_server.endpoint)
    settings = settings.but(status_interval=0)  # the status would add requests
    sink = CollectingSink()
    job = Stateful("totals", "k", aggregate(rows=count(), total=sum_("v")), settings=settings).into(sink)
    server_counts = []
    for batch in range(WARM_UP + STEADY):
        before = len(logged_requests("steady"))
        job(spark.range(1000).selectExpr(f"id % {KEYS} k", "id v"), batch)
        if batch < WARM_UP:
            rest(job)  # A starting query sends further requests, which are not part of a later batch.
        else:
            reported = sum(job.reports[-1].requests.values())
            wait_for(lambda: len(logged_requests("steady")) >= before + reported, "the requests are in the access log")  # noqa: B023 - called in this turn only
            server_counts.append(Counter(kind(line) for line in logged_requests("steady")[before:]))
    for report, by_server in zip(list(job.reports)[WARM_UP:], server_counts, strict=True):
        assert report.slots_that_wrote == 2
        assert sum(by_server.values()) <= report.slots_that_wrote + 2
        assert by_server["list"] == 0
        assert dict(by_server) == dict(report.requests)
    assert sink.latest("k")[0]["rows"] == 5 * (WARM_UP + STEADY)


def test_a_restart_without_local_copies_restores_from_s3(
    spark: SparkSession, s3_server: S3Server, tmp_path: Path
) -> None:
    """A job without local copies restores the state that an earlier job committed to S3."""
    root = f"s3://{s3_server.bucket}/restored"
    for batch, local in enumerate(("one", "two")):
        sink = CollectingSink()
        settings = settings_in(tmp_path, root=root, s3_endpoint=s3_server.endpoint, local_dir=f"{tmp_path}/{local}")
        job = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(sink)
        job(spark.range(300).selectExpr("id % 30 k"), batch)
    assert sink.latest("k") == {k: {"rows": 20} for k in range(30)}
    assert job.reports[-1].fetched_bytes > 0
