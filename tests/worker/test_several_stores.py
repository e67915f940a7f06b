"""A slot runs several stores with the same rows. Each store has its own result and receipt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.errors import UnavailableError
from riffle_spark.messages.slot_orders import ATTEMPT, RECEIPT, Receipt
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.process.blocks.block import BlockComputation
from riffle_spark.state.log.paths import delta_name
from riffle_spark.testing import routed
from riffle_spark.worker.slot import StoreInput, run_slots
from tests.kit.state.faulty_store import Fault
from tests.kit.worker.slot_member import OUTPUT, STATE, Member, keep_last, rows_of

INPUT = rows_of(("a", 1, 0), ("b", 2, 0), ("a", 3, 0))
KEPT = [{"k": "a", "last": 3}, {"k": "b", "last": 2}]
Before = Callable[[], object]


def kept_last(before: Before = lambda: None) -> BlockComputation:
    """Return a computation that calls ``before`` and keeps the last value of each key."""

    def compute(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
        before()
        return keep_last(rows, state)

    return arrow_function(compute, state=STATE, output=OUTPUT)


def run(member: Member, computations: Sequence[BlockComputation]) -> list[tuple[list[dict[str, object]], Receipt]]:
    """Run a slot for stores s0, s1 and so on with these computations. Return output rows and receipt of each store."""
    order = member.order()
    rows = routed(order, INPUT)[0]
    ids = iter(range(len(computations)))
    stores = [StoreInput(replace(order, store=f"s{n}"), compute, rows) for n, compute in enumerate(computations)]
    answers = run_slots(stores, 0, "1", lambda size: next(ids).to_bytes(size, "big"))
    receipts = [Receipt.from_json(answer[RECEIPT].drop_null().to_pylist()[0]) for answer in answers]
    rows_of_stores = [answer.slice(0, answer.num_rows - 1).drop_columns([ATTEMPT, RECEIPT]) for answer in answers]
    return [(rows.sort_by("k").to_pylist(), receipt) for rows, receipt in zip(rows_of_stores, receipts, strict=True)]


@pytest.fixture
def member(tmp_path: Path) -> Member:
    """Return a member with the computation of ``kept_last``."""
    return Member(tmp_path, kept_last())


def test_each_store_has_its_own_rows_receipt_and_object(member: Member) -> None:
    """Each store has output rows, a receipt and an object. The receipts add up to all requests to the store."""
    answers = run(member, [kept_last()] * 3)
    assert [rows for rows, _ in answers] == [KEPT] * 3
    assert [receipt.store for _, receipt in answers] == ["s0", "s1", "s2"]
    assert len({receipt.attempt for _, receipt in answers}) == 3
    sent = sum(sum(receipt.requests.values()) for _, receipt in answers)
    assert sent == sum(member.store.requests.values()) == 3
    assert len(member.store.inner.list("")) == 3


def test_a_store_that_fails_fails_alone(member: Member) -> None:
    """If a store fails, its receipt has the error, and the other stores have their rows. The driver then repeats or
    fails the batch.
    """

    def fail() -> None:
        raise ValueError("a bug of the user")

    answers = run(member, [kept_last(), kept_last(fail), kept_last()])
    assert [rows for rows, _ in answers] == [KEPT, [], KEPT]
    errors = [receipt.error for _, receipt in answers]
    assert [error is None for error in errors] == [True, False, True]
    assert "a bug of the user" in str(errors[1])
    assert answers[1][1].parts == ()


def test_a_store_whose_put_fails_fails_alone(member: Member) -> None:
    """If a put fails, only the receipt of its store has the error."""
    second = delta_name(0, member.order().attempt_name((1).to_bytes(16, "big")))
    member.store.script(Fault("unavailable", "put", second))
    answers = run(member, [kept_last()] * 3)
    assert [rows for rows, _ in answers] == [KEPT, [], KEPT]
    errors = [None if receipt.error is None else receipt.error[0] for _, receipt in answers]
    assert errors == [None, UnavailableError.__name__, None]
    assert len(member.store.inner.list("")) == 2


def test_a_store_computes_during_the_put_of_the_previous_one(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """The put of the first store ends only once the second store computes."""
    computes, waited = threading.Event(), list[bool]()
    put = member.store.put_if_absent

    def put_slowly(name: str, data: bytes) -> bool:
        waited.append(computes.wait(30))
        return put(name, data)

    monkeypatch.setattr(member.store, "put_if_absent", put_slowly)
    answers = run(member, [kept_last(), kept_last(computes.set)])
    assert waited == [True, True]
    assert [(rows, receipt.error) for rows, receipt in answers] == [(KEPT, None)] * 2
