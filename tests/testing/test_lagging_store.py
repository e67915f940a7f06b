"""The lag of LIST that other tests rely on."""

from __future__ import annotations

from riffle_spark.state.objects.memory import MemoryStore
from tests.kit.state.lagging_store import LaggingStore


def test_what_was_put_is_there_before_it_is_listed() -> None:
    """Get and exists see it at once, a second put is refused, and LIST shows it once it has caught up."""
    store = LaggingStore(MemoryStore())
    assert store.put_if_absent("log/1", b"x")
    assert (store.get("log/1"), store.exists("log/1"), store.list("")) == (b"x", True, [])
    assert not store.put_if_absent("log/1", b"y")
    store.catch_up()
    assert store.list("log/") == ["log/1"]


def test_what_was_deleted_is_gone_before_it_is_not_listed() -> None:
    """LIST still shows it, unless it never did; put again, it is one object."""
    store = LaggingStore(MemoryStore())
    for name in ("log/1", "log/2"):
        store.put_if_absent(name, b"x")
    store.catch_up(lambda name: name == "log/1")
    store.delete(["log/1", "log/2", "log/3"])
    assert (store.get("log/1"), store.list("log/"), store.list("delta/")) == (None, ["log/1"], [])
    assert store.put_if_absent("log/1", b"y")
    assert store.list("") == ["log/1"]
    store.delete(["log/1"])
    store.catch_up()
    assert store.list("") == []


def test_only_what_lags_lags() -> None:
    """Names that do not lag are listed at once, and so is what others put; any object can be hidden."""
    store = LaggingStore(MemoryStore(), lags=lambda name: name.startswith("log/"))
    store.put_if_absent("delta/1", b"x")
    store.inner.put_if_absent("log/0", b"x")
    store.put_if_absent("log/1", b"x")
    assert store.list("") == ["delta/1", "log/0"]
    store.hide("delta/1")
    assert store.list("") == ["log/0"]
    store.delete(["delta/1"])
    assert store.list("") == ["log/0"]
