"""Server-side encryption of puts, and secrets that errors, logs and reports never show."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError, RiffleError
from riffle_spark.settings import Settings
from riffle_spark.state.log.paths import check_store_name
from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.state.objects.open import masked, open_store
from riffle_spark.state.objects.options import AzureOptions, GcsOptions, S3Options, StoreOptions
from riffle_spark.worker.member_folders import options_of
from tests.kit.servers.scripted_server import Answer, ScriptedServer
from tests.kit.simulated.world import World, rows_of, two_stores

PLANTED = "AKIAPLANTEDPLANTED00"
ARN = "arn:aws:kms:eu-central-1:1:key/k"


@pytest.mark.parametrize(("key", "named"), [(ARN, ARN), ("aws/s3", None)])
def test_puts_request_server_encryption_with_s3_kms_key(scripted: ScriptedServer, key: str, named: str | None) -> None:
    """With `s3_kms_key` a put requests SSE-KMS with this key, or without a key for the account's default key, and keeps
    its condition. Other requests do not mention encryption.
    """
    options = options_of(Settings(s3_endpoint=scripted.endpoint, s3_kms_key=key))
    scripted.answers[:] = [Answer(200)]
    store = open_store("s3://riffle/root", replace(options, max_attempts=1))
    assert store.put_if_absent("log/1", b"abc")
    assert store.get("log/1") == b""
    put, got = (headers for _, _, headers in scripted.requests)
    assert (put["If-None-Match"], put["x-amz-server-side-encryption"]) == ("*", "aws:kms")
    assert put.get("x-amz-server-side-encryption-aws-kms-key-id") == named
    assert not any("encryption" in name.lower() for name in got)


WRONG: dict[str, Callable[[Path], object]] = {
    "user and password in a root": lambda _: open_store(f"s3://user:{PLANTED}@bucket/a"),
    "a secret with a slash in a root": lambda _: open_store(f"s3://user:a/{PLANTED}@bucket/a"),
    "a secret, and no bucket": lambda _: open_store(f"s3://user:{PLANTED}/a"),
    "a query in a root": lambda _: open_store(f"s3://bucket/a?secret_key={PLANTED}"),
    "a slash too many in a root": lambda _: open_store(f"s3:///AKIA:{PLANTED}@bucket/a"),
    "a slash missing in a root": lambda _: open_store(f"s3:/AKIA:1/{PLANTED}@bucket/a"),
    "user and password in a file root": lambda _: open_store(f"file://user:{PLANTED}@host/a"),
    "a query in an endpoint": lambda _: open_store(
        "s3://bucket/a", StoreOptions(s3=S3Options(endpoint=f"http://127.0.0.1:1/?token={PLANTED}"), max_attempts=1)
    ).list(""),
    "user and password in an endpoint": lambda _: open_store(
        "s3://bucket/a", StoreOptions(s3=S3Options(endpoint=f"http://user:{PLANTED}@127.0.0.1:1"))
    ).list(""),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_secret_in_a_url_is_not_repeated(what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A secret in a URL appears neither in the error, nor in its traceback, nor in the log."""
    with caplog.at_level(logging.DEBUG), pytest.raises(RiffleError) as caught:
        WRONG[what](tmp_path)
    causes = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert PLANTED not in "".join(str(each) for each in causes)
    assert PLANTED not in "".join(traceback.format_exception_only(caught.value))
    assert PLANTED not in caplog.text


@pytest.mark.usefixtures("aws_environment")
@pytest.mark.parametrize("endpoint", [f"http://user:{PLANTED}@127.0.0.1:1", f"user:{PLANTED}@127.0.0.1"])
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_a_secret_in_aws_endpoint_variables_is_not_repeated(
    endpoint: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A secret in AWS's endpoint variables appears neither in the error nor in the log."""
    monkeypatch.setenv(name, endpoint)
    monkeypatch.setitem(WRONG, name, lambda _: open_store("s3://bucket/a", StoreOptions(max_attempts=1)).list(""))
    test_a_secret_in_a_url_is_not_repeated(name, tmp_path, caplog)


def test_keys_and_values_of_users_appear_in_no_log_or_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Keys and values of users appear in no report, record text or log of any level, also after a failure."""
    with caplog.at_level(logging.DEBUG):
        world = World(tmp_path, operators=two_stores(), snapshot_chain_links=2)
        reports = [world.batch(v, rows_of((PLANTED, 424_242_424_242, v))) for v in range(6)]
        world.cluster.lose("1", disk=True)
        world.start()
        reports.append(world.batch(6, rows_of((PLANTED, 424_242_424_242, 6))))
    shown = "".join([caplog.text, *map(repr, reports)])
    assert PLANTED not in shown
    assert "424242424242" not in shown
    tail = world.log().tail
    assert tail is not None
    assert PLANTED not in repr(tail)


NAMES = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(["..", ".", "", "a", "/", "\0", "é", "x" * 300, "~", "-rf", "\n", "\u202e", "log"]), max_size=6
    ).map("/".join),
)


SECRETS = st.text(st.characters(exclude_characters="@?#/", exclude_categories=["Cs"]), min_size=1).map(
    lambda text: f"{PLANTED}{text}"
)


@given(
    st.sampled_from(["s3", "s3a", "hdfs", "viewfs", "abfs", "file", "memory", "http", "x"]), SECRETS,
    st.sampled_from(["{}@host/p", "u:{}@host/p", "u:a/{}@host/p", "u:{}/a/b@host/p", "u:{}@host", "u:p@{}@host/p"]),
)  # fmt: skip
def test_a_masked_url_shows_no_user_password_or_query(scheme: str, secret: str, form: str) -> None:
    """A masked URL shows no user, password or query, except in paths of local files."""
    shown = masked(f"{scheme}://{form.format(secret)}")
    assert PLANTED not in shown or (scheme == "file" and "/" in form.partition("@")[0])
    assert "host" in shown
    assert masked(shown) == shown
    for mark in "?#" if scheme != "file" else "":
        assert masked(f"{scheme}://host:80/p{mark}token={secret}") == f"{scheme}://host:80/p{mark}***"


@pytest.mark.parametrize(
    "form",
    ["AKIA:{}/RET@bucket/p", "s3://user@name:{}/RET@bucket/p", "s3://AKIA@{}/RET@bucket", "AKIA:SEC@{}@bucket/p"],
)
def test_an_invalid_root_url_is_masked_too(form: str) -> None:
    """A text that is not a valid root URL is masked too."""
    shown = masked(form.format(PLANTED))
    assert PLANTED not in shown
    assert "AKIA" not in shown
    assert shown.endswith("***@bucket/p" if form.endswith("/p") else "***@bucket")
    assert masked(shown) == shown


@pytest.mark.parametrize("url", ["/tmp/a@b", "file:///tmp/a:b@c?d#e", "s3://bucket/a/c:d", "hdfs://nn:8020/a", ""])
def test_a_url_without_a_secret_is_shown_unchanged(url: str) -> None:
    """A URL without a secret is shown unchanged, also a local path with an @."""
    assert masked(url) == url


@pytest.mark.parametrize("value", ["", "arn:aws:kms:x:1:key/k\n"])
@pytest.mark.parametrize(
    ("part", "name"),
    [(S3Options, "kms_key"), (S3Options, "endpoint"), (GcsOptions, "endpoint"), (AzureOptions, "endpoint")],
)
def test_an_empty_or_multiline_store_option_is_refused(part: Callable[..., object], name: str, value: str) -> None:
    """An empty option or one of several lines is refused, so that an unset variable does not change where state is
    stored.
    """
    with pytest.raises(ConfigError, match="RIFFLE-0458"):
        part(**{name: value})


@given(NAMES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_name_leads_out_of_the_root(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """Every call refuses a name, or uses an object below the root."""
    above = tmp_path_factory.getbasetemp() / "names"
    store = DirectoryStore(above / "root")
    (above / "beside").mkdir(parents=True, exist_ok=True)
    (above / "beside" / "file").write_text("not ours")
    for call in (
        lambda: store.put_if_absent(name, b"x"), lambda: store.get(name), lambda: store.exists(name),
        lambda: store.list(name), lambda: store.delete([name]),
    ):  # fmt: skip
        try:
            result = call()
        except RiffleError:
            continue
        assert result != b"not ours"
        assert not isinstance(result, list) or all(not each.startswith((".", "/")) for each in result)
    assert {path.name for path in above.iterdir()} <= {"root", "beside"}
    assert [path.name for path in (above / "beside").iterdir()] == ["file"]


@given(NAMES)
def test_a_store_name_is_one_short_path_component(name: str) -> None:
    """A store name is one short path component, because names of objects and local folders contain it."""
    try:
        check_store_name(name)
    except ConfigError:
        return
    assert Path(name).name == name
    assert name.isascii()
    assert not name.startswith(".")
    assert len(name) <= 64
