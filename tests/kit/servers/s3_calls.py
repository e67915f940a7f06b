"""One call for each method of a store, and the error that a call raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from riffle_spark.errors import RiffleError
from riffle_spark.state.objects.store import ObjectStore

CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put_if_absent("log/1", b"abc"),
    "get": lambda store: store.get("log/1"),
    "head": lambda store: store.exists("log/1"),
    "list": lambda store: store.list("log/"),
    "delete": lambda store: store.delete(["log/1"]),
}


def error_of(call: Callable[[], object]) -> RiffleError:
    """Return the error of riffle_spark that the call raises."""
    with pytest.raises(RiffleError) as caught:
        call()
    return caught.value
