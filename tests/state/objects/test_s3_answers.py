"""Each answer of an S3 server leads to the right action, tested with boto3 and a scripted server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from riffle_spark.errors import RefusedError, UnavailableError
from riffle_spark.state.objects.answers import Action, Rule
from riffle_spark.state.objects.s3 import S3Store
from riffle_spark.state.objects.s3_answers import TABLE, rule_of
from riffle_spark.state.objects.store import ObjectStore
from tests.kit.module_time import OBJECT_STORES, replace_time, skip_pauses
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
"""A call of ``CALLS``, and the status, code and message of the first answer to it."""

AGAIN: list[Case] = [
    *[(call, 503, "", "") for call in OPERATIONS],
    ("head", 409, "", ""),
    ("list", 503, "SlowDownRead", ""),
    ("put", 400, "RequestTimeout", ""),
    ("put", 400, "ThrottlingException", ""),
    ("put", 409, "ConditionalRequestConflict", ""),
]
FRESH: list[Case] = [
    *[(call, 403, "AccessDenied", "") for call in OPERATIONS if call != "head"],
    ("put", 400, "ExpiredToken", ""),
    ("get", 403, "SignatureDoesNotMatch", ""),
    ("head", 400, "", ""),
    ("head", 403, "", ""),
    ("get", 401, "Unauthorized", ""),
]
FINAL: list[tuple[Case, str]] = [
    (("put", 404, "NoSuchBucket", ""), "RIFFLE-0488"),
    (("put", 501, "NotImplemented", HEADER), "RIFFLE-0493"),
    (("put", 405, "", ""), "RIFFLE-0493"),
    (("put", 400, "InvalidArgument", "the header If-None-Match is not supported"), "RIFFLE-0493"),
    (("put", 501, "NotImplemented", KMS_MISSING), "RIFFLE-0489"),
    (("get", 400, "KMS.NotFoundException", ""), "RIFFLE-0489"),
    (("put", 400, "InvalidEncryptionAlgorithmError", ""), "RIFFLE-0489"),
    (("head", 405, "", ""), "RIFFLE-0496"),
    (("put", 403, "RequestTimeTooSkewed", ""), "RIFFLE-0498"),
    (("list", 400, "AuthorizationHeaderMalformed", ""), "RIFFLE-0499"),
    (("get", 403, "InvalidObjectState", ""), "RIFFLE-0501"),
    (("put", 400, "EntityTooLarge", "too large"), "RIFFLE-0506"),
    (("list", 404, "", ""), "RIFFLE-0506"),
]
ANSWERS: list[tuple[Case, object]] = [
    (("put", 412, "PreconditionFailed", ""), False),
    (("put", 304, "", ""), False),
    (("put", 404, "NoSuchKey", ""), False),
    (("get", 404, "NoSuchKey", ""), None),
    (("head", 404, "", ""), False),
]
NO_BULK_DELETE: list[Case] = [
    *[("delete", 501, code, "") for code in ("", "NotImplemented")],
    *[("delete", 405, code, "") for code in ("", "MethodNotAllowed")],
    ("delete", 400, "NotImplemented", "POST ?delete is not implemented for objects."),
]
FAILED_DELETE: list[Case] = [
    ("delete", 500, "InternalError", ""),
    ("delete", 500, "", ""),
    ("delete", 404, "NoSuchKey", ""),
]


def name_of(case: object) -> str:
    """Return the name of a case for a test id."""
    return "-".join(str(part)[:24] for part in case if part != "") if isinstance(case, tuple) else ""


def answer_of(case: Case) -> Answer:
    """Return the first answer of a case. Without a code, and for HEAD, the answer has no body."""
    _, status, code, message = case
    return refusal(status, code, message) if code else Answer(status)


def rule_for(case: Case) -> Rule:
    """Return the rule that applies to a case, by the code that boto3 reports."""
    call, status, code, message = case
    if call == "head" or not code:
        return rule_of(OPERATIONS[call], status, str(status), "")
    return rule_of(OPERATIONS[call], status, code, message)


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that writes an access key to the credentials file."""
    file = tmp_path / "credentials"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    skip_pauses(monkeypatch)

    def write(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")

    write("OLD")
    return write


def opened(scripted: ScriptedServer, respond: Callable[[Request], Answer]) -> ObjectStore:
    """Return a store of a server that answers by a function. Botocore sends each call once."""
    store = scripted.store(Answer(200), attempts=1, patience_seconds=60)
    scripted.respond = respond
    return store


def first_then_success(
    scripted: ScriptedServer, case: Case, rotate: Callable[[str], None]
) -> Callable[[Request], Answer]:
    """Return a server function that rotates the credentials and answers the first request with the case's answer."""

    def respond(request: Request) -> Answer:
        if len(scripted.seen) > 1:
            return Answer(200) if request.method == "HEAD" else EMPTY.get(case[0], Answer(200))
        rotate("NEW")
        return answer_of(case)

    return respond


@pytest.mark.parametrize("case", AGAIN, ids=name_of)
def test_a_call_with_a_transient_failure_is_sent_again(
    scripted: ScriptedServer, case: Case, credentials: Callable[[str], None]
) -> None:
    """A call with a transient failure is sent again unchanged and succeeds."""
    CALLS[case[0]](opened(scripted, first_then_success(scripted, case, credentials)))
    first, second = scripted.seen
    assert (first.method, first.path, first.body) == (second.method, second.path, second.body)


@pytest.mark.parametrize("case", FRESH, ids=name_of)
def test_a_refused_call_is_sent_again_with_reread_credentials(
    scripted: ScriptedServer, case: Case, credentials: Callable[[str], None]
) -> None:
    """A refused call is sent once more by a new client with credentials that are read again, and succeeds."""
    CALLS[case[0]](opened(scripted, first_then_success(scripted, case, credentials)))
    objects = [request for request in scripted.seen if request.path.rstrip("/") != "/riffle" or case[0] != "head"]
    assert [request.access_key for request in objects] == ["OLD", "NEW"]


def test_a_call_refused_again_with_new_credentials_is_an_error(
    scripted: ScriptedServer, credentials: Callable[[str], None]
) -> None:
    """A call that is refused again with new credentials raises RefusedError after two requests."""
    store = opened(scripted, lambda _: refusal(400, "ExpiredToken"))
    assert isinstance(error_of(lambda: store.put_if_absent("log/1", b"")), RefusedError)
    assert len(scripted.seen) == 2


@pytest.mark.parametrize(("case", "message_id"), FINAL, ids=name_of)
def test_a_permanent_failure_is_an_error_after_one_request(
    scripted: ScriptedServer, case: Case, message_id: str, credentials: Callable[[str], None]
) -> None:
    """A permanent failure raises the error of its rule after one request."""
    store = opened(scripted, lambda _: answer_of(case))
    error = error_of(lambda: CALLS[case[0]](store))
    assert (error.id, type(error)) == (message_id, rule_for(case).kind)
    is_redirected = case[2] == "AuthorizationHeaderMalformed"  # botocore requests the bucket's region
    assert len(scripted.seen) == 1 or is_redirected


class BulkDeleteServer:
    """A server with objects that answers bulk deletes with an error."""

    def __init__(self, answer: Answer, names: set[str], *, deletes_first: bool, missing: int = 204) -> None:
        self.answer = answer
        self.paths = {f"/riffle/root/{name}" for name in names}
        self.deletes_first = deletes_first
        self.missing = missing

    def __call__(self, request: Request) -> Answer:
        """Answer a request."""
        exists = request.path in self.paths
        if request.method == "HEAD":
            return Answer(200 if exists else 404)
        if request.method == "DELETE":
            self.paths.discard(request.path)
            return Answer(204 if exists else self.missing)
        named = {path for path in self.paths if f"<Key>{path.removeprefix('/riffle/')}</Key>" in request.body.decode()}
        is_whole = len(named) == request.body.count(b"<Key>")
        if self.deletes_first:
            self.paths -= named
        return EMPTY["delete"] if is_whole and self.deletes_first else self.answer


@pytest.mark.parametrize(
    ("case", "missing"), [*[(case, 204) for case in NO_BULK_DELETE], (NO_BULK_DELETE[0], 404)], ids=name_of
)
@pytest.mark.sample(step=3)
def test_a_server_without_bulk_deletes_gets_single_deletes(
    scripted: ScriptedServer, case: Case, missing: int, credentials: Callable[[str], None]
) -> None:
    """A server without bulk deletes gets one bulk delete and then single deletes, and missing objects are no error."""
    server = BulkDeleteServer(answer_of(case), {"a", "b", "c", "d"}, deletes_first=False, missing=missing)
    store = opened(scripted, server)
    store.delete(["a", "b", "not there"])
    store.delete(["c"])
    assert server.paths == {"/riffle/root/d"}
    assert [request.method for request in scripted.seen] == ["POST", "DELETE", "DELETE", "DELETE", "DELETE"]
    assert store.requests["delete"] == 5
    assert rule_for(case).action is Action.DELETE_SINGLY


@pytest.mark.parametrize("case", FAILED_DELETE, ids=name_of)
def test_a_failed_bulk_delete_of_deleted_objects_is_not_repeated(
    scripted: ScriptedServer, case: Case, credentials: Callable[[str], None]
) -> None:
    """A bulk delete that fails although it deleted all objects is followed only by one HEAD per object."""
    server = BulkDeleteServer(answer_of(case), {"a", "b"}, deletes_first=True)
    opened(scripted, server).delete(["a", "b", "not there"])
    assert server.paths == set()
    assert [request.method for request in scripted.seen] == ["POST", "HEAD", "HEAD", "HEAD"]
    assert rule_for(case).action is Action.FIND_REMAINING


def test_only_objects_left_by_a_failed_bulk_delete_are_deleted_again(
    scripted: ScriptedServer, credentials: Callable[[str], None]
) -> None:
    """After a bulk delete that deleted half of the objects, only the others are deleted again."""
    server = BulkDeleteServer(refusal(500, "InternalError"), {"a", "b"}, deletes_first=True)

    def respond(request: Request) -> Answer:
        if len(scripted.seen) == 1:
            server.paths.discard("/riffle/root/a")
            return refusal(500, "InternalError")
        return server(request)

    opened(scripted, respond).delete(["a", "b"])
    assert server.paths == set()
    assert [request.method for request in scripted.seen] == ["POST", "HEAD", "HEAD", "POST"]
    assert b"root/a" not in scripted.seen[-1].body


def test_objects_are_looked_up_after_each_partial_bulk_delete(
    scripted: ScriptedServer, credentials: Callable[[str], None]
) -> None:
    """Objects are looked up again after each bulk delete that deleted some of them and then failed."""
    server = BulkDeleteServer(refusal(500, "InternalError"), {"a", "b", "c"}, deletes_first=False)

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


def test_a_bulk_delete_that_deletes_nothing_looks_up_objects_once(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch, credentials: Callable[[str], None]
) -> None:
    """A bulk delete that deletes nothing is repeated until patience ends, and its objects are looked up once."""
    now = [0.0]
    replace_time(
        monkeypatch,
        *OBJECT_STORES,
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
        monotonic=lambda: now[0],
    )
    server = BulkDeleteServer(refusal(500, "InternalError"), {"a", "b"}, deletes_first=False)
    error = error_of(lambda: opened(scripted, server).delete(["a", "b"]))
    assert isinstance(error, UnavailableError)
    assert "delete_objects" in error.problem
    assert [request.method for request in scripted.seen].count("HEAD") == 2
    assert [request.method for request in scripted.seen].count("POST") > 2


def test_every_tested_answer_has_a_rule_and_every_rule_is_tested() -> None:
    """Every tested answer leads to its rule, and every rule is reached by a tested answer."""
    expected = {
        Action.DELETE_SINGLY: NO_BULK_DELETE,
        Action.FIND_REMAINING: FAILED_DELETE,
        Action.AGAIN: AGAIN,
        Action.FRESH_CREDENTIALS: FRESH,
        Action.ANSWER: [case for case, _ in ANSWERS],
    }
    for action, cases in expected.items():
        assert [case for case in cases if rule_for(case).action is not action] == []
    assert [(case, rule_for(case).id) for case, _ in FINAL] == FINAL
    cases = [
        *AGAIN,
        *FRESH,
        *NO_BULK_DELETE,
        *FAILED_DELETE,
        ("delete", 404, "NoSuchVersion", ""),
        *[case for case, _ in (*FINAL, *ANSWERS)],
    ]
    reached = {id(rule) for rule in (*map(rule_for, cases), rule_of("copy_object", 404, "NoSuchKey", ""))}
    assert [rule for rule in TABLE if id(rule) not in reached] == []


def test_a_copy_of_an_absent_object_returns_false(scripted: ScriptedServer, credentials: Callable[[str], None]) -> None:
    """A copy of an absent object returns False after one request."""
    store = opened(scripted, lambda _: refusal(404, "NoSuchKey"))
    assert isinstance(store, S3Store)
    assert store.copy_from(store, "key-groups/1") is False
    assert [request.method for request in scripted.seen] == ["PUT"]


def test_a_permanent_redirect_names_the_region(scripted: ScriptedServer, credentials: Callable[[str], None]) -> None:
    """A permanent redirect raises an error that names `s3_region`, also if the server does not report the region."""
    store = opened(scripted, lambda request: Answer(301) if request.path != "/riffle" else Answer(200))
    assert "s3_region" in error_of(lambda: store.list("")).remedy
    assert "s3_region" in error_of(lambda: store.exists("log/1")).remedy


@pytest.mark.parametrize(("case", "value"), ANSWERS, ids=name_of)
def test_an_absent_object_or_taken_name_is_an_answer(
    scripted: ScriptedServer, case: Case, value: object, credentials: Callable[[str], None]
) -> None:
    """An absent object or a taken name is an answer after one request."""
    assert CALLS[case[0]](opened(scripted, lambda _: answer_of(case))) is value
    assert len(scripted.seen) == 1


def test_a_range_beyond_the_end_of_an_object_is_empty(
    scripted: ScriptedServer, credentials: Callable[[str], None]
) -> None:
    """A range beyond the end of an object is empty."""
    assert opened(scripted, lambda _: refusal(416, "InvalidRange")).get("log/1", 5, 2) == b""


@pytest.mark.usefixtures("credentials")
class TestPuts:
    """A conditional put is repeated only if its outcome stays known."""

    def test_a_put_refused_for_credentials_that_finds_its_name_taken_is_false(self, scripted: ScriptedServer) -> None:
        """A put that was refused for expired credentials and then finds the name taken returns False."""
        store = scripted.store(refusal(400, "ExpiredToken"), refusal(412, "PreconditionFailed"), attempts=1)
        assert not store.put_if_absent("log/1", b"abc")

    def test_a_put_that_was_refused_twice_raises_refused_error(self, scripted: ScriptedServer) -> None:
        """A put that was refused twice raises RefusedError, because it is known that nothing was written."""
        store = scripted.store(refusal(400, "ExpiredToken"), refusal(403, "AccessDenied"), attempts=1)
        assert type(error_of(lambda: store.put_if_absent("log/1", b"abc"))) is RefusedError


def test_expired_web_identity_credentials_are_renewed(
    scripted: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: Callable[[str], None]
) -> None:
    """Expired web identity credentials are renewed with the rotated token file, as on EKS."""
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
