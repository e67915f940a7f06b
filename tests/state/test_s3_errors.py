"""What a user is told when S3 cannot be used, and what is sent again: by a real server where it can be made to say so.

The other answers (5xx, a body that breaks off, 409) come from ``ScriptedServer``, over HTTP too.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import pytest

from riffle_spark.errors import ConfigError, RiffleError, UnavailableError
from riffle_spark.state.objects import ObjectStore
from riffle_spark.state.root import StoreOptions, open_store
from tests.state.object_server import ObjectServer, running_server

pytestmark = pytest.mark.usefixtures("aws_environment")
CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put_if_absent("log/1", b"abc"),
    "get": lambda store: store.get("log/1"),
    "head": lambda store: store.exists("log/1"),
    "list": lambda store: store.list("log/"),
    "delete": lambda store: store.delete(["log/1"]),
}


@dataclass(frozen=True)
class Answer:
    """What the scripted server says to one request; ``broken``: it announces more bytes than it sends."""

    status: int
    body: bytes = b""
    broken: bool = False
    silent_seconds: float = 0.0


def refusal(status: int, code: str) -> Answer:
    """Return an S3 server's answer with an error code."""
    return Answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode())


@dataclass
class ScriptedServer:
    """An HTTP server that gives the answers of a list, the last one for ever, and keeps what it was asked."""

    answers: list[Answer] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    endpoint: str = ""

    def store(self, *answers: Answer, attempts: int = 2) -> ObjectStore:
        """Return a store that will be given these answers."""
        self.answers[:] = answers
        return open_store(
            "s3://riffle/root",
            StoreOptions(s3_endpoint=self.endpoint, s3_max_attempts=attempts, s3_read_timeout_seconds=0.3),
        )

    def next(self) -> Answer:
        """Return the answer to the request at hand."""
        return self.answers[min(len(self.requests), len(self.answers)) - 1]


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    """A scripted server on a free loopback port."""
    script = ScriptedServer()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.requests.append((self.command, self.path, dict(self.headers)))
            answer = script.next()
            time.sleep(answer.silent_seconds)
            with contextlib.suppress(OSError):
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(answer.body) + 10 * answer.broken))
                self.end_headers()
                self.wfile.write(answer.body)

        do_GET = do_PUT = do_POST = do_HEAD = handle_any  # noqa: N815
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield script
    server.shutdown()
    server.server_close()


def error_of(call: Callable[[], object]) -> RiffleError:
    """Return riffle's error that the call raises."""
    with pytest.raises(RiffleError) as caught:
        call()
    return caught.value


class TestSentAgain:
    """Requests that are repeated, and how they are counted."""

    @pytest.mark.parametrize("trouble", [refusal(500, "InternalError"), refusal(503, "SlowDown"), Answer(502)])
    def test_a_failure_that_passes_is_not_seen(self, scripted: ScriptedServer, trouble: Answer) -> None:
        """A call is repeated after a 5xx answer, and both requests are counted."""
        store = scripted.store(trouble, Answer(200))
        assert store.put_if_absent("log/1", b"abc")
        assert store.requests["put"] == len(scripted.requests) == 2

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("trouble", [refusal(503, "SlowDown"), Answer(500), refusal(429, "TooManyRequests")])
    def test_a_failure_that_stays_is_named(self, scripted: ScriptedServer, call: str, trouble: Answer) -> None:
        """After its bounded attempts a call raises an error with endpoint, call and attempts; all requests count."""
        store = scripted.store(trouble)
        error = error_of(lambda: CALLS[call](store))
        assert isinstance(error, UnavailableError)
        assert scripted.endpoint in error.where
        assert scripted.endpoint in error.remedy
        assert "2 attempts" in error.problem
        assert call in error.problem
        assert {kind: count for kind, count in store.requests.items() if count} == {call: 2}
        assert len(scripted.requests) == 2

    def test_more_attempts_are_as_many_requests(self, scripted: ScriptedServer) -> None:
        """The setting counts the first attempt too."""
        store = scripted.store(Answer(500), attempts=3)
        assert "3 attempts" in error_of(lambda: store.list("")).problem
        assert store.requests["list"] == len(scripted.requests) == 3

    def test_one_attempt_is_not_repeated(self, scripted: ScriptedServer) -> None:
        """With a single attempt the first failure is the last."""
        store = scripted.store(Answer(500), attempts=1)
        assert "1 attempt:" in error_of(lambda: store.list("")).problem
        assert len(scripted.requests) == 1

    def test_every_put_is_conditional_and_a_repeated_one_may_meet_itself(self, scripted: ScriptedServer) -> None:
        """A 412 after a lost answer reads as "not by this call": the caller has to look whose bytes are there."""
        store = scripted.store(Answer(500), refusal(412, "PreconditionFailed"))
        assert not store.put_if_absent("log/1", b"abc")
        assert [headers["If-None-Match"] for _, _, headers in scripted.requests] == ["*", "*"]

    def test_a_put_is_one_round_trip(self, scripted: ScriptedServer) -> None:
        """The body goes with the headers, without waiting for leave to send it."""
        scripted.store(Answer(200)).put_if_absent("log/1", b"abc")
        assert "Expect" not in scripted.requests[0][2]

    def test_a_put_that_meets_another_under_way_is_sent_again(self, scripted: ScriptedServer) -> None:
        """409 is neither success nor failure."""
        conflict = refusal(409, "ConditionalRequestConflict")
        assert scripted.store(conflict, Answer(200)).put_if_absent("log/1", b"abc")
        scripted.requests.clear()
        assert not scripted.store(conflict, refusal(412, "PreconditionFailed")).put_if_absent("log/1", b"abc")

    def test_a_put_that_never_gets_its_turn_is_unavailable(self, scripted: ScriptedServer) -> None:
        """Conflicts are bounded like every other failure."""
        store = scripted.store(refusal(409, "ConditionalRequestConflict"), attempts=3)
        error = error_of(lambda: store.put_if_absent("log/1", b"abc"))
        assert isinstance(error, UnavailableError)
        assert "3 attempts" in error.problem
        assert len(scripted.requests) == 3

    def test_a_body_that_breaks_off_is_read_again(self, scripted: ScriptedServer) -> None:
        """Half an object is never returned."""
        store = scripted.store(Answer(200, b"abc", broken=True), Answer(200, b"abcdef"))
        assert store.get("log/1") == b"abcdef"
        assert store.requests["get"] == 2

    def test_a_body_that_always_breaks_off_is_unavailable(self, scripted: ScriptedServer) -> None:
        """Nor is it tried for ever."""
        error = error_of(lambda: scripted.store(Answer(200, b"abc", broken=True)).get("log/1"))
        assert isinstance(error, UnavailableError)
        assert "broke off" in error.problem

    def test_a_server_that_knows_no_ranges_is_cut_to_the_range(self, scripted: ScriptedServer) -> None:
        """A whole object in answer to a range is not taken for the range."""
        assert scripted.store(Answer(200, b"abcdef")).get("log/1", 2, 3) == b"cde"

    def test_objects_that_a_bulk_delete_missed_are_sent_again(self, scripted: ScriptedServer) -> None:
        """A success may hold failures; only what failed is repeated."""
        missed = b"<DeleteResult><Error><Key>root/log/2</Key><Code>SlowDown</Code></Error></DeleteResult>"
        store = scripted.store(Answer(200, missed), Answer(200, b"<DeleteResult></DeleteResult>"))
        store.delete(["log/1", "log/2"])
        assert store.requests["delete"] == 2
        lengths = [int(headers["Content-Length"]) for _, _, headers in scripted.requests]
        assert lengths[1] < lengths[0]
        assert all("Content-MD5" in headers for _, _, headers in scripted.requests)

    @pytest.mark.parametrize(("code", "kind"), [("SlowDown", UnavailableError), ("AccessDenied", ConfigError)])
    def test_objects_that_stay_undeleted_are_an_error(
        self, scripted: ScriptedServer, code: str, kind: type[RiffleError]
    ) -> None:
        """A success that deleted nothing is not one."""
        missed = f"<DeleteResult><Error><Key>root/log/1</Key><Code>{code}</Code></Error></DeleteResult>"
        assert isinstance(error_of(lambda: scripted.store(Answer(200, missed.encode())).delete(["log/1"])), kind)


class TestNoAnswer:
    """Servers that are not there or do not speak."""

    @pytest.mark.parametrize("call", CALLS)
    def test_an_unreachable_endpoint_is_named(self, call: str) -> None:
        """Where nobody listens, the error names the endpoint after bounded attempts."""
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
            error = error_of(
                lambda: CALLS[call](open_store("s3://riffle/a", StoreOptions(s3_endpoint=endpoint, s3_max_attempts=1)))
            )
        assert isinstance(error, UnavailableError)
        assert endpoint in error.where
        assert "1 attempt:" in error.problem

    def test_a_silent_server_is_given_up_in_bounded_time(self, scripted: ScriptedServer) -> None:
        """Two attempts of 0.3 s and the pause between them, not botocore's minute."""
        store = scripted.store(Answer(200, silent_seconds=1.0))
        began = time.monotonic()
        error = error_of(lambda: store.put_if_absent("log/1", b"abc"))
        assert time.monotonic() - began < 5
        assert isinstance(error, UnavailableError)
        assert "ReadTimeoutError" in error.problem

    def test_a_server_that_is_not_s3_is_a_wrong_endpoint(self, scripted: ScriptedServer) -> None:
        """An answer that is no S3 answer names the settings to look at."""
        error = error_of(lambda: scripted.store(Answer(405, b"<html>Not here</html>")).list(""))
        assert isinstance(error, ConfigError)
        assert "s3_endpoint" in error.remedy

    @pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "nonsense", "http://", "http://me:hunter2@127.0.0.1:1"])
    def test_an_endpoint_that_is_no_url_is_refused(self, endpoint: str) -> None:
        """Nothing is sent, and a password in it is not repeated."""
        error = error_of(lambda: open_store("s3://riffle/a", StoreOptions(s3_endpoint=endpoint)).list(""))
        assert isinstance(error, ConfigError)
        assert error.where == "s3_endpoint"
        assert "hunter2" not in str(error)


@pytest.mark.cluster
class TestRealRefusals:
    """What a real server refuses."""

    @pytest.mark.parametrize("call", ["put", "get", "list", "delete"])
    def test_a_missing_bucket_is_named(self, object_server: ObjectServer, call: str) -> None:
        """The error names bucket and endpoint and says to create it."""
        error = error_of(lambda: CALLS[call](open_store("s3://not-there/a", object_server.options)))
        assert isinstance(error, ConfigError)
        assert error.where == f"s3://not-there at {object_server.endpoint}"
        assert "create the bucket" in error.remedy

    @pytest.mark.parametrize("call", CALLS)
    def test_wrong_credentials_are_refused_but_not_repeated(
        self, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        """An unknown key id: the error names bucket and endpoint, its traceback neither key nor secret."""
        set_credentials(monkeypatch, "AKIAUNKNOWNUNKNOWN00", "hunter2")
        with object_server.checking_credentials():
            assert_credentials_error(object_server, call)

    @pytest.mark.parametrize("call", CALLS)
    def test_a_wrong_secret_is_refused_but_not_repeated(
        self, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, user: dict[str, str], call: str
    ) -> None:
        """A known key id with another secret: its signature does not match."""
        set_credentials(monkeypatch, user["AccessKeyId"], "hunter2")
        with object_server.checking_credentials():
            assert_credentials_error(object_server, call)

    def test_corrected_credentials_are_taken_up(
        self, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, user: dict[str, str]
    ) -> None:
        """The same store works once the environment is right: nothing has to be restarted."""
        store = open_store(object_server.new_root(), one_attempt(object_server, "corrected"))
        with object_server.checking_credentials():
            set_credentials(monkeypatch, user["AccessKeyId"], "hunter2")
            assert isinstance(error_of(lambda: store.list("")), ConfigError)
            set_credentials(monkeypatch, user["AccessKeyId"], user["SecretAccessKey"])
            assert store.put_if_absent("log/1", b"abc")
            assert store.list("") == ["log/1"]

    def test_a_user_without_rights_is_told_which_are_needed(
        self, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, user: dict[str, str], iam: object
    ) -> None:
        """Credentials that are right but may not: the remedy lists the rights."""
        iam.delete_user_policy(UserName="riffle", PolicyName="all")  # type: ignore[attr-defined]
        set_credentials(monkeypatch, user["AccessKeyId"], user["SecretAccessKey"])
        with object_server.checking_credentials():
            error = error_of(
                lambda: open_store(object_server.new_root(), one_attempt(object_server, "rights")).list("")
            )
        assert isinstance(error, ConfigError)
        assert "s3:ListBucket" in error.remedy

    def test_no_credentials_at_all_is_said(self, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without any, nothing is sent and the error says where boto3 looks."""
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        store = open_store(object_server.new_root(), one_attempt(object_server, "none"))
        error = error_of(lambda: store.list(""))
        assert isinstance(error, ConfigError)
        assert "environment" in error.remedy
        assert object_server.endpoint in error.where
        assert not any(store.requests.values())

    def test_a_certificate_that_nobody_signed_is_refused(self, tmp_path: Path) -> None:
        """TLS is verified, and the error says how to trust an authority of one's own."""
        with running_server(tmp_path / "server.log", "https") as endpoint:
            options = StoreOptions(s3_endpoint=endpoint, s3_region="us-east-1", s3_max_attempts=1)
            error = error_of(lambda: open_store("s3://riffle/a", options).list(""))
        assert isinstance(error, ConfigError)
        assert "AWS_CA_BUNDLE" in error.remedy
        assert endpoint in error.where

    def test_a_region_need_not_be_given(self, object_server: ObjectServer) -> None:
        """With an endpoint alone a store works."""
        store = open_store(object_server.new_root(), replace(object_server.options, s3_region=None))
        assert store.put_if_absent("log/1", b"abc")
        assert store.get("log/1") == b"abc"

    def test_a_server_that_goes_away_is_unavailable(self, tmp_path: Path) -> None:
        """A used connection whose server was stopped ends in the same error as one that never was."""
        with running_server(tmp_path / "server.log") as endpoint:
            boto3.session.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(
                Bucket="bk1"
            )
            store = open_store("s3://bk1/a", StoreOptions(s3_endpoint=endpoint, s3_max_attempts=2))
            assert store.put_if_absent("log/1", b"abc")
        error = error_of(lambda: store.put_if_absent("log/2", b"abc"))
        assert isinstance(error, UnavailableError)
        assert endpoint in error.where


@pytest.fixture
def iam(object_server: ObjectServer) -> object:
    """A client of the server's user administration."""
    return boto3.session.Session().client("iam", endpoint_url=object_server.endpoint, region_name="us-east-1")


@pytest.fixture
def user(object_server: ObjectServer, iam: object) -> Iterator[dict[str, str]]:
    """The access key of a user who may do everything in S3."""
    may_all = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.create_user(UserName="riffle")  # type: ignore[attr-defined]
    iam.put_user_policy(UserName="riffle", PolicyName="all", PolicyDocument=json.dumps(may_all))  # type: ignore[attr-defined]
    key = iam.create_access_key(UserName="riffle")["AccessKey"]  # type: ignore[attr-defined]
    yield key
    iam.delete_access_key(UserName="riffle", AccessKeyId=key["AccessKeyId"])  # type: ignore[attr-defined]
    with contextlib.suppress(iam.exceptions.NoSuchEntityException):  # type: ignore[attr-defined]
        iam.delete_user_policy(UserName="riffle", PolicyName="all")  # type: ignore[attr-defined]
    iam.delete_user(UserName="riffle")  # type: ignore[attr-defined]


def set_credentials(patch: pytest.MonkeyPatch, key_id: str, secret: str) -> None:
    """Put credentials where boto3 looks first."""
    patch.setenv("AWS_ACCESS_KEY_ID", key_id)
    patch.setenv("AWS_SECRET_ACCESS_KEY", secret)


def one_attempt(server: ObjectServer, test: str) -> StoreOptions:
    """Return options that no other test shares, so that the client is new and takes the credentials of the moment."""
    return replace(server.options, s3_max_attempts=1, s3_read_timeout_seconds=10 + len(test) / 100)


def assert_credentials_error(server: ObjectServer, call: str) -> None:
    """Check that a call is refused as it should be."""
    store = open_store(server.new_root(), one_attempt(server, call + "credentials"))
    error = error_of(lambda: CALLS[call](store))
    assert isinstance(error, ConfigError)
    assert error.where == f"s3://{server.bucket} at {server.endpoint}"
    assert "credentials" in error.remedy
    shown = "".join(traceback.format_exception(error))
    assert "hunter2" not in shown
    assert "AKIA" not in shown
