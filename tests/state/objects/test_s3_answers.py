"""Every answer of an S3 server leads to the right action, as a server on loopback gives it to boto3's real client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError, RefusedError, UnavailableError
from riffle_spark.state.objects.s3_answers import TABLE, Action, Rule, rule_of
from riffle_spark.state.objects.store import ObjectStore
from tests.kit.matrix import sampled
from tests.kit.servers.s3_calls import CALLS, error_of
from tests.kit.servers.scripted_server import Answer, Request, ScriptedServer, refusal

pytestmark = pytest.mark.usefixtures("aws_environment")

OPERATIONS = {
    "put": "put_object",
    "get": "get_object",
    "head": "head_object",
    "list": "list_objects_v2",
    "delete": "delete_objects",
}
EMPTY = {
    "list": Answer(200, b"<ListBucketResult></ListBucketResult>"),
    "delete": Answer(200, b"<DeleteResult></DeleteResult>"),
}
KMS_MISSING = "Server side encryption specified but KMS is not configured"
HEADER = "A header you provided implies functionality that is not implemented"
Case = tuple[str, int, str, str]
"""A call of ``CALLS``, and status, code and message of the first answer to it."""

AGAIN: list[Case] = [
    *[(call, 500, "InternalError", "") for call in OPERATIONS if call != "delete"],
    *[(call, 503, "", "") for call in OPERATIONS],
    *[("head", status, "", "") for status in (408, 409, 429, 502, 504)],
    *[("list", 503, code, "") for code in ("SlowDownRead", "XMinioBackendDown")],
    *[("put", 400, code, "") for code in ("RequestTimeout", "IncompleteBody", "BadDigest", "ThrottlingException")],
    *[("put", 409, code, "") for code in ("ConditionalRequestConflict", "ConcurrentModification")],
]
FRESH: list[Case] = [
    *[
        (call, status, code, "")
        for call in OPERATIONS
        if call != "head"
        for status, code in (
            (400, "ExpiredToken"),
            (400, "InvalidToken"),
            (400, "TokenRefreshRequired"),
            (403, "InvalidAccessKeyId"),
            (403, "AccessDenied"),
            (403, "SignatureDoesNotMatch"),
        )
    ],
    *[("head", status, "", "") for status in (400, 401, 403)],
    *[("put", status, "", "") for status in (400, 401, 403)],
    *[("get", 403, code, "") for code in ("InvalidTokenId", "InvalidSecurity")],
    ("get", 401, "Unauthorized", ""),
    ("get", 400, "AccessDenied", ""),
    ("put", 403, "UserSuspended", ""),
]
FINAL: list[tuple[Case, str]] = [
    *[((call, 404, "NoSuchBucket", ""), "create the bucket") for call in ("put", "get")],
    *[(("put", status, "NotImplemented", HEADER), "conditional puts") for status in (400, 501)],
    *[(("put", status, "", ""), "conditional puts") for status in (405, 501, 505)],
    (("put", 405, "MethodNotAllowed", ""), "conditional puts"),
    (("put", 400, "InvalidArgument", "the header If-None-Match is not supported"), "conditional puts"),
    (("put", 501, "NotImplemented", KMS_MISSING), "s3_server_side_encryption"),
    (("put", 501, "NotImplemented", "Header 'x-amz-server-side-encryption' with value 'AES256'"), "s3_kms_key"),
    *[
        ((call, 400, code, ""), "s3_kms_key")
        for call in ("put", "get")
        for code in ("KMS.NotFoundException", "InvalidEncryptionAlgorithmError")
    ],
    (("get", 501, "NotImplemented", "Header 'x-amz-request-payer' with value 'requester'"), "s3_requester_pays"),
    (("list", 400, "UserProjectMissing", ""), "s3_requester_pays"),
    *[((call, status, "", ""), "must be S3") for call in ("head", "list") for status in (405, 501, 505)],
    (("list", 400, "NotImplemented", ""), "must be S3"),
    (("put", 403, "RequestTimeTooSkewed", ""), "NTP"),
    (("list", 400, "ExpiredRequest", ""), "NTP"),
    (("list", 400, "AuthorizationHeaderMalformed", ""), "s3_region"),
    (("put", 403, "QuotaExceeded", ""), "quota"),
    (("put", 400, "XMinioAdminBucketQuotaExceeded", ""), "quota"),
    (("get", 403, "InvalidObjectState", ""), "lifecycle"),
    (("put", 400, "EntityTooLarge", "too large"), "s3_endpoint"),
    (("list", 404, "", ""), "s3_endpoint"),
    (("delete", 400, "MalformedXML", ""), "s3_endpoint"),
]
ANSWERS: list[tuple[Case, object]] = [
    (("put", 412, "PreconditionFailed", ""), False),
    (("put", 304, "", ""), False),
    (("get", 404, "NoSuchKey", ""), None),
    (("get", 404, "", ""), None),
    (("head", 404, "", ""), False),
]
BULK: list[Case] = [
    *[("delete", 501, code, "") for code in ("", "NotImplemented")],
    *[("delete", 405, code, "") for code in ("", "MethodNotAllowed")],
    ("delete", 400, "NotImplemented", "POST ?delete is not implemented for objects."),
]
LEFT: list[Case] = [("delete", 500, "InternalError", ""), ("delete", 500, "", ""), ("delete", 404, "NoSuchKey", "")]


def name_of(case: object) -> str:
    """Return a case's name in a test's id."""
    return "-".join(str(part)[:24] for part in case if part != "") if isinstance(case, tuple) else ""


def answer_of(case: Case) -> Answer:
    """Return the first answer. Without a code it has no body, and so has every answer to HEAD."""
    _, status, code, message = case
    return refusal(status, code, message) if code else Answer(status)


def rule_for(case: Case) -> Rule:
    """Return the row that a case is about, by the code that boto3 reports."""
    call, status, code, message = case
    if call == "head" or not code:
        return rule_of(OPERATIONS[call], status, str(status), "")
    return rule_of(OPERATIONS[call], status, code, message)


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that writes the credentials file with an access key."""
    file = tmp_path / "credentials"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setattr("time.sleep", lambda _: None)

    def write(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")

    write("OLD")
    return write


def opened(scripted: ScriptedServer, respond: Callable[[Request], Answer]) -> ObjectStore:
    """Return a store of a server that answers by a function. Each call is sent once by botocore."""
    store = scripted.store(Answer(200), attempts=1, patience_seconds=60)
    scripted.respond = respond
    return store


def first_then_success(
    scripted: ScriptedServer, case: Case, rotate: Callable[[str], None]
) -> Callable[[Request], Answer]:
    """Return a server's function: the case's answer to the first request, while the credentials are rotated."""

    def respond(request: Request) -> Answer:
        if len(scripted.seen) > 1:
            return Answer(200) if request.method == "HEAD" else EMPTY.get(case[0], Answer(200))
        rotate("NEW")
        return answer_of(case)

    return respond


@pytest.mark.parametrize("case", AGAIN, ids=name_of)
def test_what_may_pass_is_sent_again(scripted: ScriptedServer, case: Case, credentials: Callable[[str], None]) -> None:
    """The second request is the first one again, and the call succeeds."""
    CALLS[case[0]](opened(scripted, first_then_success(scripted, case, credentials)))
    first, second = scripted.seen
    assert (first.method, first.path, first.body) == (second.method, second.path, second.body)
    assert rule_for(case).action is Action.AGAIN


@pytest.mark.parametrize("case", sampled(FRESH, 3), ids=name_of)
def test_rotated_credentials_are_read_before_a_call_fails(
    scripted: ScriptedServer, case: Case, credentials: Callable[[str], None]
) -> None:
    """The call is sent once more, by a new client that has read the file again, and succeeds."""
    CALLS[case[0]](opened(scripted, first_then_success(scripted, case, credentials)))
    objects = [request for request in scripted.seen if request.path.rstrip("/") != "/riffle" or case[0] != "head"]
    assert [request.access_key for request in objects] == ["OLD", "NEW"]
    assert rule_for(case).action is Action.FRESH_CREDENTIALS


@pytest.mark.parametrize("case", [*FRESH[::6], ("head", 400, "", ""), ("head", 403, "", "")], ids=name_of)
def test_what_is_refused_with_fresh_credentials_too_is_an_error(
    scripted: ScriptedServer, case: Case, credentials: Callable[[str], None]
) -> None:
    """It is sent twice and no more, and the error is one of refusal."""
    store = opened(scripted, lambda _: answer_of(case))
    assert isinstance(error_of(lambda: CALLS[case[0]](store)), RefusedError)
    assert (
        len([request for request in scripted.seen if request.path.rstrip("/") != "/riffle" or case[0] != "head"]) == 2
    )


@pytest.mark.parametrize(("case", "remedy"), FINAL, ids=name_of)
def test_what_cannot_pass_is_an_error_at_once(
    scripted: ScriptedServer, case: Case, remedy: str, credentials: Callable[[str], None]
) -> None:
    """One request, and an error whose remedy names what to change."""
    store = opened(scripted, lambda _: answer_of(case))
    error = error_of(lambda: CALLS[case[0]](store))
    assert isinstance(error, ConfigError)
    assert remedy in error.remedy
    assert len(scripted.seen) == 1
    assert rule_for(case).action is Action.FINAL
    if remedy == "conditional puts":
        assert "this server has no conditional puts" in error.problem


def test_a_permanent_redirect_names_the_region(scripted: ScriptedServer, credentials: Callable[[str], None]) -> None:
    """Botocore asks for the bucket's region first, which this server does not tell."""
    store = opened(scripted, lambda request: Answer(301) if request.path != "/riffle" else Answer(200))
    assert "s3_region" in error_of(lambda: store.list("")).remedy
    assert "s3_region" in error_of(lambda: store.exists("log/1")).remedy


@pytest.mark.parametrize(("case", "value"), ANSWERS, ids=name_of)
def test_what_is_absent_or_taken_is_an_answer(
    scripted: ScriptedServer, case: Case, value: object, credentials: Callable[[str], None]
) -> None:
    """One request answers the question."""
    assert CALLS[case[0]](opened(scripted, lambda _: answer_of(case))) is value
    assert len(scripted.seen) == 1
    assert rule_for(case).action is Action.ANSWER


def test_a_range_beyond_the_end_is_an_answer(scripted: ScriptedServer, credentials: Callable[[str], None]) -> None:
    """As with slices, it is empty."""
    assert opened(scripted, lambda _: refusal(416, "InvalidRange")).get("log/1", 5, 2) == b""


class Deleting:
    """A server that holds objects and refuses bulk deletes in one way or another."""

    def __init__(self, answer: Answer, names: set[str], *, deletes_first: bool, missing: int = 204) -> None:
        self.answer = answer
        self.paths = {f"/riffle/root/{name}" for name in names}
        self.deletes_first = deletes_first
        self.missing = missing

    def __call__(self, request: Request) -> Answer:
        """Answer a request."""
        is_there = request.path in self.paths
        if request.method == "HEAD":
            return Answer(200 if is_there else 404)
        if request.method == "DELETE":
            self.paths.discard(request.path)
            return Answer(204 if is_there else self.missing)
        wanted = {path for path in self.paths if f"<Key>{path.removeprefix('/riffle/')}</Key>" in request.body.decode()}
        is_whole = len(wanted) == request.body.count(b"<Key>")
        if self.deletes_first:
            self.paths -= wanted
        return EMPTY["delete"] if is_whole and self.deletes_first else self.answer


@pytest.mark.parametrize(("case", "missing"), [*[(case, 204) for case in BULK], (BULK[0], 404)], ids=name_of)
def test_a_server_without_bulk_deletes_deletes_one_by_one(
    scripted: ScriptedServer, case: Case, missing: int, credentials: Callable[[str], None]
) -> None:
    """The server is asked for a bulk delete once; what is missing is no error."""
    server = Deleting(answer_of(case), {"a", "b", "c", "d"}, deletes_first=False, missing=missing)
    store = opened(scripted, server)
    store.delete(["a", "b", "not there"])
    store.delete(["c"])
    assert server.paths == {"/riffle/root/d"}
    assert [request.method for request in scripted.seen] == ["POST", "DELETE", "DELETE", "DELETE", "DELETE"]
    assert store.requests["delete"] == 5
    assert rule_for(case).action is Action.DELETE_ONE_BY_ONE


@pytest.mark.parametrize("case", LEFT, ids=name_of)
def test_a_bulk_delete_that_fails_for_a_missing_object_is_not_repeated_whole(
    scripted: ScriptedServer, case: Case, credentials: Callable[[str], None]
) -> None:
    """The server has deleted the others: it is asked what is left, and nothing is."""
    server = Deleting(answer_of(case), {"a", "b"}, deletes_first=True)
    opened(scripted, server).delete(["a", "b", "not there"])
    assert server.paths == set()
    assert [request.method for request in scripted.seen] == ["POST", "HEAD", "HEAD", "HEAD"]
    assert rule_for(case).action is Action.ASK_WHAT_IS_LEFT


def test_only_what_a_failed_bulk_delete_has_left_is_deleted_again(
    scripted: ScriptedServer, credentials: Callable[[str], None]
) -> None:
    """A server that gives up half-way."""
    server = Deleting(refusal(500, "InternalError"), {"a", "b"}, deletes_first=True)

    def respond(request: Request) -> Answer:
        if len(scripted.seen) == 1:
            server.paths.discard("/riffle/root/a")
            return refusal(500, "InternalError")
        return server(request)

    opened(scripted, respond).delete(["a", "b"])
    assert server.paths == set()
    assert [request.method for request in scripted.seen] == ["POST", "HEAD", "HEAD", "POST"]
    assert b"root/a" not in scripted.seen[-1].body


def test_a_server_is_asked_again_what_is_left_after_each_delete_that_got_further(
    scripted: ScriptedServer, credentials: Callable[[str], None]
) -> None:
    """This one deletes one object of each request, and fails each time."""
    server = Deleting(refusal(500, "InternalError"), {"a", "b", "c"}, deletes_first=False)

    def respond(request: Request) -> Answer:
        if request.method == "POST":
            server.paths.discard(min(server.paths))
        return server(request)

    opened(scripted, respond).delete(["a", "b", "c"])
    assert [request.method for request in scripted.seen] == [
        "POST",
        *["HEAD"] * 3,
        "POST",
        *["HEAD"] * 2,
        "POST",
        "HEAD",
    ]


def test_a_bulk_delete_that_deletes_nothing_asks_once_and_ends(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch, credentials: Callable[[str], None]
) -> None:
    """It is repeated until patience ends, and the objects are looked at once."""
    now = [0.0]
    monkeypatch.setattr("time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    server = Deleting(refusal(500, "InternalError"), {"a", "b"}, deletes_first=False)
    error = error_of(lambda: opened(scripted, server).delete(["a", "b"]))
    assert isinstance(error, UnavailableError)
    assert "delete_objects failed" in error.problem
    assert [request.method for request in scripted.seen].count("HEAD") == 2
    assert [request.method for request in scripted.seen].count("POST") > 2


def test_every_row_of_the_table_has_a_case() -> None:
    """A row that no answer reaches is dead, and one without a case is not tested."""
    cases = [*AGAIN, *FRESH, *BULK, *LEFT, *[case for case, _ in (*FINAL, *ANSWERS)]]
    reached = {id(rule_for(case)) for case in cases}
    reached |= {id(rule_of("list_objects_v2", 301, "301", "")), id(rule_of("delete_object", 404, "NoSuchKey", ""))}
    assert [rule for rule in TABLE if id(rule) not in reached] == []


@pytest.mark.usefixtures("credentials")
class TestPuts:
    """A conditional put is repeated only so that its outcome stays known."""

    def test_a_put_that_was_refused_for_its_credentials_and_then_meets_an_object_did_not_write_it(
        self, scripted: ScriptedServer
    ) -> None:
        """The name was taken by another."""
        store = scripted.store(refusal(400, "ExpiredToken"), refusal(412, "PreconditionFailed"), attempts=1)
        assert not store.put_if_absent("log/1", b"abc")

    def test_a_put_that_was_refused_twice_has_not_been_done(self, scripted: ScriptedServer) -> None:
        """Both answers are definite, so the refusal is told as one."""
        store = scripted.store(refusal(400, "ExpiredToken"), refusal(403, "AccessDenied"), attempts=1)
        assert type(error_of(lambda: store.put_if_absent("log/1", b"abc"))) is RefusedError

    @pytest.mark.parametrize("last", [refusal(403, "AccessDenied"), refusal(400, "EntityTooLarge"), Answer(501)])
    def test_a_put_that_is_refused_after_one_without_an_answer_may_have_been_done(
        self, scripted: ScriptedServer, last: Answer
    ) -> None:
        """However definite the later answers are."""
        store = scripted.store(Answer(500), refusal(400, "ExpiredToken"), last, attempts=1, patience_seconds=60)
        error = error_of(lambda: store.put_if_absent("log/1", b"abc"))
        assert type(error) is UnavailableError
        assert "no answer" in error.problem

    def test_a_put_that_met_another_under_way_and_is_then_refused_has_not_been_done(
        self, scripted: ScriptedServer
    ) -> None:
        """A conflict is a definite answer."""
        store = scripted.store(refusal(409, "ConditionalRequestConflict"), Answer(501), attempts=1, patience_seconds=60)
        assert "conditional puts" in error_of(lambda: store.put_if_absent("log/1", b"abc")).remedy


def test_a_web_identity_is_asked_for_again(
    scripted: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: Callable[[str], None]
) -> None:
    """As on EKS: the token's file was rotated, and the session of the old one has ended on the server."""
    token = tmp_path / "token"
    token.write_text("OLD token")
    (tmp_path / "credentials").unlink()
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::111122223333:role/riffle")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", scripted.endpoint)

    def respond(request: Request) -> Answer:
        if b"AssumeRoleWithWebIdentity" in request.body:
            key = "NEW" if b"WebIdentityToken=NEW" in request.body else "OLD"
            return Answer(200, SESSION.format(key=key).encode())
        token.write_text("NEW token")
        return Answer(200, b"abc") if request.access_key == "NEW" else refusal(400, "ExpiredToken")

    assert opened(scripted, respond).get("log/1") == b"abc"
    assert [request.access_key for request in scripted.seen if request.method == "GET"] == ["OLD", "NEW"]


SESSION = (
    "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{key}</AccessKeyId>"
    "<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration>"
    "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
)
