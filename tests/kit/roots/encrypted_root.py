"""A query on an encrypted root that an earlier version wrote. An oracle computes its expected state."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kit.roots.folder_query import unpack_root
from tests.kit.simulated.world import Oracle, World, drawn_batch

__all__ = ["EncryptedRoot", "oracle_of"]


class EncryptedRoot:
    """The root and the local copies of an archive, unpacked below ``folder``.

    A subclass sets ``oracle`` and starts ``world``.
    """

    oracle: Oracle
    world: World

    def __init__(self, archive: Path, folder: Path, *, copies: bool) -> None:
        unpack_root(archive / "encrypted.tar.gz", folder, copies=copies)
        self.root = f"file://{folder}/state"
        self.local = folder / "local"
        self.keys = f"file:{folder}/keys"
        self.expected: dict[str, Any] = json.loads((archive / "expected.json").read_text())
        self.version: int = self.expected["batches"]

    def run(self, batches: int) -> None:
        """Run more batches on the query and on the oracle."""
        chance = random.Random(self.version)
        for _ in range(batches):
            rows = drawn_batch(chance, self.version)
            self.oracle.feed(rows)
            self.world.batch(self.version, rows)
            self.version += 1

    def check(self) -> None:
        """Compare the state in the objects with the state of the oracle."""
        assert self.world.state("totals") == self.oracle.totals
        assert {key: last for key, (last,) in self.world.state("tails").items()} == self.oracle.tails


def oracle_of(state: Mapping[str, Any]) -> Oracle:
    """Return an oracle that starts with the expected state of an archive."""
    oracle = Oracle()
    oracle.totals = {key: tuple(values) for key, values in state["totals"].items()}
    oracle.tails = state["tails"]
    return oracle
