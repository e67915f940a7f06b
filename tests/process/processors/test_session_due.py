"""What comes due in a key-group: timers, and elements whose time to live is over."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.kit.process.sessions import Store, list_of, map_of, value

VALUE = value("v", "n long", 100)
LIST = list_of("l", "n long", 100)
MAP = map_of("m", "k string", "n long", 100)
LASTING = value("w", "n long")


def fired(store: Store, until_ms: int) -> list[tuple[int, str]]:
    """Fire what is due, as a processor's timers do, and return times and keys."""
    due = store.session.fire(until_ms)
    keys = store.session.keys(0).column("k").to_pylist()
    for due_ms, number in due:
        store.session.select_key(number)
        store.session.timers.delete(due_ms)
    return [(due_ms, keys[number]) for due_ms, number in due]


def test_timers_are_listed_in_order_of_time() -> None:
    """Those of the batch and those of earlier ones, each once, without those deleted."""
    store = Store(indexed=True)
    store.batch("a", "b")
    for due_ms in (30, 10, 20, 10):
        store.session.timers.register(due_ms)
    assert store.timers(0) == [10, 20, 30]
    assert store.timers(1) == []
    store.commit()
    store.batch("b", "a")
    store.session.select_key(1)
    store.session.timers.register(15)
    store.session.timers.delete(20)
    store.session.timers.delete(99)
    assert store.timers(1) == [10, 15, 30]
    store.commit()
    store.batch("a")
    assert store.timers(0) == [10, 15, 30]


def test_what_is_due_next_may_be_what_was_there_before() -> None:
    """A batch that registers a later timer leaves the earlier one its key-group's first."""
    store = Store(indexed=True)
    store.batch("a")
    store.session.timers.register(10)
    store.commit()
    store.batch("a")
    store.session.timers.register(20)
    assert store.session.next_due_ms() == 10


def test_timers_are_due_at_their_time_and_not_before() -> None:
    """As in Spark: at or before the time; in order of time, then of key; once."""
    store = Store(indexed=True)
    store.batch("b", "a")
    for number in (0, 1):
        store.session.select_key(number)
        for due_ms in (20, 10, 21):
            store.session.timers.register(due_ms)
    store.commit()
    store.batch()
    assert fired(store, 9) == []
    store.commit()
    store.batch()
    assert fired(store, 20) == [(10, "a"), (10, "b"), (20, "a"), (20, "b")]
    store.commit()
    store.batch()
    assert fired(store, 20) == []
    assert fired(store, 21) == [(21, "a"), (21, "b")]


def test_timers_registered_in_a_batch_fire_in_it() -> None:
    """As in Spark: what rows registered for a time that has come fires after the rows, beside what was there."""
    store = Store(indexed=True)
    store.batch("a", "b")
    store.session.timers.register(5)
    store.session.timers.register(50)
    store.commit()
    store.batch("b", "a")
    store.session.timers.register(7)
    store.session.timers.register(3)
    store.session.timers.delete(3)
    store.session.select_key(1)
    store.session.timers.register(5)
    assert fired(store, 10) == [(5, "a"), (7, "b")]


def test_a_timer_that_rows_deleted_does_not_fire() -> None:
    """Though it was there before the batch, and its time has come."""
    store = Store(indexed=True)
    store.batch("a", "b")
    for number in (0, 1):
        store.session.select_key(number)
        store.session.timers.register(5)
    store.commit()
    store.batch("b")
    store.session.timers.delete(5)
    assert fired(store, 10) == [(5, "a")]


def test_what_is_registered_while_timers_fire_waits_for_the_next_batch() -> None:
    """As in Spark, whose iterator sees what there was when it began: also what is deleted meanwhile fires."""
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


def test_a_second_pass_fires_what_became_due_since() -> None:
    """Timers between the first and the second time, and those that the first pass registered."""
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


def test_an_element_is_gone_at_the_very_time() -> None:
    """As in Spark: what was written at 0 for 100 ms is there at 99 and not at 100."""
    store = Store(VALUE, LIST, MAP, LASTING, indexed=True)
    store.batch("a", now_ms=0)
    store.value("v").update((1,))
    store.list("l").append((1,))
    store.map("m").update(("x",), (1,))
    store.value("w").update((1,))
    store.commit()
    for now_ms, is_there in ((99, True), (100, False)):
        store.batch("a", now_ms=now_ms)
        assert store.value("v").exists() is store.list("l").exists() is store.map("m").exists() is is_there
        assert (store.value("v").get() == (1,)) is is_there
        assert list(store.list("l").get()) == [(1,)] * is_there
        assert list(store.map("m").keys()) == [("x",)] * is_there
        assert (store.map("m").get(("x",)) == (1,)) is is_there
        assert store.value("w").get() == (1,)


def test_every_write_begins_the_time_to_live_anew() -> None:
    """For a value and a map's key; each element of a list lives its own time."""
    store = Store(VALUE, LIST, MAP, indexed=True)
    for now_ms in (0, 60):
        store.batch("a", now_ms=now_ms)
        store.value("v").update((now_ms,))
        store.list("l").append((now_ms,))
        store.map("m").update(("x",), (now_ms,))
        store.map("m").update((f"y{now_ms}",), (now_ms,))
        store.commit()
    store.batch("a", now_ms=120)
    assert store.value("v").get() == (60,)
    assert list(store.list("l").get()) == [(60,)]
    assert list(store.map("m").keys()) == [("x",), ("y60",)]
    assert store.session.expire() == 2
    store.commit()
    store.batch("a", now_ms=159)
    assert store.session.expire() == 0
    store.batch("a", now_ms=160)
    assert store.session.expire() == 4
    store.commit()
    assert store.reading.rows().num_rows == 0


def test_expired_elements_of_keys_without_rows_are_removed() -> None:
    """The index tells which they are; those that do not expire, or not yet, stay."""
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


def test_what_is_written_again_does_not_expire() -> None:
    """An element whose time came is new if the same batch wrote it; a cleared variable expires no more."""
    store = Store(VALUE, LIST, MAP, indexed=True)
    store.batch("a", "b", now_ms=0)
    for number in (0, 1):
        store.session.select_key(number)
        store.value("v").update((1,))
        store.list("l").append((1,))
        store.map("m").update(("x",), (1,))
    store.commit()
    store.batch("a", "b", now_ms=100)
    store.value("v").update((2,))
    store.list("l").put([(2,)])
    store.map("m").update(("x",), (2,))
    store.session.select_key(1)
    for cells in store.session.cells.values():
        cells.clear()
    assert store.session.expire() == 0
    store.commit()
    store.batch("a", "b", now_ms=101)
    assert (store.value("v").get(), list(store.list("l").get()), list(store.map("m").items())) == (
        (2,), [(2,)], [(("x",), (2,))],
    )  # fmt: skip
    store.session.select_key(1)
    assert not any(cells.exists() for cells in store.session.cells.values())


def test_appends_to_a_list_whose_elements_expire_follow_them() -> None:
    """The index of a new element is above those that go with the same delta."""
    store = Store(LIST, indexed=True)
    for now_ms in (0, 50, 100):
        store.batch("a", now_ms=now_ms)
        store.list("l").append((now_ms,))
        store.session.expire()
        store.commit()
    store.batch("a", now_ms=101)
    assert list(store.list("l").get()) == [(50,), (100,)]


def test_the_next_time_is_that_of_what_is_left() -> None:
    """Timers that went, and elements that were written anew, do not count; nothing due is never."""
    store = Store(VALUE, indexed=True)
    store.batch("a", "b", now_ms=0)
    assert store.session.next_due_ms() is None
    store.value("v").update((1,))
    store.session.timers.register(40)
    store.session.timers.register(70)
    assert store.session.next_due_ms() == 40
    store.commit()
    store.batch("a", now_ms=10)
    store.session.timers.delete(40)
    assert store.session.next_due_ms() == 70
    store.commit()
    store.batch("a", now_ms=20)
    store.session.timers.delete(70)
    store.value("v").update((2,))
    assert store.session.next_due_ms() == 120
    store.commit()
    store.batch("a", now_ms=30)
    store.value("v").clear()
    assert store.session.next_due_ms() is None


def test_many_deleted_timers_do_not_hide_the_one_that_is_left() -> None:
    """The next time is found behind any number of entries that go with the delta."""
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


def test_expiry_reads_what_expires_and_no_more() -> None:
    """Of ten thousand timers, a hundred that are due are found without a look at the others."""
    store = Store(indexed=True)
    store.batch(*(f"{at:05}" for at in range(10_000)))
    for number in range(10_000):
        store.session.select_key(number)
        store.session.timers.register(number)
    store.commit()
    store.batch()
    store.reading.asked.clear()
    assert len(fired(store, 99)) == 100
    assert store.session.next_due_ms() == 100
    assert store.session.keys(0).num_rows == 100
    assert set(store.reading.asked) <= {"due", "due_by"}


@pytest.mark.parametrize("ttl_ms", [2**63 - 1, 2**63 - 1 - 10, 2**63 - 1 - 11])
def test_a_time_to_live_beyond_all_times_is_for_ever(ttl_ms: int) -> None:
    """``sys.maxsize`` is what is written for never; a moment less is a time like any other."""
    store = Store(value("v", "n long", ttl_ms), indexed=True)
    for now_ms in (10, 20):
        store.batch("a", now_ms=now_ms)
        assert store.value("v").get() == ((1,) if now_ms > 10 else None)
        store.value("v").update((1,))
        assert (store.session.next_due_ms() is None) is (ttl_ms + now_ms >= 2**63 - 1)
        store.commit()


def test_a_key_that_was_kept_with_another_zero_fires_as_zero() -> None:
    """Parts of old have -0.0 where the key's first row had it."""
    store = Store(indexed=True, key=pa.schema([("k", pa.float64())]))
    store.batch(-0.0)
    store.session.timers.register(5)
    store.commit()
    store.batch(1.0)
    assert str(store.session.fire(5)) == "[(5, 1)]"
    assert str(store.session.keys(1)["k"].to_pylist()) == "[0.0]"


def test_a_delta_of_timers_has_the_schema_of_its_store() -> None:
    """A store without variables keeps timers alone."""
    store = Store(indexed=True)
    store.batch("a")
    store.session.timers.register(5)
    changes = store.session.changes()
    assert changes.schema.equals(store.schema.part_schema(delta=True))
    assert changes.select(["k", "__due", "__deleted"]).to_pylist() == [{"k": "a", "__due": 5, "__deleted": False}]
    assert isinstance(changes, pa.Table)
