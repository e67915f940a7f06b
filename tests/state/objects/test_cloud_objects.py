"""Tags, folders, times and copies of objects in all cloud stores, tested with a scripted server."""

from __future__ import annotations

import json
import mmap
import ssl
from pathlib import Path

import pytest
import requests
from botocore import exceptions as boto_errors

from riffle_spark.errors import ConfigError, RefusedError
from riffle_spark.state.objects import s3_client
from riffle_spark.state.objects.http_store import HttpStore
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import S3Options, StoreOptions
from riffle_spark.state.objects.remote import Patience
from riffle_spark.state.objects.s3 import S3Store
from riffle_spark.state.objects.store import CopyingStore, DatedStore, ObjectStore, TaggedObject
from tests.kit.module_time import skip_pauses
from tests.kit.servers.s3_calls import error_of
from tests.kit.servers.scripted_server import Answer, ScriptedServer

ROOTS = {
    "gcs": ("gs://riffle/root", "google_credentials"),
    "azure": ("abfss://riffle@devstoreaccount1.dfs.core.windows.net/root", "azure_credentials"),
    "s3": ("s3://riffle/root", "aws_environment"),
}
TAGGED = Answer(200, b"abc", headers={"ETag": '"7"', "x-goog-generation": "7"})
XML = (
    "<ListBucketResult>{}</ListBucketResult>",
    "<EnumerationResults><Blobs>{}</Blobs><NextMarker/></EnumerationResults>",
)
FOLDERS = {
    "gcs": json.dumps({"prefixes": ["root/b/", "root/a/"]}),
    "azure": XML[1].format("".join(f"<BlobPrefix><Name>root/{name}/</Name></BlobPrefix>" for name in "ba")),
    "s3": XML[0].format("".join(f"<CommonPrefixes><Prefix>root/{name}/</Prefix></CommonPrefixes>" for name in "ba")),
}


@pytest.fixture(params=ROOTS)
def cloud(request: pytest.FixtureRequest) -> str:
    """Return the name of a cloud, and set credentials for it."""
    request.getfixturevalue(ROOTS[request.param][1])
    return str(request.param)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace ``time.sleep``, so that retries do not wait."""
    skip_pauses(monkeypatch)


def stores(scripted: ScriptedServer, cloud: str, *answers: Answer) -> tuple[ObjectStore, ObjectStore]:
    """Return two stores with different prefixes in a cloud, to which the server gives these answers."""
    root = ROOTS[cloud][0]
    return scripted.store(*answers, root=f"{root[:-4]}other"), scripted.store(*answers, root=root)


def test_an_object_is_read_with_its_tag_unless_it_is_unchanged(cloud: str, scripted: ScriptedServer) -> None:
    """An object is read with its tag. With this tag only a changed object is read, also if a server ignores it."""
    _, store = stores(scripted, cloud, TAGGED, Answer(304), TAGGED, Answer(404))
    first = store.get_if_changed("status.json")
    assert first is not None
    assert (first.data, bool(first.tag)) == (b"abc", True)
    assert store.get_if_changed("status.json", first.tag) == TaggedObject(None, first.tag)
    assert store.get_if_changed("status.json", first.tag) == TaggedObject(None, first.tag), "the server ignored it"
    assert store.get_if_changed("status.json", first.tag) is None
    sent = [f"{request.path} {request.headers.get('If-None-Match')}" for request in scripted.seen]
    assert [first.tag in text or "ifGenerationNotMatch=7" in text for text in sent] == [False, True, True, True]


def test_an_interrupted_tagged_object_is_read_again(cloud: str, scripted: ScriptedServer) -> None:
    """If the body of a tagged object is interrupted, the object is requested again."""
    broken = Answer(200, b"ab", broken=True, headers={**TAGGED.headers, "Connection": "close"})
    _, store = stores(scripted, cloud, broken, TAGGED)
    read = store.get_if_changed("status.json")
    assert read is not None
    assert (read.data, len(scripted.requests)) == (b"abc", 2)


def test_no_bytes_of_an_object_are_read_without_a_range_request(cloud: str, scripted: ScriptedServer) -> None:
    """A read of no bytes only looks whether the object exists, because HTTP has no empty range."""
    _, store = stores(scripted, cloud, Answer(200, b"{}"))
    pieces: list[bytes] = []
    assert (store.get("log/1", 3, 0), store.copy_to("log/1", 3, 0, pieces.append)) == (b"", 0)
    scripted.answers[:] = [Answer(404)]
    assert (store.get("log/1", 3, 0), store.copy_to("log/1", 3, 0, pieces.append)) == (None, None)
    assert pieces == []
    assert not any("Range" in request.headers for request in scripted.seen)


def test_folders_are_listed_by_their_names(cloud: str, scripted: ScriptedServer) -> None:
    """Folders directly below a root are listed by name, sorted."""
    _, store = stores(scripted, cloud, Answer(200, FOLDERS[cloud].encode()))
    assert list(store.list_folders("")) == ["a", "b"]


def test_the_time_of_an_object_is_that_of_the_server(cloud: str, scripted: ScriptedServer) -> None:
    """The time of an object is read in the form of each service. An absent object has none."""
    written = Answer(
        200,
        json.dumps({"name": "root/log/1", "updated": "2026-01-01T00:00:05Z"}).encode(),
        headers={"Last-Modified": "Thu, 01 Jan 2026 00:00:05 GMT"},
    )
    _, store = stores(scripted, cloud, written, Answer(404))
    assert isinstance(store, DatedStore)
    assert store.modified("log/1") == 1_767_225_605
    assert store.modified("log/1") is None


@pytest.mark.parametrize("cloud", ["gcs", "azure"], indirect=True)
def test_a_list_of_several_pages_ends_or_is_refused(cloud: str, scripted: ScriptedServer) -> None:
    """Pages of a list are read to the last one. A page that names itself as the next one is refused."""

    def page(name: str, token: str) -> Answer:
        items = {"items": [{"name": f"root/{name}"}], **({"nextPageToken": token} if token else {})}
        blob = f"<Blobs><Blob><Name>root/{name}</Name></Blob></Blobs><NextMarker>{token}</NextMarker>"
        text = json.dumps(items) if cloud == "gcs" else f"<EnumerationResults>{blob}</EnumerationResults>"
        return Answer(200, text.encode())

    _, store = stores(scripted, cloud, page("log/1", "t1"), page("log/2", "t2"), page("log/3", ""))
    assert store.list("log/") == ["log/1", "log/2", "log/3"]
    assert ["t1" in request.path for request in scripted.seen] == [False, True, False]
    scripted.requests.clear()
    scripted.answers[:] = [page("log/1", "t1")]
    assert error_of(lambda: store.list("log/")).id == "RIFFLE-1063"


COPIES = {
    "gcs": (
        Answer(200, b'{"done": false, "rewriteToken": "t1"}'),
        Answer(200, b'{"done": true}'),
        Answer(200, b'{"done": false}'),
    ),
    "azure": (
        Answer(202, headers={"x-ms-copy-status": "pending"}),
        Answer(200, headers={"x-ms-copy-status": "success"}),
        Answer(202, headers={"x-ms-copy-status": "failed"}),
    ),
}


@pytest.mark.parametrize("cloud", ["gcs", "azure"], indirect=True)
def test_a_copy_is_followed_until_the_service_has_made_it(cloud: str, scripted: ScriptedServer) -> None:
    """A copy that takes several requests is followed to its end. An absent object is not copied, and a copy that fails
    is an error.
    """
    more, done, failed = COPIES[cloud]
    source, target = stores(scripted, cloud, more, done)
    assert isinstance(target, CopyingStore)
    assert target.can_copy_from(source)
    assert target.copy_from(source, "log/1")
    assert len(scripted.requests) == 2
    assert cloud == "azure" or "rewriteToken=t1" in scripted.seen[1].path
    for answer, result in ((Answer(404), False), (done, True)):
        scripted.requests.clear()
        scripted.answers[:] = [answer]
        assert target.copy_from(source, "log/1") is result
        assert len(scripted.requests) == 1
    scripted.answers[:] = [failed]
    with pytest.raises(ConfigError, match="RIFFLE-1063"):
        target.copy_from(source, "log/1")


@pytest.mark.parametrize("cloud", ["gcs", "azure"], indirect=True)
def test_no_objects_are_deleted_without_a_request(cloud: str, scripted: ScriptedServer) -> None:
    """A delete of no objects sends no request."""
    _, store = stores(scripted, cloud, Answer(500))
    store.delete([])
    assert scripted.requests == []


@pytest.mark.parametrize("cloud", ["gcs", "azure"], indirect=True)
def test_an_untrusted_certificate_of_a_cloud_is_refused_with_the_variable_to_set(
    cloud: str, scripted: ScriptedServer
) -> None:
    """A certificate that is not trusted is not tried again, and the remedy names the variable for an authority. Another
    error of TLS is tried again.
    """
    _, store = stores(scripted, cloud, Answer(200))
    assert isinstance(store, HttpStore)
    patience = Patience(store.options)
    untrusted = requests.exceptions.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")
    refused = store._judge_exception("get_object", patience, untrusted).error
    assert isinstance(refused, RefusedError)
    assert "REQUESTS_CA_BUNDLE" in refused.remedy
    again = store._judge_exception("get_object", patience, requests.exceptions.SSLError("EOF")).error
    assert not isinstance(again, RefusedError)


@pytest.mark.usefixtures("aws_environment")
class TestS3:
    """Requests and answers that only S3 has."""

    def test_an_untrusted_certificate_is_refused_with_the_variable_to_set(self, scripted: ScriptedServer) -> None:
        """A certificate that is not trusted is refused, and the remedy names the variable for an authority."""
        store = scripted.store(Answer(200))
        assert isinstance(store, S3Store)
        untrusted = ssl.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")
        refused = store._judge_exception("get_object", boto_errors.SSLError(endpoint_url="https://x", error=untrusted))
        assert isinstance(refused, RefusedError)
        assert "AWS_CA_BUNDLE" in refused.remedy

    def test_an_invalid_bucket_is_refused_without_a_request(self, scripted: ScriptedServer) -> None:
        """A bucket whose name S3 cannot have is refused before a request, with the settings to check."""
        scripted.answers[:] = [Answer(200)]
        store = S3Store("a bucket!", "root", StoreOptions(s3=S3Options(endpoint=scripted.endpoint)))
        error = error_of(lambda: store.get("log/1"))
        assert (error.id, "Check `root`" in error.remedy) == ("RIFFLE-0445", True)
        assert scripted.requests == []

    def test_an_object_that_a_bulk_delete_finds_absent_is_deleted(self, scripted: ScriptedServer) -> None:
        """An object that is absent, according to the answer to a bulk delete, needs no further request."""
        gone = "<Error><Key>root/log/1</Key><Code>NoSuchKey</Code><Message>no</Message></Error>"
        store = scripted.store(Answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode()))
        store.delete(["log/1", "log/2"])
        assert len(scripted.requests) == 1

    def test_a_repeated_put_of_a_mapped_file_sends_all_its_bytes(
        self, scripted: ScriptedServer, tmp_path: Path
    ) -> None:
        """If the put of a mapped file is repeated, the second request has all bytes too."""
        (tmp_path / "large").write_bytes(b"abc")
        store = scripted.store(Answer(503), Answer(200))
        with (tmp_path / "large").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            assert store.put_if_absent("log/1", data)  # type: ignore[arg-type]  # stores take any buffer
        assert [request.body for request in scripted.seen] == [b"abc", b"abc"]

    def test_only_the_present_client_is_forgotten(self, scripted: ScriptedServer) -> None:
        """A client that another thread has replaced already is not forgotten again."""
        options = StoreOptions(s3=S3Options(endpoint=scripted.endpoint, region="eu-south-1"))
        old = s3_client.client_of(options)
        s3_client.forget_client(options, old)
        new = s3_client.client_of(options)
        assert new is not old
        s3_client.forget_client(options, old)
        assert s3_client.client_of(options) is new


def test_a_root_that_is_not_text_is_refused() -> None:
    """A root that is not a text is refused with the forms of a root."""
    with pytest.raises(ConfigError, match="RIFFLE-0441") as refused:
        open_store(7)  # type: ignore[arg-type]
    assert "s3://" in refused.value.remedy
