"""The scripted faults that other tests rely on."""

from __future__ import annotations

import pytest

from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.state.objects.memory import MemoryStore
from tests.kit.state.faulty_store import Fault, FaultyStore


@pytest.fixture
def faulty() -> FaultyStore:
    """A faulty store with one object, and nothing scripted yet."""
    store = FaultyStore(MemoryStore())
    store.inner.put_if_absent("log/0", b"abcdef")
    return store


class TestFaultyStore:
    """The scripted faults that other tests rely on."""

    @pytest.mark.parametrize(("kind", "there"), [("answer_lost", True), ("request_lost", False), ("late", False)])
    def test_an_unclear_put_raises_whatever_arrived(self, faulty: FaultyStore, kind: str, there: bool) -> None:
        """The caller sees the same error, whether the bytes arrived, never will, or will later."""
        faulty.script(Fault(kind))  # type: ignore[arg-type]
        with pytest.raises(UnavailableError):
            faulty.put_if_absent("log/1", b"x")
        assert faulty.exists("log/1") == there
        assert faulty.land() == ([True] if kind == "late" else [])
        assert faulty.put_if_absent("log/1", b"y") == (kind == "request_lost")

    @pytest.mark.parametrize(("kind", "data"), [("truncated", b"abc"), ("flipped", b"abceef"), ("missing", None)])
    def test_a_damaged_get_is_whole_the_next_time(self, faulty: FaultyStore, kind: str, data: bytes | None) -> None:
        """One get is damaged, the next is whole."""
        faulty.script(Fault(kind, name="log/"))  # type: ignore[arg-type]
        assert [faulty.get("log/0"), faulty.get("log/0")] == [data, b"abcdef"]

    def test_a_fault_befalls_the_calls_it_names(self, faulty: FaultyStore) -> None:
        """Method, name, how many first and how many then are all heeded."""
        faulty.script(Fault("unavailable", method="get", name="log/", skip=1, times=2))
        outcomes = []
        for name in ("log/0", "other", "log/0", "log/0", "log/0"):
            assert faulty.exists("log/0")
            try:
                outcomes.append(faulty.get(name))
            except UnavailableError:
                outcomes.append(b"failed")
        assert outcomes == [b"abcdef", None, b"failed", b"failed", b"abcdef"]
        assert faulty.calls[:2] == [("head", "log/0"), ("get", "log/0")]

    def test_a_slow_call_waits_and_works(self) -> None:
        """It waits with the given clock, not the machine's."""
        waited: list[float] = []
        store = FaultyStore(MemoryStore(), [Fault("slow", seconds=30)], sleep=waited.append)
        assert store.put_if_absent("log/1", b"")
        assert waited == [30]

    def test_heal_ends_the_script(self, faulty: FaultyStore) -> None:
        """After it everything goes through."""
        faulty.script(Fault("unavailable", times=None))
        with pytest.raises(UnavailableError):
            faulty.list("")
        faulty.heal()
        assert faulty.list("") == ["log/0"]

    def test_a_fault_that_cannot_be_is_refused(self) -> None:
        """A script that would never happen is a mistake in the test."""
        with pytest.raises(ConfigError):
            Fault("truncated", method="put")
