"""Distribute tests over processes: one file at a time, in the order of the collection."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

__all__ = ["InOrder"]

SPLIT = "tests/spark/"
"""Files below it run last and share one session, so they can be split."""
SPLIT_TESTS_MAX = 5


class InOrder(LoadScopeScheduling):
    """Gives an idle process the next run of tests of one file: fast tests first, tests of one Spark session together.

    Long files at the end are split into runs of a few tests. Otherwise one process works alone on the last file.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._runs: dict[str, str] = {}
        self._last = ""
        self._last_tests = 0

    def _split_scope(self, nodeid: str) -> str:
        """Return the run of a test. Tests of a file that do not follow each other are different runs."""
        if nodeid not in self._runs:
            file = nodeid.partition("::")[0]
            is_full = file.startswith(SPLIT) and self._last_tests == SPLIT_TESTS_MAX
            if is_full or self._last.partition("@")[0] != file:
                self._last = f"{file}@{len(self._runs)}"
                self._last_tests = 0
            self._last_tests += 1
            self._runs[nodeid] = self._last
        return self._runs[nodeid]
