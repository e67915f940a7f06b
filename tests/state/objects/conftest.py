"""Fixtures of the tests of object stores."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import botocore.loaders
import pytest


@pytest.fixture(scope="session", autouse=True)
def shared_service_models() -> Iterator[None]:
    """Parse botocore's service models once, because parsing them for every S3 client takes 0.3 s of CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.loaders, "create_loader", functools.cache(botocore.loaders.create_loader))
        yield
