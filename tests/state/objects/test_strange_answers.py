"""Answers that no S3 gives end in errors of ours, soon: a proxy's in between, another server's, a broken one's."""

from __future__ import annotations

import pytest

from riffle_spark.errors import ConfigError, UnavailableError
from tests.kit.fuzz.outside_answers import answering

LIST = "<ListBucketResult><IsTruncated>{}</IsTruncated><Contents>{}</Contents>{}</ListBucketResult>"


@pytest.mark.parametrize(
    "body",
    [
        LIST.format("true", "<Key>p/log/1</Key>", ""),
        LIST.format("true", "<Key>p/log/1</Key>", "<NextContinuationToken>same</NextContinuationToken>"),
        LIST.format("false", "<Key>elsewhere/1</Key>", ""),
        LIST.format("false", "<Size>5</Size>", ""),
        LIST.format("false", "<Key>p/log/1</Key><Key>p/log/2</Key>", ""),
        LIST.format("true", "", "<NextContinuationToken>a</NextContinuationToken>" * 2),
    ],
)
def test_a_list_that_goes_on_for_ever_or_names_what_was_not_asked_for_is_refused(body: str) -> None:
    """With no token for what follows, two, or the one that was sent; with keys of others, with none, with two."""
    with pytest.raises(ConfigError, match="RIFFLE-0446"):
        answering(200, body.encode()).list("log/")


def test_a_delete_that_fails_for_others_is_refused() -> None:
    """They are not deleted in the place of those that were asked for."""
    body = b"<DeleteResult><Error><Key>p/other</Key><Code>InternalError</Code></Error></DeleteResult>"
    with pytest.raises(ConfigError, match="RIFFLE-0446"):
        answering(200, body).delete(["a", "b"])


@pytest.mark.parametrize("code", ["InternalError", "AccessDenied"])
def test_an_error_that_names_two_codes_names_none(code: str) -> None:
    """Of a key that was not deleted, and of a whole request."""
    twice = f"<Code>{code}</Code>" * 2
    failed = f"<DeleteResult><Error><Key>p/a</Key>{twice}</Error></DeleteResult>"
    with pytest.raises(ConfigError, match="RIFFLE-0506"):
        answering(200, failed.encode()).delete(["a"])
    for status in (400, 503):
        with pytest.raises(UnavailableError, match="RIFFLE-0448"):
            answering(status, f"<Error>{twice}</Error>".encode()).delete(["a"])


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, LIST.format("false", "", "<KeyCount>many</KeyCount>")),
        (200, LIST.format("false", "<Size>5</Size>" * 2, "")),
        (300, "?"),
        (404, "<Error>?</Error>"),
    ],
)
def test_numbers_that_are_none_and_refusals_without_a_code_are_errors_of_ours(status: int, body: str) -> None:
    """What boto3 makes of them is not."""
    with pytest.raises((ConfigError, UnavailableError)):
        answering(status, body.encode()).list("log/")
    if status == 404:
        assert answering(status, body.encode()).get("log/1") is None


def test_a_page_of_a_proxy_is_no_answer_and_is_not_quoted() -> None:
    """The server may answer the next time."""
    with pytest.raises(UnavailableError, match="RIFFLE-0448") as caught:
        answering(206, b"who are you?").list("log/")
    assert "who are you" not in str(caught.value)
