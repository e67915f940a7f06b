"""Retries of S3 requests: which requests are repeated, how they are counted, and when they end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from riffle_spark.errors import ConfigError, RefusedError, RiffleError, UnavailableError
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import S3Options, StoreOptions
from riffle_spark.state.objects.store import PIECE_BYTES, ObjectStore
from tests.kit.module_time import OBJECT_STORES, replace_time, skip_pauses
from tests.kit.servers.s3_calls import error_of
from tests.kit.servers.scripted_server import Answer, ScriptedServer, refusal

pytestmark = pytest.mark.usefixtures("aws_environment")


class TestRepeatedRequests:
    """Repeated requests and their counts."""

    def test_earlier_calls_do_not_reduce_the_attempts_of_a_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In a long outage every call makes all its attempts, although botocore has a retry quota."""
        pauses: list[float] = []
        replace_time(monkeypatch, *OBJECT_STORES, sleep=pauses.append)
        store = open_store(
            "s3://riffle/root",
            StoreOptions(s3=S3Options(endpoint="http://127.0.0.1:9"), max_attempts=8, patience_seconds=0),
        )
        problems = [error_of(lambda: store.get("log/1")).problem for _ in range(7)]
        assert store.requests["get"] == 7 * 8
        assert all("8 attempts" in problem for problem in problems)
        assert 5 <= max(pauses) <= 20, "the last pauses take seconds"

    def test_a_long_wait_is_logged_once(
        self, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A wait of many failures is logged once with the call, the endpoint and the setting, and a single failure is
        not logged.
        """
        skip_pauses(monkeypatch)
        store = scripted.store(Answer(500), Answer(200, b"abc"), patience_seconds=60)
        assert store.get("log/1") == b"abc"
        assert not caplog.messages, "a single failure is not logged"
        scripted.answers[:] = [*[Answer(500)] * 9, Answer(200, b"abc")]
        assert store.get("log/1") == b"abc"
        (message,) = caplog.messages
        assert "get" in message
        assert "http://127.0.0.1" in message
        assert "until 60 s after its start or last progress (s3_patience)" in message

    def test_an_outage_longer_than_the_patience_raises_an_error(
        self, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An outage that is longer than the patience raises an error with the number of requests."""
        skip_pauses(monkeypatch)
        store = scripted.store(Answer(200, b"abc"), patience_seconds=1)
        assert store.get("log/1") == b"abc", "the client exists before the outage"
        scripted.requests.clear()
        scripted.answers[:] = [Answer(500)]
        problem = error_of(lambda: store.get("log/1")).problem
        assert len(scripted.requests) > 2
        assert f"{len(scripted.requests)} attempts" in problem

    @pytest.mark.parametrize("unclear", [503, 408])
    def test_a_put_refused_after_a_lost_answer_may_have_been_written(
        self, scripted: ScriptedServer, unclear: int
    ) -> None:
        """A put that is refused after a request without an answer may have been written, and the error says so."""
        denied = refusal(403, "AccessDenied", "no rights")
        error = error_of(lambda: scripted.store(Answer(unclear), denied).put_if_absent("log/1", b"abc"))
        assert type(error) is UnavailableError
        assert ("no answer" in error.problem, "no rights" in error.problem) == (True, True)
        assert "s3:PutObject" in error.remedy
        error = error_of(lambda: scripted.store(denied).put_if_absent("log/1", b"abc"))
        assert type(error) is RefusedError

    def test_a_put_sends_no_expect_header(self, scripted: ScriptedServer) -> None:
        """A put sends its body with the headers, without an Expect header."""
        scripted.store(Answer(200)).put_if_absent("log/1", b"abc")
        assert "Expect" not in scripted.requests[0][2]

    def test_a_put_that_conflicts_with_a_concurrent_put_is_sent_again(self, scripted: ScriptedServer) -> None:
        """A put that conflicts with a concurrent put (409) is sent again."""
        conflict = refusal(409, "ConditionalRequestConflict")
        assert scripted.store(conflict, Answer(200)).put_if_absent("log/1", b"abc")
        scripted.requests.clear()
        assert not scripted.store(conflict, refusal(412, "PreconditionFailed")).put_if_absent("log/1", b"abc")

    @pytest.mark.parametrize(
        "call", [lambda store: store.get("log/1"), lambda store: store.copy_to("log/1", 0, 9, bytes)]
    )
    def test_nested_retries_do_not_multiply_attempts(
        self, scripted: ScriptedServer, call: Callable[[ObjectStore], object]
    ) -> None:
        """A call makes its attempts once, whether requests fail, bodies are cut off, or both happen."""
        trouble = [Answer(500), Answer(500), Answer(206, b"abc", broken=True)]
        store = scripted.store(*trouble * 3, attempts=3)
        assert "3 attempts" in error_of(lambda: call(store)).problem
        assert len(scripted.requests) == 3

    def test_each_transferred_piece_resets_the_patience_of_a_copy(
        self, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A copy that is interrupted repeatedly succeeds if each attempt transfers a piece."""
        skip_pauses(monkeypatch)
        whole = bytes(range(256)) * 1024 * 5
        broken = [Answer(206, whole[n * PIECE_BYTES :][: PIECE_BYTES + 9], broken=True) for n in range(4)]
        store = scripted.store(*broken, Answer(206, whole[4 * PIECE_BYTES :]))
        pieces: list[bytes] = []
        assert store.copy_to("log/1", 0, len(whole), pieces.append) == len(whole)
        assert b"".join(pieces) == whole
        assert len(scripted.requests) == 5

    def test_only_objects_that_a_bulk_delete_missed_are_deleted_again(self, scripted: ScriptedServer) -> None:
        """Only the objects that a bulk delete failed to delete are sent again."""
        missed = b"<DeleteResult><Error><Key>root/log/2</Key><Code>SlowDown</Code></Error></DeleteResult>"
        store = scripted.store(Answer(200, missed), Answer(200, b"<DeleteResult></DeleteResult>"))
        store.delete(["log/1", "log/2"])
        assert store.requests["delete"] == 2
        lengths = [int(headers["Content-Length"]) for _, _, headers in scripted.requests]
        assert lengths[1] < lengths[0]
        assert all("Content-MD5" in headers for _, _, headers in scripted.requests)

    @pytest.mark.parametrize(("code", "kind"), [("SlowDown", UnavailableError), ("AccessDenied", ConfigError)])
    def test_a_bulk_delete_that_deletes_nothing_is_an_error(
        self, scripted: ScriptedServer, code: str, kind: type[RiffleError]
    ) -> None:
        """A bulk delete with a success status that deletes nothing raises an error."""
        missed = f"<DeleteResult><Error><Key>root/log/1</Key><Code>{code}</Code></Error></DeleteResult>"
        assert isinstance(error_of(lambda: scripted.store(Answer(200, missed.encode())).delete(["log/1"])), kind)
