"""What tests on executors of hosts of their own share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apps.demo.servers import StandaloneCluster


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and a worker for each of the module's ``ENVIRONMENTS``, or two, on addresses of their own."""
    told = getattr(request.module, "ENVIRONMENTS", [{}, {}])
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), workers=len(told), environments=told) as started:
        started.wait_until_ready()
        yield started
