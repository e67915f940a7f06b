"""S3, Google Cloud Storage and Azure on real servers: concurrent writers, ignored conditions, TLS, proxies and long
lists.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import boto3
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from apps.demo.servers import DiskS3Server
from riffle_spark.errors import ConfigError, RefusedError
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import AzureOptions, GcsOptions, S3Options, StoreOptions
from riffle_spark.state.objects.store import ObjectStore
from tests.kit.servers.careless_proxy import careless_proxy, proxy
from tests.kit.servers.cloud_servers import AZURE_ACCOUNT, AZURE_KEY, AzureServer, CloudServer, GcsServer
from tests.kit.servers.object_server import ObjectServer, running_server
from tests.kit.servers.s3_calls import error_of
from tests.state.objects.test_overwriting_stores import claimed

pytestmark = pytest.mark.cluster
WRITERS = 2
NAMES = 60
SERVERS = {"gcs": GcsServer, "azure": AzureServer}


@pytest.fixture(params=["gcs", "azure"])
def cloud(request: pytest.FixtureRequest) -> CloudServer:
    """Return a running server, and set credentials for it."""
    server: CloudServer = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture(params=["file", "s3", "gcs", "azure"])
def raced(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Return a store on a new root. The S3 server creates files exclusively."""
    if request.param == "s3":
        with DiskS3Server(tmp_path) as server:
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
            yield open_store(f"s3://{server.bucket}/race", StoreOptions(s3=S3Options(endpoint=server.endpoint)))
    elif request.param == "file":
        yield open_store(f"file://{tmp_path}/race")
    else:
        cloud: CloudServer = request.getfixturevalue(f"{request.param}_server")
        yield open_store(cloud.new_root(), cloud.options)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_concurrent_writers_lose_no_update(raced: ObjectStore) -> None:
    """Two processes that put the same names and increment one object by compare-and-swap lose no update."""
    raced.put_if_absent("requests.json", b"0")
    children = [_fork_writer(raced) for _ in range(WRITERS)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * WRITERS
    assert raced.get("requests.json") == b"%d" % NAMES


def _fork_writer(store: ObjectStore) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for name in range(NAMES):
                is_counted = not store.put_if_absent(f"log/{name}", b"")
                while not is_counted:
                    read = store.get_if_changed("requests.json")
                    assert read is not None
                    assert read.data is not None
                    counted = store.replace_if_unchanged("requests.json", b"%d" % (int(read.data) + 1), read.tag)
                    is_counted = counted is not None
            code = 0
        finally:
            os._exit(code)
    return child


def test_a_server_that_ignores_the_condition_is_refused(cloud: CloudServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first claim on a server that ignores conditions is refused; without the proxy the same root works."""
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", account_signature())
    monkeypatch.delenv("AZURE_STORAGE_KEY", raising=False)
    root = cloud.new_root()
    with careless_proxy(cloud.address) as address:
        endpoint = cloud.endpoint.replace(cloud.address, address)
        careless = open_store(root, StoreOptions(gcs=GcsOptions(endpoint), azure=AzureOptions(endpoint)))
        with pytest.raises(ConfigError) as caught:
            claimed(careless, root)
    assert caught.value.id == "RIFFLE-0459"
    assert endpoint in caught.value.problem
    assert claimed(open_store(root, replace(cloud.options, max_attempts=3)), root).tail is not None


def account_signature() -> str:
    """Return a shared access signature for Azurite's account."""
    fields = {"sp": "rwdlac", "ss": "b", "srt": "sco", "st": "", "se": "2099-01-01T00:00:00Z", "sip": "", "spr": ""}
    text = "\n".join([AZURE_ACCOUNT, *fields.values(), "2021-12-02", "", ""])
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    shown = {**fields, "sv": "2021-12-02", "sig": base64.b64encode(digest).decode()}
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in shown.items() if value)


def write_certificates(folder: Path) -> Path:
    """Write ``ca.pem``, ``server.pem`` and ``server.key`` for 127.0.0.1, and return the folder."""
    authority = ec.generate_private_key(ec.SECP256R1())
    server = ec.generate_private_key(ec.SECP256R1())
    issuer = _name("riffle's own authority")
    root = _builder(issuer, issuer, authority.public_key()).add_extension(x509.BasicConstraints(True, None), True)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = _builder(issuer, _name("127.0.0.1"), server.public_key()).add_extension(address, False)
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(root.sign(authority, hashes.SHA256()).public_bytes(pem))
    (folder / "server.pem").write_bytes(leaf.sign(authority, hashes.SHA256()).public_bytes(pem))
    (folder / "server.key").write_bytes(
        server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=2))
    )


@pytest.mark.parametrize("name", ["gcs", "azure"])
def test_a_private_authority_is_trusted_if_requests_ca_bundle_names_it(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server certificate of a private authority is refused until REQUESTS_CA_BUNDLE names the authority."""
    request.getfixturevalue("google_credentials" if name == "gcs" else "azure_credentials")
    tls = write_certificates(tmp_path)
    with SERVERS[name](tmp_path, tls) as server:
        store = open_store(server.new_root(), server.options)
        refused = error_of(lambda: store.put_if_absent("log/1", b"abc"))
        assert isinstance(refused, RefusedError)
        assert "REQUESTS_CA_BUNDLE" in refused.remedy
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tls / "ca.pem"))
        assert store.put_if_absent("log/1", b"abc")
        assert store.get("log/1") == b"abc"


@pytest.mark.usefixtures("aws_environment")
def test_a_private_authority_is_trusted_if_aws_ca_bundle_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server certificate of a private authority is refused until AWS_CA_BUNDLE names the authority."""
    tls = write_certificates(tmp_path)
    with running_server(tmp_path / "server.log", "https", tls) as endpoint:
        options = StoreOptions(s3=S3Options(endpoint=endpoint, region="us-east-1"), max_attempts=1, patience_seconds=0)
        store = open_store("s3://riffle/root", options)
        assert error_of(lambda: store.list("")).id == "RIFFLE-0450"
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tls / "ca.pem"))
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="riffle")
        assert store.put_if_absent("log/1", b"abc")
        assert store.get("log/1") == b"abc"


def test_requests_to_s3_use_the_proxy_of_the_environment(
    object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests to S3 use the proxy of HTTP_PROXY, which is read when a client is made."""
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with forwarding(object_server.endpoint) as (address, seen):
        monkeypatch.setenv("HTTP_PROXY", address)
        store = open_store(object_server.new_root(), replace(object_server.options, max_attempts=5))
        assert store.put_if_absent("log/1", b"abc")
        assert store.list("") == ["log/1"]
    assert len(seen.paths) == 2


@dataclass
class ProxiedRequests:
    """The request paths that a proxy has received."""

    paths: list[str]


@contextmanager
def forwarding(endpoint: str) -> Iterator[tuple[str, ProxiedRequests]]:
    """Run a proxy that records the paths of requests."""
    seen = ProxiedRequests([])

    def note(_method: str, path: str, _body: bytes) -> bool:
        seen.paths.append(path)
        return True

    with proxy(endpoint, note) as address:
        yield address, seen


def test_requests_use_the_proxy_except_for_hosts_in_no_proxy(
    cloud: CloudServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests use the proxy of HTTP_PROXY, except for the hosts in NO_PROXY."""
    store = open_store(cloud.new_root(), cloud.options)
    assert store.list("") == []  # Google's token is fetched here, because the proxy forwards to the store only
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with forwarding(cloud.address) as (address, seen):
        monkeypatch.setenv("HTTP_PROXY", address)
        assert store.put_if_absent("log/1", b"abc")
        assert store.list("") == ["log/1"]
        through = len(seen.paths)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert store.get("log/1") == b"abc"
    assert through >= 2
    assert all(path.startswith(cloud.address) for path in seen.paths)
    assert len(seen.paths) == through


def test_a_long_list_sends_one_request_per_page(cloud: CloudServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of several pages sends one request per page and returns each name once."""
    for module in ("gcs", "azure"):
        monkeypatch.setattr(f"riffle_spark.state.objects.{module}._PAGE_NAMES", 10)
    store = open_store(cloud.new_root(), cloud.options)
    names = sorted(f"delta/{number}" for number in range(25))
    for name in names:
        store.put_if_absent(name, b"")
    assert store.list("delta/") == names
    assert store.requests["list"] == 3
    store.delete(names)
    assert store.list("") == []


def test_puts_and_lists_report_a_missing_bucket(cloud: CloudServer) -> None:
    """Puts and lists report a missing bucket."""
    root = re.sub(r"//riffle\b", "//not-there", cloud.new_root())
    store = open_store(root, cloud.options)
    for call in (lambda: store.put_if_absent("log/1", b"abc"), lambda: store.list("")):
        assert error_of(call).id in {"RIFFLE-1070", "RIFFLE-1085"}


def test_a_wrong_key_is_refused_and_not_repeated(azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong account key is refused, and the error does not repeat the key. Azurite checks signatures."""
    wrong = base64.b64encode(b"SECRETPLANTED").decode()
    monkeypatch.setenv("AZURE_STORAGE_KEY", wrong)
    store = open_store(azure_server.new_root(), replace(azure_server.options, max_attempts=1))
    error = error_of(lambda: store.list(""))
    assert isinstance(error, RefusedError)
    assert wrong not in str(error)
