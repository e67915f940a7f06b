"""Fixtures of the tests on a standalone cluster in which each worker has its own host address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apps.demo.servers import StandaloneCluster


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A standalone cluster with one worker per entry of the module's ``ENVIRONMENTS`` (default: two workers)."""
    environments = getattr(request.module, "ENVIRONMENTS", [{}, {}])
    with StandaloneCluster(
        tmp_path_factory.mktemp("cluster"), workers=len(environments), environments=environments
    ) as started:
        started.wait_until_ready()
        yield started
