"""The requests of all cloud stores and their reactions to answers, tested with a scripted server."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError, RefusedError, UnavailableError
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import AzureOptions, GcsOptions, S3Options, StoreOptions
from riffle_spark.state.objects.store import PIECE_BYTES, ObjectStore
from tests.kit.module_time import skip_pauses
from tests.kit.servers.s3_calls import CALLS, error_of
from tests.kit.servers.scripted_server import Answer, Request, ScriptedServer, put_beside_fork, refusal

PLANTED = "SECRETPLANTED0123456789"


def gcs_refusal(status: int, reason: str, message: str = "no") -> Answer:
    """Return an error answer of Google Cloud Storage."""
    error = {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}
    return Answer(status, json.dumps({"error": error}).encode(), headers={"Content-Type": "application/json"})


def azure_refusal(status: int, code: str, message: str = "no") -> Answer:
    """Return an error answer of Azure Blob Storage."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Answer(status, body, headers={"x-ms-error-code": code})


def header(request: Request, name: str) -> str | None:
    """Return the value of a header, whatever its case."""
    return {key.lower(): value for key, value in request.headers.items()}.get(name)


@dataclass(frozen=True)
class Cloud:
    """The root of a cloud, its typical answers, and a check for its conditional put."""

    root: str
    refusal: Callable[..., Answer]
    taken: Answer
    no_bucket: Answer
    empty_page: bytes
    condition: Callable[[Request], bool]


GCS = Cloud(
    "gs://riffle/root",
    gcs_refusal,
    gcs_refusal(412, "conditionNotMet"),
    gcs_refusal(404, "notFound", "The specified bucket does not exist."),
    b"{}",
    lambda request: "ifGenerationMatch=0" in request.path,
)
AZURE = Cloud(
    "abfss://riffle@devstoreaccount1.dfs.core.windows.net/root",
    azure_refusal,
    azure_refusal(409, "BlobAlreadyExists"),
    azure_refusal(404, "ContainerNotFound"),
    b"<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>",
    lambda request: request.headers.get("If-None-Match") == "*",
)
S3 = Cloud(
    "s3://riffle/root",
    refusal,
    refusal(412, "PreconditionFailed"),
    refusal(404, "NoSuchBucket"),
    b"<ListBucketResult></ListBucketResult>",
    lambda request: request.headers.get("If-None-Match") == "*",
)
CLOUDS = {"gcs": (GCS, "google_credentials"), "azure": (AZURE, "azure_credentials"), "s3": (S3, "aws_environment")}


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest) -> Cloud:
    """Return a cloud, and set credentials for it."""
    cloud, credentials = CLOUDS[request.param]
    request.getfixturevalue(credentials)
    return cloud


@pytest.fixture(params=["gcs", "azure"])
def http_cloud(request: pytest.FixtureRequest) -> Cloud:
    """Return a cloud whose client is part of riffle_spark, and set credentials for it. The client of S3 is boto3."""
    cloud, credentials = CLOUDS[request.param]
    request.getfixturevalue(credentials)
    return cloud


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace ``time.sleep``, so that retries do not wait."""
    skip_pauses(monkeypatch)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_opens_its_own_connection(cloud: Cloud, scripted: ScriptedServer) -> None:
    """A forked process opens its own connection and leaves the parent's connection alone."""
    put_beside_fork(scripted.store(Answer(200), root=cloud.root))
    first, second, of_child, last = scripted.ports
    assert first == second == last
    assert of_child != first


def test_a_server_that_does_not_answer_raises_unavailable_error(cloud: Cloud, scripted: ScriptedServer) -> None:
    """A server that does not answer in time raises UnavailableError."""
    store = scripted.store(Answer(200, silent_seconds=1), root=cloud.root, attempts=1)
    assert isinstance(error_of(lambda: store.get("log/1")), UnavailableError)


@pytest.mark.usefixtures("no_pauses")
class TestPuts:
    """Conditional puts and their outcomes."""

    def test_every_put_is_conditional_and_carries_the_bytes(self, cloud: Cloud, scripted: ScriptedServer) -> None:
        """Every put request, also a repeated one, has the condition and the bytes."""
        store = scripted.store(Answer(503), Answer(200), root=cloud.root)
        assert store.put_if_absent("log/1", b"abc")
        assert [cloud.condition(request) for request in scripted.seen] == [True, True]
        assert [request.body for request in scripted.seen] == [b"abc", b"abc"]
        assert store.requests["put"] == 2

    def test_a_put_of_an_existing_name_returns_false(self, cloud: Cloud, scripted: ScriptedServer) -> None:
        """A put returns False if the name exists, and sends one request."""
        assert not scripted.store(cloud.taken, root=cloud.root).put_if_absent("log/1", b"abc")
        assert len(scripted.requests) == 1

    def test_a_repeated_put_that_finds_the_name_taken_returns_false(
        self, cloud: Cloud, scripted: ScriptedServer
    ) -> None:
        """A put returns False if its first answer was lost and its second request finds the name taken."""
        store = scripted.store(Answer(500), cloud.taken, Answer(200, b"abc"), root=cloud.root)
        assert not store.put_if_absent("log/1", b"abc")
        assert store.get("log/1") == b"abc"

    def test_a_put_refused_after_a_lost_answer_raises_unavailable_error(
        self, cloud: Cloud, scripted: ScriptedServer
    ) -> None:
        """A put whose first answer was lost and whose second was a refusal raises UnavailableError, because the object
        may exist.
        """
        store = scripted.store(Answer(500), cloud.refusal(403, "forbidden"), root=cloud.root)
        error = error_of(lambda: store.put_if_absent("log/1", b"abc"))
        assert isinstance(error, UnavailableError)
        assert error.id == "RIFFLE-0443"

    def test_a_put_refused_at_once_raises_refused_error(self, cloud: Cloud, scripted: ScriptedServer) -> None:
        """A put that is refused at once raises RefusedError, after one more request with credentials that are read
        again.
        """
        store = scripted.store(cloud.refusal(403, "forbidden"), root=cloud.root)
        assert isinstance(error_of(lambda: store.put_if_absent("log/1", b"abc")), RefusedError)
        assert len(scripted.requests) == 2, "a refused request is sent once more with credentials that are read again"

    def test_a_put_succeeds_although_the_body_of_its_answer_is_cut_off(
        self, http_cloud: Cloud, scripted: ScriptedServer
    ) -> None:
        """A put with a success status succeeds, although the body of the answer is cut off."""
        assert scripted.store(Answer(200, b"{", broken=True), root=http_cloud.root).put_if_absent("log/1", b"abc")

    @pytest.mark.parametrize("status", [405, 501, 505])
    def test_a_server_without_conditional_puts_is_refused(
        self, cloud: Cloud, scripted: ScriptedServer, status: int
    ) -> None:
        """A server that does not support conditional puts is refused after one request."""
        store = scripted.store(Answer(status), root=cloud.root, patience_seconds=60)
        assert error_of(lambda: store.put_if_absent("log/1", b"abc")).id in {
            "RIFFLE-1071",
            "RIFFLE-1086",
            "RIFFLE-0493",
        }
        assert len(scripted.requests) == 1


@pytest.mark.usefixtures("no_pauses")
class TestReads:
    """Ranges and interrupted bodies."""

    def test_an_interrupted_body_is_requested_again(self, cloud: Cloud, scripted: ScriptedServer) -> None:
        """After an interrupted body a get starts again, and a copy continues after the last complete piece."""
        store = scripted.store(Answer(200, b"ab", broken=True), Answer(200, b"abc"), root=cloud.root)
        assert store.get("log/1") == b"abc"
        scripted.requests.clear()
        first = b"a" * PIECE_BYTES
        scripted.answers[:] = [Answer(206, first + b"b", broken=True), Answer(206, b"bcd")]
        pieces: list[bytes] = []
        assert store.copy_to("log/1", 10, PIECE_BYTES + 3, pieces.append) == PIECE_BYTES + 3
        assert b"".join(pieces) == first + b"bcd"
        ranges = [headers["Range"] for _, _, headers in scripted.requests]
        assert ranges == [f"bytes=10-{PIECE_BYTES + 12}", f"bytes={PIECE_BYTES + 10}-{PIECE_BYTES + 12}"]

    def test_a_copy_holds_one_piece_in_memory(self, cloud: Cloud, scripted: ScriptedServer) -> None:
        """A copy of a large object holds at most one piece in memory."""
        data = bytes(3 * PIECE_BYTES + 5)
        store = scripted.store(Answer(206, data), root=cloud.root)
        pieces: list[bytes] = []
        assert store.copy_to("log/1", 0, len(data), pieces.append) == len(data)
        assert max(map(len, pieces)) <= PIECE_BYTES

    @pytest.mark.parametrize("start", [0, 2])
    def test_a_server_that_ignores_ranges_is_refused(self, cloud: Cloud, scripted: ScriptedServer, start: int) -> None:
        """A server that returns the whole object for a range is refused."""
        store = scripted.store(Answer(200, b"abcdef"), root=cloud.root)
        for call in (lambda: store.get("log/1", start, 3), lambda: store.copy_to("log/1", start, 3, bytes)):
            assert error_of(call).id in {"RIFFLE-1060", "RIFFLE-0850"}

    def test_a_range_beyond_the_end_is_empty(self, cloud: Cloud, scripted: ScriptedServer) -> None:
        """A range beyond the end of an object is empty; status 416 is no error."""
        assert scripted.store(Answer(416), root=cloud.root).get("log/1", 9) == b""

    @pytest.mark.parametrize(
        "body", [b"", b"<html/>", b"[]", b'{"items": [{"name": 3}]}', b'{"items": [{"name": "elsewhere"}]}']
    )
    def test_a_list_answer_without_a_valid_list_is_refused(
        self, http_cloud: Cloud, scripted: ScriptedServer, body: bytes
    ) -> None:
        """A list answer without a valid list raises an error, because a proxy or another service has answered."""
        store = scripted.store(Answer(200, body), root=http_cloud.root)
        assert error_of(lambda: store.list("log/")).id == "RIFFLE-1063"

    def test_a_list_whose_page_is_cut_off_is_requested_again(self, cloud: Cloud, scripted: ScriptedServer) -> None:
        """A list whose page is cut off is requested again."""
        broken = Answer(200, cloud.empty_page, broken=True)
        assert scripted.store(broken, Answer(200, cloud.empty_page), root=cloud.root).list("log/") == []
        assert len(scripted.requests) == 2


@pytest.mark.usefixtures("no_pauses")
class TestErrors:
    """Retries and the texts of errors."""

    @pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
    def test_a_request_with_a_transient_failure_is_repeated(
        self, cloud: Cloud, scripted: ScriptedServer, status: int
    ) -> None:
        """A request with a transient failure is repeated once and succeeds."""
        assert scripted.store(Answer(status), Answer(200, b"abc"), root=cloud.root).get("log/1") == b"abc"

    @pytest.mark.parametrize("trouble", [Answer(503), Answer(200, b"ab", broken=True, headers={"Connection": "close"})])
    def test_an_outage_shorter_than_s3_patience_raises_no_error(
        self, cloud: Cloud, scripted: ScriptedServer, trouble: Answer
    ) -> None:
        """An outage that is longer than the attempts but shorter than `s3_patience` raises no error."""
        store = scripted.store(*[trouble] * 7, Answer(200, b"abc"), root=cloud.root, patience_seconds=60)
        assert store.get("log/1") == b"abc"
        assert store.requests["get"] == len(scripted.requests) == 8

    @pytest.mark.parametrize("call", CALLS)
    def test_a_lasting_failure_names_the_endpoint_and_the_attempts(
        self, cloud: Cloud, scripted: ScriptedServer, call: str
    ) -> None:
        """A lasting failure raises an error with the endpoint and the attempts, and all requests are counted."""
        store = scripted.store(Answer(500), root=cloud.root)
        error = error_of(lambda: CALLS[call](store))
        assert isinstance(error, UnavailableError)
        assert scripted.endpoint in error.where
        assert scripted.endpoint in error.remedy
        assert call in error.problem
        assert "2 attempts" in error.problem
        assert store.requests[call] == 2
        assert len(scripted.requests) == sum(store.requests.values())

    @pytest.mark.parametrize("call", ["put", "get", "list"])
    def test_a_missing_bucket_raises_an_error_of_its_own(
        self, cloud: Cloud, scripted: ScriptedServer, call: str
    ) -> None:
        """A missing bucket raises an error of its own instead of counting as an absent object."""
        store = scripted.store(cloud.no_bucket, root=cloud.root)
        assert error_of(lambda: CALLS[call](store)).id in {"RIFFLE-1070", "RIFFLE-1085", "RIFFLE-0488"}

    def test_calls_on_an_absent_object_raise_no_error(self, http_cloud: Cloud, scripted: ScriptedServer) -> None:
        """Reads, existence checks and deletes of an absent object raise no error."""
        store = scripted.store(Answer(404), root=http_cloud.root)
        assert store.get("log/1") is None
        assert not store.exists("log/1")
        store.delete(["log/1", "log/2"])

    def test_one_refused_delete_among_many_raises_refused_error(
        self, http_cloud: Cloud, scripted: ScriptedServer
    ) -> None:
        """One refused delete among many raises RefusedError."""
        denied = http_cloud.refusal(403, "forbidden")
        scripted.respond = lambda request: denied if request.path.split("?")[0].endswith("7") else Answer(204)
        store = scripted.store(root=http_cloud.root)
        with pytest.raises(RefusedError):
            store.delete([f"log/{number}" for number in range(20)])

    @pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "nonsense", "http://", f"http://me:{PLANTED}@127.0.0.1:1"])
    def test_an_endpoint_that_is_not_a_url_is_refused(self, cloud: Cloud, endpoint: str) -> None:
        """An endpoint that is not a URL is refused before a request, and the error does not contain its password."""
        options = StoreOptions(
            s3=S3Options(endpoint=endpoint),
            gcs=GcsOptions(endpoint=endpoint),
            azure=AzureOptions(endpoint=endpoint),
            max_attempts=1,
            patience_seconds=0,
        )
        error = error_of(lambda: open_store(cloud.root, options).list(""))
        assert isinstance(error, ConfigError)
        assert "_endpoint" in f"{error.where} {error.remedy}"
        assert PLANTED not in "".join(traceback.format_exception(error))

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_refused_request_reads_the_credentials_again_once(
        self, cloud: Cloud, scripted: ScriptedServer, status: int
    ) -> None:
        """A refused request reads the credentials again once, so that rotated credentials cause no error."""
        refused = cloud.refusal(status, "AuthenticationFailed")
        assert scripted.store(refused, Answer(200, b"abc"), root=cloud.root).get("log/1") == b"abc"

    def test_credentials_that_a_server_quotes_are_not_repeated(
        self, http_cloud: Cloud, scripted: ScriptedServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Neither the error nor the log repeats credentials that a server quotes."""
        store = scripted.store(http_cloud.refusal(401, "AuthenticationFailed", PLANTED), root=http_cloud.root)
        with caplog.at_level(logging.DEBUG, "riffle_spark"):
            error = error_of(lambda: store.get("log/1"))
        assert PLANTED not in "".join(traceback.format_exception(error)) + caplog.text


class TestAzureCredentials:
    """The sources of Azure credentials, which no error repeats."""

    @pytest.fixture(autouse=True)
    def without(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Remove the Azure credentials of the other tests, and the clients that use them."""
        request.getfixturevalue("azure_credentials")
        for name in ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setattr("riffle_spark.state.objects.http_store._CLIENTS", {})

    def test_the_sas_token_is_in_each_url_and_in_no_error(
        self, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The SAS token is in each URL, and in no error of an answer or of a lost connection."""
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"?sv=2022&sig={PLANTED}")
        store = scripted.store(azure_refusal(403, "AuthorizationFailure"), root=AZURE.root, attempts=1)
        refused = error_of(lambda: store.list("log/"))
        assert all(f"&sig={PLANTED}" in request.path for request in scripted.seen)
        away = StoreOptions(azure=AzureOptions(endpoint="http://127.0.0.1:9"), max_attempts=1, patience_seconds=0)
        lost = error_of(lambda: open_store(AZURE.root, away).get("log/1"))
        assert isinstance(lost, UnavailableError)
        assert PLANTED not in "".join([*traceback.format_exception(refused), *traceback.format_exception(lost)])

    def test_a_connection_string_gives_account_key_and_endpoint(
        self, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A connection string gives account, key and endpoint for a root without a host."""
        text = f"AccountName=acc;AccountKey={base64.b64encode(b'key').decode()};BlobEndpoint={scripted.endpoint}/acc"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
        scripted.answers[:] = [Answer(200, b"abc")]
        assert open_store("az://riffle/root", StoreOptions()).get("log/1") == b"abc"
        assert scripted.seen[0].path == "/acc/riffle/root/log/1"
        assert scripted.seen[0].headers["Authorization"].startswith("SharedKey acc:")

    @pytest.mark.parametrize(
        ("text", "id"),
        [
            ("", "RIFFLE-1095"),
            (f"AccountKey={PLANTED}", "RIFFLE-1096"),
            (f"AccountName=other;AccountKey={PLANTED}", "RIFFLE-1095"),
            (f"AccountName=devstoreaccount1;AccountKey=not base64 {PLANTED}", "RIFFLE-1097"),
        ],
    )
    def test_an_unknown_account_or_invalid_credential_is_refused(
        self, text: str, id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A missing or different account, an invalid connection string and an invalid key raise an error without the
        key.
        """
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
        error = error_of(lambda: open_store(AZURE.root if text else "az://riffle/root").list(""))
        assert error.id == id
        assert PLANTED not in "".join(traceback.format_exception(error))

    def test_a_put_sends_the_md5_checksum_of_its_bytes(
        self, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A put sends the MD5 checksum of its bytes, which Azure verifies."""
        monkeypatch.setenv("AZURE_STORAGE_KEY", base64.b64encode(b"key").decode())
        assert scripted.store(Answer(201), root=AZURE.root).put_if_absent("log/1", b"abc")
        digest = hashlib.md5(b"abc", usedforsecurity=False).digest()
        assert scripted.seen[0].headers["Content-MD5"] == base64.b64encode(digest).decode()

    @pytest.mark.parametrize("root", ["a\\b", "a./b", "a/b."])
    def test_a_root_prefix_that_azure_would_change_is_refused(self, root: str) -> None:
        """A root prefix that Azure would change is refused, because the objects would get other names."""
        assert error_of(lambda: open_store(f"az://riffle/{root}")).id == "RIFFLE-1091"

    def test_an_object_name_that_azure_would_change_is_refused(self) -> None:
        """An object name that Azure would change is refused, such as one with a store name that ends with a dot."""
        store: ObjectStore = open_store("az://riffle/root")
        assert error_of(lambda: store.exists("totals./key_group=0001/snapshot/1")).id == "RIFFLE-1092"

    def test_a_list_leaves_out_directories_of_a_hierarchical_namespace(
        self, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A list leaves out the directories of a hierarchical namespace."""
        monkeypatch.setenv("AZURE_STORAGE_KEY", base64.b64encode(b"key").decode())
        page = (
            b"<EnumerationResults><Blobs><Blob><Name>root/log</Name><Properties><ResourceType>directory</ResourceType>"
            b"</Properties></Blob><Blob><Name>root/log/1</Name><Properties><ResourceType>file</ResourceType>"
            b"</Properties></Blob></Blobs></EnumerationResults>"
        )
        assert scripted.store(Answer(200, page), root=AZURE.root).list("") == ["log/1"]


class TestEntraId:
    """Tokens of a managed identity, from a local endpoint like that of Azure App Service."""

    @pytest.fixture(autouse=True)
    def identity(self, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """Set the identity endpoint, and remove all other credentials."""
        for name in ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{scripted.endpoint}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "header")
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
        monkeypatch.setattr("riffle_spark.state.objects.http_store._CLIENTS", {})

    def test_a_token_is_fetched_once_and_used_until_it_expires(self, scripted: ScriptedServer) -> None:
        """A token is fetched once and used for each request until shortly before it expires."""
        pytest.importorskip("azure.identity")
        token = json.dumps({"access_token": "issued", "expires_on": str(int(time.time()) + 3600), "resource": "r"})
        as_json = {"Content-Type": "application/json"}
        scripted.respond = lambda request: (
            Answer(200, token.encode(), headers=as_json) if request.path.startswith("/msi") else Answer(200, b"abc")
        )
        store = scripted.store(root=AZURE.root)
        assert [store.get("log/1"), store.get("log/2")] == [b"abc", b"abc"]
        shown = [header(request, "authorization") for request in scripted.seen]
        assert shown == [None, "Bearer issued", "Bearer issued"]

    def test_the_error_for_a_refused_identity_names_credential_sources(self, scripted: ScriptedServer) -> None:
        """A refused identity raises an error with the sources of credentials and without the endpoint's answer."""
        pytest.importorskip("azure.identity")
        refused = json.dumps({"error": "invalid_request", "error_description": PLANTED}).encode()
        store = scripted.store(Answer(400, refused, headers={"Content-Type": "application/json"}), root=AZURE.root)
        error = error_of(lambda: store.get("log/1"))
        assert isinstance(error, RefusedError)
        assert error.id == "RIFFLE-1099"
        assert "AZURE_STORAGE_KEY" in error.remedy
        assert PLANTED not in "".join(traceback.format_exception(error))
        assert store.requests["get"] == 0

    def test_the_error_for_missing_azure_identity_has_the_pip_command(
        self, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A missing azure-identity package is named with the pip command, and an account key works without it."""
        monkeypatch.setitem(sys.modules, "azure.identity", None)
        store = scripted.store(Answer(200, b"abc"), root=AZURE.root)
        error = error_of(lambda: store.get("log/1"))
        assert error.id == "RIFFLE-0162"
        assert "pip install 'azure-identity" in error.remedy
        monkeypatch.setenv("AZURE_STORAGE_KEY", base64.b64encode(b"key").decode())
        assert store.get("log/1") == b"abc"


class TestGoogleCredentials:
    """Google's application default credentials."""

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        """Skip the tests if google-auth is not installed."""
        pytest.importorskip("google.auth")

    @pytest.mark.usefixtures("google_credentials")
    def test_a_google_token_is_fetched_once_for_all_requests(self, scripted: ScriptedServer) -> None:
        """A token is fetched once and used for all requests."""
        store = scripted.store(Answer(200, b"abc"), root=GCS.root)
        store.get("log/1")
        store.get("log/2")
        assert [header(request, "authorization") for request in scripted.seen] == ["Bearer issued"] * 2

    @pytest.mark.parametrize("text", ["", "{}", f'{{"type": "service_account", "client_email": "{PLANTED}"}}'])
    def test_a_file_without_credentials_is_refused(
        self, scripted: ScriptedServer, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A file without credentials is refused before a request, and the error names the sources of credentials."""
        path = tmp_path / "wrong.json"
        path.write_text(text)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        store = scripted.store(Answer(200, b"abc"), root=GCS.root)
        error = error_of(lambda: store.get("log/1"))
        assert isinstance(error, RefusedError)
        assert error.id == "RIFFLE-1078"
        assert "GOOGLE_APPLICATION_CREDENTIALS" in error.remedy
        assert PLANTED not in "".join(traceback.format_exception(error))
        assert not scripted.requests
