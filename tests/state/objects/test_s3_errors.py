"""Error messages for an unusable S3 service, from a real server where possible."""

from __future__ import annotations

import socket
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import S3Options, StoreOptions
from tests.kit.servers.object_server import ObjectServer, running_server
from tests.kit.servers.s3_calls import CALLS, error_of
from tests.kit.servers.scripted_server import Answer, ScriptedServer, refusal

pytestmark = pytest.mark.usefixtures("aws_environment")


class TestNoAnswer:
    """Servers that do not answer or do not speak S3."""

    @pytest.mark.parametrize("call", CALLS)
    def test_the_error_for_a_closed_port_names_the_endpoint(self, call: str) -> None:
        """A closed port raises an error that names the endpoint after a limited number of attempts."""
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
            error = error_of(
                lambda: CALLS[call](
                    open_store(
                        "s3://riffle/a",
                        StoreOptions(s3=S3Options(endpoint=endpoint), max_attempts=1, patience_seconds=0),
                    )
                )
            )
        assert isinstance(error, UnavailableError)
        assert endpoint in error.where
        assert "1 attempt:" in error.problem

    def test_the_error_for_a_server_that_is_not_s3_names_s3_endpoint(self, scripted: ScriptedServer) -> None:
        """An answer that is not S3's raises an error that names the setting `s3_endpoint`."""
        error = error_of(lambda: scripted.store(Answer(405, b"<html>Not here</html>")).list(""))
        assert isinstance(error, ConfigError)
        assert "s3_endpoint" in error.remedy

    @pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"])
    def test_credentials_that_a_server_quotes_are_not_repeated(self, scripted: ScriptedServer, code: str) -> None:
        """Neither an error nor its traceback repeats credentials that a server quotes."""
        store = scripted.store(refusal(403, code, "AKIASECRET signed with hunter2"))
        error = error_of(lambda: store.list(""))
        shown = "".join(traceback.format_exception(error))
        assert isinstance(error, ConfigError)
        assert code in shown
        assert "AKIASECRET" not in shown
        assert "hunter2" not in shown


@pytest.mark.cluster
class TestRealRefusals:
    """Refusals of a real server."""

    @pytest.mark.parametrize("call", ["put", "list"])
    def test_the_error_for_a_missing_bucket_names_bucket_and_endpoint(
        self, object_server: ObjectServer, call: str
    ) -> None:
        """The error for a missing bucket names the bucket and the endpoint."""
        error = error_of(lambda: CALLS[call](open_store("s3://not-there/a", object_server.options)))
        assert isinstance(error, ConfigError)
        assert error.where == f"s3://not-there at {object_server.endpoint}"
        assert error.id == "RIFFLE-0488"

    @pytest.mark.parametrize("call", ["put", "head"])
    def test_wrong_credentials_are_refused_but_not_repeated(
        self, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        """The error for an unknown key id names the bucket and the endpoint, and its traceback shows neither key nor
        secret.
        """
        set_credentials(monkeypatch, "AKIAUNKNOWNUNKNOWN00", "hunter2")
        with object_server.checking_credentials():
            assert_credentials_error(object_server, call)

    def test_missing_credentials_are_an_error_without_a_request(
        self, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without credentials no request is sent, and the error names the sources that boto3 reads."""
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        store = open_store(object_server.new_root(), one_attempt(object_server, "none"))
        error = error_of(lambda: store.list(""))
        assert isinstance(error, ConfigError)
        assert "environment" in error.remedy
        assert object_server.endpoint in error.where
        assert not any(store.requests.values())

    def test_an_untrusted_certificate_is_refused(self, tmp_path: Path) -> None:
        """An untrusted certificate is refused, and the error names AWS_CA_BUNDLE."""
        with running_server(tmp_path / "server.log", "https") as endpoint:
            options = StoreOptions(
                s3=S3Options(endpoint=endpoint, region="us-east-1"), max_attempts=1, patience_seconds=0
            )
            error = error_of(lambda: open_store("s3://riffle/a", options).list(""))
        assert isinstance(error, ConfigError)
        assert "AWS_CA_BUNDLE" in error.remedy
        assert endpoint in error.where


def set_credentials(patch: pytest.MonkeyPatch, key_id: str, secret: str) -> None:
    """Set credentials in the environment, which boto3 reads first."""
    patch.setenv("AWS_ACCESS_KEY_ID", key_id)
    patch.setenv("AWS_SECRET_ACCESS_KEY", secret)


def one_attempt(server: ObjectServer, test: str) -> StoreOptions:
    """Return options that no other test shares, so that a new client reads the present credentials."""
    return replace(server.options, max_attempts=1, read_timeout_seconds=10 + len(test) / 100)


def assert_credentials_error(server: ObjectServer, call: str) -> None:
    """Check the error of a call that is refused for its credentials."""
    store = open_store(server.new_root(), one_attempt(server, call + "credentials"))
    error = error_of(lambda: CALLS[call](store))
    assert isinstance(error, ConfigError)
    assert error.where == f"s3://{server.bucket} at {server.endpoint}"
    assert "credentials" in error.remedy
    shown = "".join(traceback.format_exception(error))
    assert "hunter2" not in shown
    assert "AKIA" not in shown
