"""The driver applies each request of another process once and answers it, also after crashes, restarts and races."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError, CorruptStateError, FencedError, UnavailableError
from riffle_spark.protocol.batch import mailbox
from riffle_spark.protocol.batch.mailbox import (
    ANSWERS_KEPT,
    PENDING_MAX,
    Answer,
    Mailbox,
    MailboxRequest,
    add_request,
    last_number,
    read_mailbox,
)
from riffle_spark.protocol.batch.stored_requests import read_requests
from riffle_spark.state.log.paths import MAILBOX
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.store import ObjectStore
from tests.kit.simulated.world import Crash, World, one_row
from tests.kit.state.faulty_store import Fault, FaultyStore

HOUR_MS = 3_600_000


class Operator:
    """An operator who makes requests from another machine, with the clock of the query."""

    def __init__(self, world: World, objects: ObjectStore | None = None, user: str = "ann") -> None:
        self.world = world
        self.objects = objects or world.memory
        self.user = user
        self.made = 0

    def ask(self, command: str, expires_ms: int = HOUR_MS, **arguments: object) -> MailboxRequest:
        """Make a request."""
        self.made += 1
        now_ms = self.world.clock.wall_ms()
        request = MailboxRequest(
            0, f"{self.user}-{self.made}", command, arguments, self.user, "laptop", now_ms, now_ms + expires_ms
        )
        return add_request(self.objects, request, lambda: last_number(self.answers()))

    def answers(self) -> tuple[Answer, ...]:
        """Return the answers in the newest record."""
        tail = self.world.log().tail
        assert tail is not None
        return read_requests(tail.orders).answers

    def states(self) -> list[tuple[str, str]]:
        """Return the ids of the answered requests, with their states."""
        return [(answer.id, answer.state) for answer in self.answers()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a query of two executors that reads requests, after two batches."""
    query = World(tmp_path, control="on")
    query.batch(0, one_row(1))
    query.batch(1, one_row(2))
    return query


@pytest.fixture
def operator(world: World) -> Operator:
    """Return an operator of the query."""
    return Operator(world)


def member_of(world: World, executor: str) -> str:
    """Return the id of the member on an executor."""
    return next(member.id for member in world.driver.operations.members if member.executor == executor)


def drained(world: World) -> tuple[str, ...]:
    """Return the members that the newest record lists as drained."""
    tail = world.log().tail
    assert tail is not None
    return read_requests(tail.orders).drained


class TestAppliedRequests:
    """A request takes effect, and the next record has its answer."""

    def test_a_drain_is_applied_by_the_next_batch_and_answered_in_its_record(
        self, world: World, operator: Operator
    ) -> None:
        """After the batch, the record and the driver have the drained member."""
        operator.ask("drain", member="1")
        world.batch(2, one_row(3))
        assert operator.states() == [("ann-1", "applied")]
        assert drained(world) == (member_of(world, "1"),)
        assert world.driver.operations.requests.drained == {member_of(world, "1")}

    def test_an_idle_query_answers_a_request_within_a_second(self, world: World, operator: Operator) -> None:
        """An idle query applies and answers a request within a second, in a record without a batch."""
        operator.ask("drain", member="1")
        world.rest()
        tail = world.log().tail
        assert tail is not None
        assert (tail.kind, operator.states()) == ("orders", [("ann-1", "applied")])
        assert drained(world) == (member_of(world, "1"),)

    def test_requests_are_applied_in_their_order(self, world: World, operator: Operator) -> None:
        """Requests are applied in order: a drain of a pinned member is refused, and succeeds after the unpin."""
        operator.ask("pin", key_group=3, member="1")
        operator.ask("drain", member="1")
        operator.ask("unpin", key_group=4)
        world.rest()
        assert operator.states() == [("ann-1", "applied"), ("ann-2", "refused"), ("ann-3", "applied")]
        operator.ask("unpin", key_group=3)
        operator.ask("drain", member="1")
        world.rest()
        assert operator.states()[3:] == [("ann-4", "applied"), ("ann-5", "applied")]

    def test_a_live_setting_is_set_and_another_is_refused(self, world: World, operator: Operator) -> None:
        """A live setting is changed. For any other setting, the answer has the id and text of the error."""
        operator.ask("set", num_standbys="1", retained_for="2 h")
        operator.ask("set", key_groups="16")
        operator.ask("set", num_standby="1")
        world.batch(2, one_row(3))
        first, second, third = operator.answers()
        assert (first.state, world.driver.settings.num_standbys) == ("applied", 1)
        assert world.driver.settings.retained_for == 7200
        assert (second.state, second.error_id) == ("refused", "RIFFLE-0755")
        assert "key_groups" in second.text
        assert (third.state, "num_standbys" in third.text) == ("refused", True)

    def test_a_rebalance_computes_an_assignment(self, world: World, operator: Operator) -> None:
        """A rebalance request starts an assignment."""
        before = world.driver.operations.requests.revision
        operator.ask("rebalance")
        world.rest()
        assert operator.states() == [("ann-1", "applied")]
        assert world.driver.operations.requests.revision == before + 1

    def test_a_query_is_paused_and_resumed(self, world: World, operator: Operator) -> None:
        """Pause and resume requests call the driver's `hold`. A query without `hold` refuses them."""
        operator.ask("pause")
        world.rest()
        assert operator.answers()[-1].error_id == "RIFFLE-1353"
        held: list[bool] = []
        world.driver.mailbox.hold = held.append
        operator.ask("pause")
        world.rest()
        operator.ask("resume")
        world.rest()
        assert held == [True, False]
        assert operator.states()[1:] == [("ann-2", "applied"), ("ann-3", "applied")]


class TestRefusedRequests:
    """A request that cannot be applied gets an answer."""

    @pytest.mark.parametrize(
        ("command", "arguments", "error_id"),
        [
            ("drain", {"member": "absent"}, "RIFFLE-0756"),
            ("pin", {"key_group": 99, "member": "1"}, "RIFFLE-0757"),
            ("pin", {"key_group": 3, "member": "absent"}, "RIFFLE-0756"),
            ("undrain", {"member": "absent"}, "RIFFLE-0753"),
            ("dance", {}, "RIFFLE-1355"),
            ("drain", {}, "RIFFLE-1356"),
            ("drain", {"member": 1}, "RIFFLE-1356"),
            ("pin", {"key_group": [1, 2], "member": "1"}, "RIFFLE-1356"),
            ("pin", {"key_group": True, "member": "1"}, "RIFFLE-1356"),
        ],
    )
    def test_the_answer_of_a_refused_request_has_the_error_id(
        self, world: World, operator: Operator, command: str, arguments: dict[str, Any], error_id: str
    ) -> None:
        """A refused request changes nothing, and later requests are applied."""
        operator.ask(command, **arguments)
        operator.ask("rebalance")
        world.rest()
        refused, applied = operator.answers()
        assert (refused.state, refused.error_id, applied.state) == ("refused", error_id, "applied")
        assert drained(world) == ()

    def test_an_expired_request_is_not_applied(self, world: World, operator: Operator) -> None:
        """A request that the driver reads after its expiry is not applied."""
        operator.ask("drain", expires_ms=500, member="1")
        world.batch(2, one_row(3))
        assert operator.states() == [("ann-1", "expired")]
        assert drained(world) == ()

    def test_the_answer_of_a_replaced_request_names_the_later_one(self, world: World, operator: Operator) -> None:
        """If two operators pin one key-group, the answer of the first one names the second."""
        operator.ask("pin", key_group=3, member="1")
        Operator(world, user="bob").ask("pin", key_group=3, member="2")
        world.rest()
        first, second = operator.answers()
        assert (first.state, second.state) == ("superseded", "applied")
        assert "bob" in first.text
        assert list(world.driver.operations.requests.pins.values()) == [member_of(world, "2")]

    def test_a_refused_request_replaces_nothing(self, world: World, operator: Operator) -> None:
        """A refused pin does not end an earlier one."""
        operator.ask("pin", key_group=3, member="1")
        operator.ask("pin", key_group=3, member="absent")
        world.rest()
        assert [state for _, state in operator.states()] == ["applied", "refused"]
        assert list(world.driver.operations.requests.pins.values()) == [member_of(world, "1")]


class TestAppliedOnce:
    """Each request is applied exactly once."""

    def test_an_answered_request_is_not_applied_again(self, world: World, operator: Operator) -> None:
        """No driver applies an answered request again, although it is still in the mailbox."""
        operator.ask("drain", member="1")
        world.rest()
        world.driver.operations.undrain("1")
        world.rest(3)
        world.batch(2, one_row(3))
        world.start()
        world.batch(3, one_row(4))
        world.batch(4, one_row(5))
        world.rest(3)
        assert drained(world) == ()
        assert len(read_mailbox(world.memory)[0].requests) == 1

    @pytest.mark.parametrize("step", ["before run", "after seal", "after sink", "after record"])
    def test_a_crash_between_applying_and_recording_applies_it_once(
        self, world: World, operator: Operator, step: str
    ) -> None:
        """After a crash the next driver has both the effect and the answer, or neither. It then applies the request."""
        operator.ask("drain", member="1")
        world.crash_at = step
        with pytest.raises(Crash):
            world.batch(2, one_row(3))
        assert len(operator.states()) == (step == "after record")
        world.start()
        for version in (2, 3, 4):
            world.batch(version, one_row(3))
        assert operator.states() == [("ann-1", "applied")]
        assert drained(world) == (member_of(world, "1"),)
        tail = world.log().tail
        assert tail is not None

    @pytest.mark.parametrize("step", ["before requests", "after requests"])
    def test_a_crash_of_an_idle_driver_applies_it_once(self, world: World, operator: Operator, step: str) -> None:
        """A crash at the record of an idle query loses and repeats no request."""
        operator.ask("drain", member="1")
        world.crash_at = step
        with pytest.raises(Crash):
            world.rest()
        world.start()
        world.batch(2, one_row(3))
        world.rest()
        assert operator.states() == [("ann-1", "applied")]
        assert drained(world) == (member_of(world, "1"),)

    @pytest.mark.parametrize("kind", ["answer_lost", "request_lost"])
    def test_a_lost_answer_of_the_store_changes_nothing(self, world: World, operator: Operator, kind: str) -> None:
        """If the answer of the store is lost, the record may be committed or not. The request is applied once."""
        operator.ask("drain", member="1")
        world.store.script(Fault(kind, name="log/", times=5))  # type: ignore[arg-type]
        with pytest.raises(UnavailableError):
            world.rest()
        world.store.heal()
        world.rest(5)
        assert operator.states() == [("ann-1", "applied")]

    def test_a_fenced_driver_answers_nothing_and_sends_nothing(self, world: World, operator: Operator) -> None:
        """A fenced driver answers no requests. The new driver answers them, and the old one sends no more."""
        old = world.driver
        world.start()
        world.batch(2, one_row(3))
        operator.ask("drain", member="1")
        new = world.driver
        world.driver = old
        with pytest.raises(FencedError):
            world.rest(2)
        assert operator.states() == []
        before = dict(world.store.requests)
        world.rest(3)
        assert world.store.requests == before
        world.driver = new
        world.batch(3, one_row(4))
        assert operator.states() == [("ann-1", "applied")]

    def test_a_request_waits_for_the_first_assignment(self, world: World, operator: Operator) -> None:
        """A driver without an assignment neither reads nor refuses requests."""
        world.start()
        operator.ask("drain", member="1")
        before = world.store.requests["get"]
        world.batch(2, one_row(3))
        assert operator.states() == []
        world.batch(3, one_row(4))
        assert operator.states() == [("ann-1", "applied")]
        assert before <= world.store.requests["get"]


class TestStoreRequests:
    """The requests to the store that a mailbox costs."""

    def test_control_on_adds_one_get_per_batch(self, tmp_path: Path) -> None:
        """With `control = on` each batch sends one get more."""
        sent = {}
        for control in ("on", "off"):
            query = World(tmp_path / control, control=control, snapshot_chain_links=1000, retained_for=3600)
            reports = [query.batch(version, one_row(version)) for version in range(6)]
            sent[control] = [dict(report.requests) for report in reports[2:]]
        assert [{**requests, "get": 1} for requests in sent["off"]] == sent["on"]
        assert all("get" not in requests for requests in sent["off"])

    def test_a_repeated_batch_reads_no_requests(self, world: World, operator: Operator) -> None:
        """A repeated batch commits nothing, so it reads no requests. The next batch reads them."""
        world.batch(2, one_row(3))
        operator.ask("drain", member="1")
        before = world.store.calls.count(("get", MAILBOX))
        assert world.batch(2, one_row(3)).decision == "repeat"
        assert world.store.calls.count(("get", MAILBOX)) == before
        world.batch(3, one_row(4))
        assert operator.states() == [("ann-1", "applied")]

    def test_an_idle_driver_sends_one_get_per_look(self, world: World, operator: Operator) -> None:
        """An idle driver sends one get per look, and none with `control = off`."""
        world.rest(5)
        before = dict(world.store.requests)
        world.rest(10)
        assert world.store.requests == {**before, "get": before["get"] + 10}
        operator.ask("set", control="off")
        world.rest(1)
        assert operator.states() == [("ann-1", "applied")]
        before = dict(world.store.requests)
        operator.ask("drain", member="1")
        sent_by_operator = {name: count - before[name] for name, count in world.store.requests.items()}
        world.rest(10)
        assert world.store.requests == {name: before[name] + sent_by_operator[name] for name in before}

    def test_control_off_ignores_requests(self, tmp_path: Path) -> None:
        """With `control = off` requests are ignored, and the record says so."""
        query = World(tmp_path)
        query.batch(0, one_row(1))
        Operator(query).ask("drain", member="1")
        query.batch(1, one_row(2))
        query.rest(3)
        tail = query.log().tail
        assert tail is not None
        assert not read_requests(tail.orders).control
        assert Operator(query).answers() == ()

    def test_the_record_says_whether_the_driver_reads_requests_now(self, world: World, operator: Operator) -> None:
        """The record says whether the driver reads requests. If not, commands that make requests are refused."""

        def is_read() -> bool:
            tail = world.log().tail
            assert tail is not None
            return read_requests(tail.orders).control

        assert is_read()
        operator.ask("set", control="off")
        world.batch(2, one_row(3))
        assert not is_read()
        world.start()
        world.batch(3, one_row(3))
        world.batch(4, one_row(3))
        assert not is_read()
        world.driver.operations.reconfigure(world.driver.settings, {"control": "on"})
        world.batch(5, one_row(3))
        assert is_read()

    def test_the_mailbox_and_the_answers_stay_small(self, world: World, operator: Operator) -> None:
        """After 100 requests the mailbox and the record have only the newest requests and answers."""
        for number in range(50):
            operator.ask("drain" if number % 2 == 0 else "undrain", member="1")
            operator.ask("rebalance")
            world.rest()
        stored = world.memory.get(MAILBOX)
        assert stored is not None
        assert len(json.loads(stored)["requests"]) <= ANSWERS_KEPT + PENDING_MAX
        assert len(operator.answers()) == ANSWERS_KEPT
        assert operator.answers()[-1].number == 100
        assert len(json.dumps([answer.to_json() for answer in operator.answers()])) < 2000


class TestFaults:
    """A broken mailbox or store does not fail a batch."""

    @pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"format": 9, "last": 0, "requests": []}', b"[" * 9999])
    def test_an_unreadable_mailbox_is_a_warning(self, world: World, data: bytes) -> None:
        """An unreadable mailbox is one warning, not one per batch. Commands refuse it."""
        world.memory.put_if_absent(MAILBOX, data)
        reports = [world.batch(version, one_row(3)) for version in (2, 3, 4)]
        warnings = [warning for report in reports for warning in report.warnings if "RIFFLE-1354" in warning]
        assert len(warnings) == 1
        with pytest.raises(ConfigError) as caught:
            Operator(world).ask("rebalance")
        assert caught.value.id == "RIFFLE-1350"

    def test_a_store_that_does_not_answer_is_a_warning(self, world: World, operator: Operator) -> None:
        """If the store does not answer, the request is applied later."""
        operator.ask("drain", member="1")
        world.store.script(Fault("unavailable", name=MAILBOX, times=2))
        reports = [world.batch(version, one_row(3)) for version in (2, 3, 4)]
        warned = [any("RIFFLE-1354" in warning for warning in report.warnings) for report in reports]
        assert warned == [True, False, False]
        assert operator.states() == [("ann-1", "applied")]

    @pytest.mark.parametrize("change", [{"command": 7}, {"expires_ms": "soon"}, {"arguments": []}, {"number": True}])
    def test_a_request_with_a_value_of_another_type_is_unreadable(self, change: dict[str, object]) -> None:
        """A request with a value of another type is not read."""
        body = {**asdict(_request(1)), **change}
        assert MailboxRequest.from_json(asdict(_request(1))) == _request(1)
        with pytest.raises(TypeError):
            MailboxRequest.from_json(body)

    @pytest.mark.parametrize("row", [None, [1, "a", "applied", 5, ""], [1, "a", "lost", 5, "", ""]])
    def test_an_unknown_answer_in_a_record_is_refused(self, row: object) -> None:
        """A record with an answer of another form or an unknown state is refused."""
        with pytest.raises(CorruptStateError, match="RIFFLE-0227"):
            read_requests({"answers": [row]})

    def test_one_unreadable_request_is_refused_alone(self, world: World, operator: Operator) -> None:
        """An unreadable request is refused, and the other requests are applied."""
        operator.ask("rebalance")
        operator.ask("rebalance")
        stored = read_mailbox(world.memory)
        body = json.loads(stored[0].encode())
        del body["requests"][0]["command"]
        assert stored[1] is not None
        world.memory.replace_if_unchanged(MAILBOX, json.dumps(body).encode(), stored[1])
        world.rest()
        first, second = operator.answers()
        assert (first.state, first.error_id, second.state) == ("refused", "RIFFLE-1356", "applied")
        sent = world.store.requests["put"]
        world.rest(3)
        assert operator.answers() == (first, second)
        assert world.store.requests["put"] == sent

    def test_a_deleted_mailbox_starts_after_the_last_answer(self, world: World, operator: Operator) -> None:
        """After the mailbox was deleted, a new request gets a number after the last answer."""
        operator.ask("drain", member="1")
        world.rest()
        world.memory.delete([MAILBOX])
        world.rest()
        assert operator.ask("undrain", member="1").number == 2
        world.rest()
        assert drained(world) == ()
        assert operator.states()[-1] == ("ann-2", "applied")


REQUESTS = st.builds(
    MailboxRequest,
    number=st.just(0),
    id=st.uuids().map(str),
    command=st.sampled_from(mailbox.COMMANDS),
    arguments=st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5)), max_size=2),
    user=st.text(max_size=5),
    host=st.text(max_size=5),
    time_ms=st.integers(0, 100),
    expires_ms=st.integers(0, 200),
)


class TestMailboxFormat:
    """Encoding of the mailbox and concurrent writes to it."""

    @given(st.lists(st.tuples(REQUESTS, st.integers(0, 40)), max_size=40))
    @settings(deadline=None, max_examples=60)
    def test_a_mailbox_survives_encoding_and_stays_bounded(self, steps: list[tuple[MailboxRequest, int]]) -> None:
        """Numbers only grow, no live request without an answer is lost, and a full mailbox refuses requests."""
        box = Mailbox()
        answered = 0
        for request, more in steps:
            answered = max(answered, min(more, box.last))
            pending = [each for each in box.pending_after(answered) if each.expires_ms > request.time_ms]
            try:
                added = box.add(request, answered)
            except ConfigError:
                assert len(pending) >= PENDING_MAX
                continue
            assert added.requests[-1].number == added.last > box.last
            assert {each.id for each in pending} < {each.id for each in added.requests}
            assert len(added.pending_after(answered)) <= PENDING_MAX
            assert len(added.requests) <= ANSWERS_KEPT + PENDING_MAX
            assert Mailbox.decode(added.encode()) == added
            box = added

    def test_concurrent_operators_lose_no_request(self) -> None:
        """If two operators write at the same time, the second write is repeated, and no request is lost."""
        store = MemoryStore()
        first = MailboxRequest(0, "first", "rebalance", {}, "ann", "a", 0, 10)

        class RacingStore(FaultyStore):
            """A store in which another operator writes first, once."""

            raced = False

            def put_if_absent(self, name: str, data: bytes) -> bool:
                if not self.raced:
                    self.raced = True
                    add_request(store, MailboxRequest(0, "second", "pause", {}, "bob", "b", 0, 10), lambda: 0)
                return super().put_if_absent(name, data)

        assert add_request(RacingStore(store), first, lambda: 0).number == 2
        assert [(each.id, each.number) for each in read_mailbox(store)[0].requests] == [("second", 1), ("first", 2)]

    def test_a_request_that_others_always_overtake_is_not_added(self) -> None:
        """A request that loses against other commands at each attempt is not added, and neither is one that the store
        never takes.
        """

        class Overtaken(MemoryStore):
            """A store in which others always write first."""

            def put_if_absent(self, name: str, data: bytes) -> bool:  # noqa: ARG002
                """Write nothing."""
                return False

        request = MailboxRequest(0, "first", "rebalance", {}, "ann", "a", 0, 10)
        with pytest.raises(UnavailableError, match="RIFFLE-1352"):
            add_request(Overtaken("overtaken"), request, lambda: 0)
        lost = FaultyStore(MemoryStore("lost"), [Fault("request_lost", method="put", times=None)])
        with pytest.raises(UnavailableError) as caught:
            add_request(lost, request, lambda: 0)
        assert caught.value.id != "RIFFLE-1352"

    @pytest.mark.parametrize("kind", ["answer_lost", "request_lost"])
    def test_a_lost_answer_adds_a_request_once(self, kind: str) -> None:
        """If the answer of the store is lost, the request is added once, whether or not the write succeeded."""
        faulty = FaultyStore(MemoryStore(), [Fault(kind, method="put", skip=1)])  # type: ignore[arg-type]
        for name in ("first", "second"):
            add_request(faulty, MailboxRequest(0, name, "rebalance", {}, "ann", "a", 0, 10), lambda: 0)
        assert [each.id for each in read_mailbox(faulty)[0].requests] == ["first", "second"]


def _request(number: int, expires_ms: int = HOUR_MS, **arguments: object) -> MailboxRequest:
    return MailboxRequest(number, f"r{number}", "pin", arguments, "ann", "laptop", 0, expires_ms)


class TestRequestsInMailbox:
    """The requests that the mailbox keeps, and their order."""

    def test_a_new_request_removes_the_oldest_answered_ones(self) -> None:
        """A new request removes the oldest answered requests."""
        box = Mailbox(20, tuple(map(_request, range(1, 21)))).add(_request(0), answered=20)
        assert [each.number for each in box.requests] == [*range(21 - ANSWERS_KEPT, 21), 21]

    def test_a_new_request_removes_the_oldest_expired_ones(self) -> None:
        """A new request removes the oldest expired requests, so that one record can answer all."""
        box = Mailbox(PENDING_MAX, tuple(_request(number, 0) for number in range(1, PENDING_MAX + 1)))
        assert [each.number for each in box.add(_request(0), answered=0).requests] == [*range(2, PENDING_MAX + 2)]

    def test_a_full_mailbox_refuses_a_request_until_one_is_answered(self) -> None:
        """A mailbox whose requests all wait for an answer refuses another one, and the remedy is to wait."""
        box = Mailbox(PENDING_MAX, tuple(map(_request, range(1, PENDING_MAX + 1))))
        with pytest.raises(ConfigError, match="RIFFLE-1351") as refused:
            box.add(_request(0), answered=0)
        assert "riffle requests ROOT" in refused.value.remedy
        assert box.add(_request(0), answered=1).last == PENDING_MAX + 1

    def test_requests_are_read_in_their_order(self) -> None:
        """Requests are read in the order of their numbers, whatever their order in the object."""
        box = Mailbox(2, (_request(2), _request(1)))
        assert [each.number for each in Mailbox.decode(box.encode()).requests] == [1, 2]

    def test_pins_of_two_stores_do_not_replace_each_other(self) -> None:
        """A pin of key-group 3 of one co-location group does not replace that of another group."""
        first, second = (_request(1, store=store, key_group=3) for store in ("a", "b"))
        assert first.subject != second.subject
        assert first.subject == _request(2, store="a", key_group=3).subject

    def test_a_request_expires_at_its_time(self, world: World, operator: Operator) -> None:
        """A request is expired at its expiry time."""
        operator.ask("rebalance", expires_ms=0)
        world.rest()
        assert operator.states() == [("ann-1", "expired")]
