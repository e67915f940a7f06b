"""The bytes of status.json can be read back. Damaged bytes and later formats raise an error."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import CorruptStateError
from riffle_spark.observe.status import (
    BatchSummary,
    MoveSummary,
    Status,
    WarningSummary,
    decode,
    encode,
    from_json,
    to_json,
)
from riffle_spark.protocol.facts import DriverFacts, FailureFacts, GroupFacts, MemberFacts, PartitionLag, StoreFacts

_NUMBERS = st.integers(0, 2**53)
_TIMES = st.floats(0, 1e9)
_ROWS = st.lists(st.integers(-1, 4096), max_size=6).map(tuple)
_COPIES = st.lists(_ROWS, max_size=4).map(tuple)


def tuples_of(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Return a strategy for tuples of up to four values."""
    return st.lists(strategy, max_size=4).map(tuple)


_SECONDS = st.dictionaries(st.text(), _TIMES).map(lambda seconds: {**seconds, "total": sum(seconds.values())})
_FACTS = st.builds(
    DriverFacts,
    time_ms=_NUMBERS,
    query_id=st.text(),
    commit_ms=st.none() | _NUMBERS,
    watermark_ms=st.none() | st.integers(),
    next_probe_seconds=st.none() | _TIMES,
    source=tuples_of(st.builds(PartitionLag, st.text(), _NUMBERS, _NUMBERS, st.none() | _TIMES)),
    members=tuples_of(
        st.builds(
            MemberFacts,
            st.text(),
            st.text(),
            st.text(),
            rack=st.none() | st.text(),
            state=st.sampled_from(["active", "drained", "quarantined", "awaited"]),
            warmup_seconds=st.none() | _TIMES,
            disk_used=st.none() | st.floats(0, 1),
        )
    ),
    stores=tuples_of(st.builds(StoreFacts, st.text(), _NUMBERS, _NUMBERS, _NUMBERS)),
    groups=tuples_of(st.builds(GroupFacts, st.text(), tuples_of(st.text()), _ROWS, _COPIES, _COPIES)),
    paused_since_ms=st.none() | _NUMBERS,
    failure=st.none() | st.builds(FailureFacts, st.text(), st.text(), _NUMBERS),
    counters=st.dictionaries(st.text(), _NUMBERS | _TIMES),
)
_STATUSES = st.builds(
    Status,
    _FACTS,
    state=st.sampled_from(["running", "idle", "paused", "stopped", "failed"]),
    batches=tuples_of(st.builds(BatchSummary, _NUMBERS, _NUMBERS, _NUMBERS, _SECONDS, st.none() | _NUMBERS)),
    moves=tuples_of(
        st.builds(MoveSummary, _NUMBERS, _NUMBERS, _NUMBERS, *[st.text()] * 5, partition=st.none() | st.integers(0, 9))
    ),
    warnings=tuples_of(st.builds(WarningSummary, _NUMBERS, st.text(), st.text())),
    settings=st.dictionaries(st.text(), st.text()),
)


@given(_STATUSES)
def test_every_status_is_read_back_equal(status: Status) -> None:
    """Property: a status that is written and read again is equal, as text and as bytes."""
    assert from_json(to_json(status)) == status
    assert decode(encode(status)) == status


def test_a_large_status_is_stored_compressed() -> None:
    """A large status is stored compressed."""
    members = tuple(MemberFacts(f"member-{n}", str(n), f"host-{n}") for n in range(100))
    groups = (GroupFacts("query", ("counts",), tuple(n % 100 for n in range(4096)), ((1, 2),) * 4096, ((),) * 4096),)
    status = Status(DriverFacts(1, "q", members=members, groups=groups))
    assert len(encode(status)) < len(to_json(status)) / 4
    assert decode(encode(status)) == status


def test_fields_of_a_later_version_are_ignored_and_missing_fields_get_their_default() -> None:
    """Within a format, unknown fields are ignored, and missing fields get their default."""
    status = Status(DriverFacts(1, "q", members=(MemberFacts("m", "1", "host"),)))
    body = json.loads(to_json(status))
    body["later"] = 1
    body["facts"]["members"][0]["later"] = {"x": []}
    del body["facts"]["members"][0]["rack"], body["moves"]
    assert from_json(json.dumps(body)) == status


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format": 1}',
        b'{"format": 1, "facts": {"time_ms": "x", "query_id": "q"}}',
        b'{"format": 1, "facts": {"time_ms": 1, "query_id": "q"}, "state": "asleep"}',
        b"\x1f\x8b damaged",
        b"[" * 100_000,
        encode(Status(DriverFacts(1, "q" * 100_000)))[:-9],
    ],
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    """Damaged bytes raise an error that names the object."""
    with pytest.raises(CorruptStateError) as caught:
        decode(data, "s3://bucket/q/status.json")
    assert caught.value.id == "RIFFLE-1310"
    assert caught.value.where == "s3://bucket/q/status.json"


def test_a_later_format_is_refused_with_both_numbers() -> None:
    """The error about a later format has both format numbers."""
    body = {**json.loads(to_json(Status(DriverFacts(1, "q")))), "format": 2}
    with pytest.raises(CorruptStateError, match=r"has format 2, but this version reads 1\."):
        from_json(json.dumps(body))


def test_the_text_is_one_line() -> None:
    """The JSON text is one line, because line breaks in texts are escaped."""
    status = Status(DriverFacts(1, "q", query_name="a\nb"))
    assert "\n" not in to_json(replace(status, settings={"x": "y\nz"}))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("batches", 0, "seconds"), {"run": 0.5}),
        (("batches", 0, "seconds", "total"), float("nan")),
        (("interval_seconds",), float("inf")),
        (("facts", "batch_seconds"), float("-inf")),
        (("facts", "members", 0, "disk_used"), float("nan")),
        (("facts", "members", 0, "warmup_seconds"), float("inf")),
        (("facts", "counters", "rows"), float("nan")),
        (("facts", "source", 0, "seconds"), float("nan")),
        (("facts", "failure"), {"error": "ValueError", "id": "", "time_ms": "now"}),
    ],
)
def test_impossible_numbers_in_a_status_are_refused_with_a_remedy(path: tuple[str | int, ...], value: object) -> None:
    """Seconds without a total, NaN and infinity are refused, although Python's JSON accepts them."""
    facts = DriverFacts(
        1, source=(PartitionLag("t", 0, 1),), members=(MemberFacts("m", "1", "h"),), counters={"rows": 1}
    )
    body = json.loads(to_json(Status(facts, batches=(BatchSummary(1, 1, 1, {"total": 1.0}),))))
    place = body
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(CorruptStateError, match="The status cannot be read") as raised:
        from_json(json.dumps(body))
    assert raised.value.remedy


def test_nan_is_not_written_to_a_status() -> None:
    """NaN is not written, because other JSON parsers refuse it."""
    with pytest.raises(ValueError, match="JSON"):
        to_json(Status(DriverFacts(1, members=(MemberFacts("m", "1", "h", disk_used=float("nan")),))))
