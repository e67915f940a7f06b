"""Distribute tests over processes: one file at a time, in the order of the collection."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

__all__ = ["InOrder"]


class InOrder(LoadScopeScheduling):
    """Gives whoever is free the next run of tests of one file: what is fast first, what shares a session together."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._runs: dict[str, str] = {}
        self._last = ""

    def _split_scope(self, nodeid: str) -> str:
        """Tests of a file that do not follow upon each other, because some of them are slow, are different runs."""
        if nodeid not in self._runs:
            file = nodeid.partition("::")[0]
            if self._last.partition("@")[0] != file:
                self._last = f"{file}@{len(self._runs)}"
            self._runs[nodeid] = self._last
        return self._runs[nodeid]
