"""Answers that S3 never gives, from a proxy or a faulty server, soon raise one of riffle's errors."""

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
def test_an_endless_list_or_one_with_foreign_keys_is_refused(body: str) -> None:
    """A list with an invalid continuation token, with foreign keys, or with no or two keys per object is refused."""
    with pytest.raises(ConfigError, match="RIFFLE-0446"):
        answering(200, body.encode()).list("log/")


def test_a_bulk_delete_that_reports_a_foreign_object_is_refused() -> None:
    """A bulk delete that reports a failure of another object is refused."""
    body = b"<DeleteResult><Error><Key>p/other</Key><Code>InternalError</Code></Error></DeleteResult>"
    with pytest.raises(ConfigError, match="RIFFLE-0446"):
        answering(200, body).delete(["a", "b"])


@pytest.mark.parametrize("code", ["InternalError", "AccessDenied"])
def test_an_error_with_two_codes_counts_as_one_without_a_code(code: str) -> None:
    """An error with two codes counts as an error without a code."""
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
def test_invalid_numbers_in_answers_raise_riffles_errors(status: int, body: str) -> None:
    """Invalid numbers and refusals without a code raise one of riffle's errors, not boto3's."""
    with pytest.raises((ConfigError, UnavailableError)):
        answering(status, body.encode()).list("log/")
    if status == 404:
        assert answering(status, body.encode()).get("log/1") is None


def test_a_page_of_a_proxy_is_unavailable_and_not_quoted() -> None:
    """A page of a proxy raises UnavailableError without quoting the page, because the server may answer later."""
    with pytest.raises(UnavailableError, match="RIFFLE-0448") as caught:
        answering(206, b"who are you?").list("log/")
    assert "who are you" not in str(caught.value)
