"""Fixtures for the tests of object stores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import boto3
import pytest
from botocore.loaders import JSONFileLoader

from tests.kit.servers.cloud_servers import AZURE_ACCOUNT, AZURE_KEY, AzureServer, GcsServer, TokenServer
from tests.kit.servers.object_server import BUCKET, ObjectServer, running_server
from tests.kit.servers.scripted_server import ScriptedServer, scripted_server


@pytest.fixture(scope="session", autouse=True)
def _botocore_reads_its_files_once() -> Iterator[None]:
    """Cache the service descriptions that botocore reads for each client. Reading them is most of a client's cost."""
    load_file = cache(JSONFileLoader().load_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: load_file(path))
        yield


@pytest.fixture(scope="session")
def aws_environment() -> Iterator[None]:
    """Credentials and settings for the loopback server. Those of the machine are not used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        patch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def object_server(aws_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """An S3 server with an empty bucket, for the whole session."""
    with running_server(tmp_path_factory.mktemp("s3") / "server.log") as endpoint:
        boto3.session.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(
            Bucket=BUCKET
        )
        yield ObjectServer(endpoint)


@pytest.fixture(scope="session")
def google_credentials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The credentials of a service account, for which a loopback server issues tokens."""
    pytest.importorskip("google.auth")
    tokens = TokenServer(tmp_path_factory.mktemp("google") / "credentials.json")
    tokens.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tokens.credentials))
        yield
    tokens.stop()


@pytest.fixture(scope="session")
def azure_credentials() -> Iterator[None]:
    """The public account and key of Azurite."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_STORAGE_ACCOUNT", AZURE_ACCOUNT)
        patch.setenv("AZURE_STORAGE_KEY", AZURE_KEY)
        for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def gcs_server(google_credentials: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """A Google Cloud Storage server with an empty bucket, and credentials for it."""
    with GcsServer(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(azure_credentials: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """An Azure Blob server with an empty container, and credentials for it."""
    with AzureServer(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture
def scripted(aws_environment: None) -> Iterator[ScriptedServer]:
    """An HTTP server that gives the answers that a test sets."""
    with scripted_server() as server:
        yield server
