"""Time of single modules, set by tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest
from botocore import endpoint

from riffle_spark.state.objects import azure, remote

OBJECT_STORES: Final = (azure, remote, endpoint)
"""The modules that pause between requests to an object store."""


def replace_time(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType, **functions: Callable[..., Any]) -> None:
    """Replace functions of ``time`` for these modules alone.

    ``time.sleep`` itself is also called by threads that earlier tests left behind. They would advance a test's clock.
    """
    for module in modules:
        monkeypatch.setattr(module, "time", SimpleNamespace(**{**vars(time), **functions}))


def skip_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat requests to object stores without pauses."""
    replace_time(monkeypatch, *OBJECT_STORES, sleep=lambda _: None)
