"""Due timers and expired elements, in cases that the model in test_session_model.py does not cover."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.kit.process.sessions import Store, list_of, map_of, value

VALUE = value("v", "n long", 100)
LIST = list_of("l", "n long", 100)
MAP = map_of("m", "k string", "n long", 100)
LASTING = value("w", "n long")


def fired(store: Store, until_ms: int) -> list[tuple[int, str]]:
    """Fire and delete the due timers, as a processor does. Return times and keys."""
    due = store.session.fire(until_ms)
    keys = store.session.keys(0).column("k").to_pylist()
    for due_ms, number in due:
        store.session.select_key(number)
        store.session.timers.delete(due_ms)
    return [(due_ms, keys[number]) for due_ms, number in due]


def test_a_stored_timer_may_be_due_next() -> None:
    """A stored timer is the next one if the batch registers a later one."""
    store = Store(indexed=True)
    store.batch("a")
    store.session.timers.register(10)
    store.commit()
    store.batch("a")
    store.session.timers.register(20)
    assert store.session.next_due_ms() == 10


def test_a_timer_that_rows_deleted_does_not_fire() -> None:
    """A stored timer that is due does not fire if the batch deletes it."""
    store = Store(indexed=True)
    store.batch("a", "b")
    for number in (0, 1):
        store.session.select_key(number)
        store.session.timers.register(5)
    store.commit()
    store.batch("b")
    store.session.timers.delete(5)
    assert fired(store, 10) == [(5, "a")]


def test_timers_registered_while_timers_fire_wait_for_the_next_batch() -> None:
    """Timers that are registered while timers fire wait for the next batch, as in Spark.

    Timers deleted meanwhile fire.
    """
    store = Store(indexed=True)
    store.batch("a")
    store.session.timers.register(1)
    store.session.timers.register(2)
    due = store.session.fire(10)
    store.session.timers.register(3)
    store.session.timers.delete(2)
    assert [due_ms for due_ms, _ in due] == [1, 2]
    for due_ms, _ in due:
        store.session.timers.delete(due_ms)
    assert store.session.next_due_ms() == 3
    store.commit()
    store.batch()
    assert fired(store, 10) == [(3, "a")]


def test_a_second_pass_fires_timers_that_became_due_since_the_first() -> None:
    """A second pass fires the timers that became due since the first, also those that the first pass registered."""
    store = Store(indexed=True)
    store.batch("a")
    for due_ms in (5, 15, 25):
        store.session.timers.register(due_ms)
    store.commit()
    store.batch()
    assert fired(store, 10) == [(5, "a")]
    store.session.select_key(0)
    store.session.timers.register(8)
    store.session.timers.register(12)
    assert fired(store, 20) == [(8, "a"), (12, "a"), (15, "a")]
    assert store.session.next_due_ms() == 25


def test_expired_elements_of_keys_without_rows_are_removed() -> None:
    """Expired elements of keys without rows are removed."""
    store = Store(VALUE, LIST, MAP, LASTING, indexed=True)
    for key, now_ms in (("a", 0), ("b", 50)):
        store.batch(key, now_ms=now_ms)
        store.value("v").update((1,))
        store.list("l").extend([(1,), (2,)])
        store.map("m").update(("x",), (1,))
        store.value("w").update((1,))
        store.commit()
    store.batch(now_ms=100)
    assert store.session.expire() == 4
    assert store.session.next_due_ms() == 150
    changes = store.commit()
    assert changes.num_rows == 4
    assert set(changes.column("k").to_pylist()) == {"a"}
    store.batch("a", "b", now_ms=101)
    assert (store.value("v").get(), store.value("w").get()) == (None, (1,))
    store.session.select_key(1)
    assert (store.value("v").get(), list(store.list("l").get())) == ((1,), [(1,), (2,)])


def test_elements_written_in_the_batch_do_not_expire() -> None:
    """Elements that the batch writes do not expire, although the stored ones are due."""
    store = Store(VALUE, LIST, MAP, indexed=True)
    for now_ms in (0, 100):
        store.batch("a", now_ms=now_ms)
        store.value("v").update((now_ms,))
        store.list("l").put([(now_ms,)])
        store.map("m").update(("x",), (now_ms,))
        assert store.session.expire() == 0
        store.commit()
    store.batch("a", now_ms=101)
    assert (store.value("v").get(), list(store.list("l").get()), store.map("m").get(("x",))) == (
        (100,),
        [(100,)],
        (100,),
    )


def test_the_next_due_time_is_found_among_many_deleted_timers() -> None:
    """The next due time is found among any number of deleted timers."""
    store = Store(indexed=True)
    store.batch("a", "b")
    for due_ms in range(300):
        store.session.timers.register(due_ms)
    store.session.select_key(1)
    store.session.timers.register(299)
    store.commit()
    store.batch("a")
    for due_ms in range(300):
        store.session.timers.delete(due_ms)
    assert store.session.next_due_ms() == 299


def test_expiry_reads_only_due_timers() -> None:
    """Expiry reads only the due timers: a hundred of ten thousand."""
    store = Store(indexed=True)
    store.batch(*(f"{index:05}" for index in range(10_000)))
    for number in range(10_000):
        store.session.select_key(number)
        store.session.timers.register(number)
    store.commit()
    store.batch()
    store.reading.calls.clear()
    assert len(fired(store, 99)) == 100
    assert store.session.next_due_ms() == 100
    assert store.session.keys(0).num_rows == 100
    assert set(store.reading.calls) <= {"find_due_elements", "find_due_time"}


@pytest.mark.parametrize("ttl_ms", [2**63 - 1, 2**63 - 1 - 10, 2**63 - 1 - 11])
def test_a_ttl_beyond_all_times_never_ends(ttl_ms: int) -> None:
    """A TTL beyond the range of times, such as ``sys.maxsize``, never ends."""
    store = Store(value("v", "n long", ttl_ms), indexed=True)
    for now_ms in (10, 20):
        store.batch("a", now_ms=now_ms)
        assert store.value("v").get() == ((1,) if now_ms > 10 else None)
        store.value("v").update((1,))
        assert (store.session.next_due_ms() is None) is (ttl_ms + now_ms >= 2**63 - 1)
        store.commit()


def test_a_key_stored_as_minus_zero_fires_as_zero() -> None:
    """A key that an older part stored as -0.0 is the key 0.0."""
    store = Store(indexed=True, key=pa.schema([("k", pa.float64())]))
    store.batch(-0.0)
    store.session.timers.register(5)
    store.commit()
    store.batch(1.0)
    assert str(store.session.fire(5)) == "[(5, 1)]"
    assert str(store.session.keys(1)["k"].to_pylist()) == "[0.0]"


def test_an_element_expires_exactly_at_its_ttl() -> None:
    """An element expires exactly at its TTL, as in Spark: written at 0 with 100 ms, it exists at 99 and not at 100."""
    store = Store(VALUE, LIST, MAP, indexed=True)
    store.batch("a", now_ms=0)
    store.value("v").update((1,))
    store.list("l").append((1,))
    store.map("m").update(("x",), (1,))
    store.commit()
    for now_ms, is_there in ((99, True), (100, False)):
        store.batch("a", now_ms=now_ms)
        assert (store.value("v").get() == (1,)) is is_there
        assert list(store.list("l").get()) == [(1,)] * is_there
        assert list(store.map("m").keys()) == [("x",)] * is_there
