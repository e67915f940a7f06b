"""The status exporter writes status.json once per interval, and at once if the query ends or fails."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.errors import UnavailableError
from riffle_spark.observe.export import Exporters
from riffle_spark.observe.page import page_of
from riffle_spark.observe.status import Status, decode
from riffle_spark.observe.status_exporter import StatusExporter
from riffle_spark.offline.verify import verify
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.facts import DriverFacts, FailureFacts, MemberFacts, MoveSummary, PartitionLag
from riffle_spark.settings import Settings
from riffle_spark.state.log import paths
from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.store import ObjectStore, TaggedObject
from tests.kit.simulated.world import World, one_row

MOVE = MoveSummary(1_000_000, 1, 3, "query", "owner", "", "m1", "member joined", "balance")


def _facts(seconds: float, epoch: int = 1, **changes: object) -> DriverFacts:
    lag = (PartitionLag("orders", 0, 7, None),)
    facts = DriverFacts(round(seconds * 1000) + 1_000_000, "q", "counts", "run", epoch, 5, 1_000_000, None, lag)
    return replace(facts, **changes)  # type: ignore[arg-type]


def _report(version: int, **changes: object) -> BatchReport:
    report = BatchReport(version, "q", "run", 1_000_000, 1, {"run": 0.4, "total": 0.5}, rows=100)
    return replace(report, **changes)  # type: ignore[arg-type]


class Writer:
    """A status exporter with a store, and the requests that it reported."""

    def __init__(self, objects: ObjectStore | None = None, **settings: object) -> None:
        self.objects = MemoryStore() if objects is None else objects
        self.counted: Counter[str] = Counter()
        self.settings = Settings(**settings)  # type: ignore[arg-type]
        self.moves: tuple[MoveSummary, ...] = ()
        self.exporter = StatusExporter(
            self.objects, lambda: self.settings, lambda: self.moves, "1.2.3", self.counted.update
        )

    def stored(self) -> Status:
        """Return the stored status."""
        data = self.objects.get(paths.STATUS)
        assert data is not None
        return decode(data)


@pytest.fixture(params=["memory", "directory"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Writer:
    """Return a writer with a memory store or a directory store."""
    return Writer(None if request.param == "memory" else DirectoryStore(tmp_path))


def test_the_first_batch_writes_a_status_and_later_ones_once_a_minute(writer: Writer) -> None:
    """The first batch writes a status, and later ones write once a minute with one PUT each.

    Only the first two are reads.
    """
    for second in range(0, 180):
        writer.exporter.export(_report(second), _facts(second), ())
    assert writer.counted == {"get": 2, "put": 3}
    for second in range(180, 1_200):
        writer.exporter.export(None, _facts(second), ())
    assert writer.counted == {"get": 2, "put": 20}
    writer.exporter.export(_report(180), _facts(1_200), ())
    status = writer.stored()
    assert status.facts.time_ms == _facts(1_200).time_ms
    assert [batch.version for batch in status.batches] == list(range(121, 181))
    assert (status.batches[-1].lag_records, status.batches[-1].rows, status.product) == (7, 100, "1.2.3")


def test_answers_to_operators_are_written_within_a_second(writer: Writer) -> None:
    """An answer to an operator, and each change of a drained member, is written within a second."""
    writer.exporter.export(_report(0), _facts(0), ())
    writer.exporter.export(None, _facts(0.5, answered=1), ())
    assert writer.stored().facts.answered == 0
    writer.exporter.export(None, _facts(1, answered=1), ())
    assert (writer.stored().facts.answered, writer.counted["put"]) == (1, 2)
    for second, owned in enumerate((4, 4, 4, 2, 0, 0, 0), start=2):
        drained = MemberFacts("m1", "1", "host", None, "drained", owned=owned)
        grown = MemberFacts("m2", "2", "host", None, "active", owned=8 - owned)
        writer.exporter.export(None, _facts(second, answered=1, members=(drained, grown)), ())
        assert writer.stored().facts.members[0].owned == owned
    assert writer.counted["put"] == 5
    writer.exporter.export(None, _facts(9, answered=1, members=(grown,)), ())
    writer.exporter.export(None, _facts(10, answered=1, members=(replace(grown, owned=1),)), ())
    assert writer.counted["put"] == 6, "other members are updated once a minute"


def test_the_heartbeat_continues_after_the_clock_was_set_back(writer: Writer) -> None:
    """If the clock is set back, the exporter still writes its heartbeat."""
    writer.exporter.export(_report(5), _facts(5_000), ())
    writer.exporter.export(None, _facts(100), ())
    assert writer.stored().facts.time_ms == _facts(100).time_ms


def test_a_repeated_batch_is_not_listed_as_a_batch(writer: Writer) -> None:
    """A repeated batch is not listed as a batch, because the driver that ran it has listed it.

    Its warnings are shown.
    """
    writer.exporter.export(_report(5, decision="repeat", rows=0, warnings=("[RIFFLE-0811] Gone.",)), _facts(0), ())
    status = writer.stored()
    assert (status.batches, [warning.id for warning in status.warnings]) == ((), ["RIFFLE-0811"])


def test_an_idle_query_writes_its_heartbeat(writer: Writer) -> None:
    """An idle query writes its status each minute. During a long batch the state is "running"."""
    writer.exporter.export(_report(0), _facts(0), ())
    writer.exporter.export(None, _facts(60), ())
    assert (writer.stored().state, writer.stored().facts.time_ms) == ("idle", _facts(60).time_ms)
    writer.exporter.export(None, _facts(120, batch_seconds=5.0), ())
    assert writer.stored().state == "running"


def test_moves_and_settings_are_those_in_effect_now(writer: Writer) -> None:
    """The status of an idle query shows moves and changed settings without a new batch."""
    writer.exporter.export(_report(0), _facts(0), ())
    assert writer.stored().settings["num_standbys"] == "0"
    writer.moves = (MOVE,)
    writer.settings = writer.settings.but(num_standbys=2)
    writer.exporter.export(None, _facts(60), ())
    status = writer.stored()
    assert (status.state, status.moves, status.settings["num_standbys"]) == ("idle", (MOVE,), "2")


def test_a_query_that_ends_writes_stopped(writer: Writer) -> None:
    """A query that ends writes "stopped" at once. An exporter that exported nothing writes nothing."""
    writer.exporter.close()
    assert writer.objects.get(paths.STATUS) is None
    writer.moves = (MOVE,)
    writer.exporter.export(_report(0, warnings=("[RIFFLE-0811] Store 'x'.\n  What to do: y",)), _facts(0), ())
    writer.exporter.export(_report(1), _facts(1), ())
    writer.exporter.close()
    status = writer.stored()
    assert (status.state, [batch.version for batch in status.batches]) == ("stopped", [0, 1])
    assert status.moves == (MOVE,)
    (warning,) = status.warnings
    assert (warning.id, warning.text) == ("RIFFLE-0811", "Store 'x'.")
    writer.exporter.close()
    assert writer.counted == {"get": 2, "put": 2}


def test_a_query_that_fails_writes_its_error_at_once(writer: Writer) -> None:
    """A failure writes the class, id and time of the error once. A later successful batch removes it."""
    writer.exporter.export(_report(0), _facts(0), ())
    failure = FailureFacts("ConflictError", "RIFFLE-0201", _facts(7).time_ms)
    for second in (7, 8):
        writer.exporter.export(None, _facts(second, failure=failure), ())
    status = writer.stored()
    assert (status.state, status.facts.failure, status.facts.time_ms) == ("failed", failure, _facts(7).time_ms)
    writer.exporter.close()
    assert writer.counted["put"] == 2
    second_writer = Writer(writer.objects)
    second_writer.exporter.export(_report(1), _facts(30), ())
    assert (second_writer.stored().state, second_writer.stored().facts.failure) == ("running", None)


def test_a_failure_that_the_store_refused_is_written_at_the_end() -> None:
    """If the store refused the status with the failure, the exporter writes it when the query ends."""
    writer = Writer()
    writer.exporter.export(_report(0), _facts(0), ())
    objects, writer.exporter._objects = writer.exporter._objects, _Unavailable()
    with pytest.raises(UnavailableError):
        writer.exporter.export(None, _facts(5, failure=FailureFacts("KeyError", "", 5)), ())
    writer.exporter._objects = objects
    writer.exporter.close()
    assert writer.stored().state == "failed"


def test_the_status_of_a_paused_query_has_the_time_of_the_pause(writer: Writer) -> None:
    """The status of a paused query has the time of the pause. A batch that still runs is shown as running."""
    writer.exporter.export(_report(0), _facts(0), ())
    writer.exporter.export(None, _facts(60, paused_since_ms=1_055_000, batch_seconds=5.0), ())
    assert writer.stored().state == "running"
    writer.exporter.export(None, _facts(120, paused_since_ms=1_055_000), ())
    assert (writer.stored().state, writer.stored().facts.paused_since_ms) == ("paused", 1_055_000)


def test_the_status_of_an_ended_query_has_no_pause(writer: Writer) -> None:
    """A job pauses its query before it stops it, and a restart ends each pause."""
    writer.exporter.export(_report(0), _facts(0), ())
    writer.exporter.export(None, _facts(60, paused_since_ms=1_055_000), ())
    writer.exporter.close()
    assert (writer.stored().state, writer.stored().facts.paused_since_ms) == ("stopped", None)


def test_status_page_writes_the_page_with_each_status(writer: Writer) -> None:
    """With `status_page`, the exporter also writes the page of each written status, with one PUT more."""
    paged = Writer(writer.objects, status_page=True)
    paged.exporter.export(_report(0), _facts(0), ())
    paged.exporter.export(_report(1), _facts(60), ())
    assert paged.counted == {"get": 4, "put": 4}
    for minute in range(2, 10):
        paged.exporter.export(None, _facts(60 * minute), ())
    assert paged.counted == {"get": 4, "put": 20}
    page = paged.objects.get(paths.STATUS_PAGE)
    assert page is not None
    assert page.decode() == page_of(paged.stored())
    assert len(paged.stored().batches) == 2


def test_a_status_that_another_process_changed_is_read_before_a_write(writer: Writer) -> None:
    """If another process replaced or deleted the status, the exporter reads it once before the next write."""
    for minute in range(3):
        writer.exporter.export(None, _facts(60 * minute), ())
    other = Writer(writer.objects)
    other.exporter.export(None, _facts(130), ())
    writer.exporter.export(None, _facts(180), ())
    assert writer.stored().facts.time_ms == _facts(180).time_ms
    assert writer.counted == {"get": 3, "put": 5}
    writer.objects.delete([paths.STATUS])
    for minute in range(4, 9):
        writer.exporter.export(None, _facts(60 * minute), ())
    assert writer.stored().facts.time_ms == _facts(480).time_ms
    assert writer.counted == {"get": 5, "put": 11}


def test_a_status_that_another_process_writes_at_the_same_time_stays() -> None:
    """A status that loses against another write is not repeated at once. The next status is written again."""

    class Contended(MemoryStore):
        """A store in which another process always writes first while ``is_contended``."""

        is_contended = False

        def replace_if_unchanged(self, name: str, data: bytes, tag: str) -> TaggedObject | None:
            """Write nothing while another process writes."""
            return None if self.is_contended else super().replace_if_unchanged(name, data, tag)

    store = Contended("contended")
    writer = Writer(store)
    written = []
    for minute, is_contended in enumerate((False, False, True, False)):
        store.is_contended = is_contended
        writer.exporter.export(None, _facts(60 * minute), ())
        written.append(writer.stored().facts.time_ms)
    assert written == [_facts(60 * minute).time_ms for minute in (0, 1, 1, 3)]


def test_a_driver_that_was_replaced_writes_no_page(writer: Writer) -> None:
    """A driver that was replaced does not overwrite the page of the newer driver."""
    old = Writer(writer.objects, status_page=True)
    old.exporter.export(_report(0), _facts(0, epoch=1), ())
    page = old.objects.get(paths.STATUS_PAGE)
    writer.exporter.export(_report(1), _facts(30, epoch=2), ())
    old.exporter.export(_report(1), _facts(60, epoch=1), ())
    assert writer.stored().facts.epoch == 2
    assert old.objects.get(paths.STATUS_PAGE) == page


def test_the_status_has_no_text_of_user_exceptions(writer: Writer) -> None:
    """The status has no text of a user's exception, because it may quote a row."""
    warning = "[RIFFLE-0809] Batch 3 has 2 dead letters. Store 'x' raised KeyError('alice@example.com') for the first."
    listener = "[RIFFLE-0760] on_lost of the rebalance listener failed: KeyError('alice@example.com')\n  What to do: z"
    writer.exporter.export(_report(3, warnings=(warning, listener)), _facts(0), ())
    assert [warning.text for warning in writer.stored().warnings] == [
        "Batch 3 has 2 dead letters.",
        "on_lost of the rebalance listener failed.",
    ]


def test_no_secret_setting_is_in_the_status() -> None:
    """The status shows only the listed settings, and no keys or endpoints."""
    writer = Writer(encryption_keys="env:SECRET", s3_endpoint="http://127.0.0.1:1", num_standbys=2)
    writer.exporter.export(_report(0), _facts(0), ())
    assert writer.stored().settings["num_standbys"] == "2"
    data = writer.objects.get(paths.STATUS)
    assert data is not None
    assert b"SECRET" not in data
    assert b"127.0.0.1" not in data


def test_a_fenced_driver_does_not_overwrite_the_newer_drivers_status(writer: Writer) -> None:
    """A fenced driver never overwrites the status of a driver with a higher epoch, not even when it stops."""
    newer = Writer(writer.objects)
    writer.exporter.export(_report(0), _facts(0, epoch=1), ())
    newer.exporter.export(_report(1), _facts(10, epoch=2), ())
    writer.exporter.export(_report(0), _facts(70, epoch=1), ())
    writer.exporter.close()
    assert (writer.stored().facts.epoch, writer.stored().state) == (2, "running")
    newer.exporter.export(None, _facts(80, epoch=2), ())
    assert writer.stored().facts.time_ms == _facts(80).time_ms


def test_the_driver_of_a_new_log_replaces_the_status_of_the_old_log(writer: Writer) -> None:
    """A root that was emptied and started again has lower epochs. Its driver replaces the status that was left."""
    writer.exporter.export(_report(0), _facts(0, epoch=9), ())
    restarted = Writer(writer.objects)
    restarted.exporter.export(_report(0), _facts(100, epoch=1), ())
    assert writer.stored().facts.epoch == 1


def test_a_damaged_status_is_replaced(writer: Writer) -> None:
    """A damaged status is replaced."""
    writer.objects.put_if_absent(paths.STATUS, b"damaged")
    writer.exporter.export(_report(0), _facts(0), ())
    assert writer.stored().facts.epoch == 1


class _Unavailable(MemoryStore):
    """A store that does not answer."""

    def get_if_changed(self, name: str, tag: str = "") -> None:  # noqa: ARG002 - the interface of stores
        """Raise the error of an unreachable store."""
        self.requests.add("get")
        raise UnavailableError("No answer.", id="RIFFLE-0000")


def test_an_unreachable_store_is_tried_per_interval_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unreachable store is tried once per interval, and each try is counted. One warning is logged."""
    writer = Writer(_Unavailable())
    exporters = Exporters([writer.exporter], lambda: 0.0)
    for second in range(0, 150, 10):
        exporters.publish(_report(second), _facts(second))
    exporters.close(30)
    assert writer.counted == {"get": 4}
    assert caplog.text.count("The exporter status failed") == 1


def test_an_unknown_lag_of_a_batch_is_not_zero() -> None:
    """The lag of a source other than Kafka is unknown, and the chart has no line, instead of a lag of zero."""
    writer = Writer()
    writer.exporter.export(_report(0), _facts(0, source=()), ())
    assert [batch.lag_records for batch in writer.stored().batches] == [None]


def test_request_counts_restart_after_the_clock_was_set_back() -> None:
    """After the clock was set back, the shown requests and seconds are counted from that time."""
    writer = Writer()
    writer.settings = Settings(status_interval=10)
    for second, requests in ((100, 50), (200, 60), (50, 70), (70, 75)):
        facts = replace(_facts(second), counters={"requests/batch/put": requests})
        writer.exporter.export(None, facts, ())
        if second == 50:
            assert writer.stored().requests is None
    shown = writer.stored().requests
    assert shown is not None
    assert (shown.seconds, shown.by_kind) == (20.0, {"put": 5})


def test_verify_accepts_the_status_and_a_root_with_only_a_status_is_empty(tmp_path: Path) -> None:
    """`riffle verify` accepts the status and its page. A root that only has these can be started."""
    world = World(tmp_path / "local")
    Writer(world.memory, status_page=True).exporter.export(_report(0), _facts(0), ())
    world.start()
    world.batch(0, one_row(1))
    result = verify(world.home.root)
    assert result.is_whole
    assert not result.findings
