"""An encrypted root whose parts are in frames of version 1 is read, continued and rewritten."""

from __future__ import annotations

import json
import random
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from riffle_spark.console.main import main
from riffle_spark.state.objects.encryption import frame_version
from riffle_spark.state.objects.open import root_id
from tests.kit.folders import DATA
from tests.kit.simulated.world import Oracle, World, drawn_batch

ARCHIVE = DATA / "roots" / "0.1-frame1"


class OldQuery:
    """The query that wrote the old root, started again below ``folder`` with the code of today."""

    def __init__(self, folder: Path, *, copies: bool) -> None:
        with tarfile.open(ARCHIVE / "encrypted.tar.gz") as packed:
            packed.extractall(folder, filter="data")
        self.root, self.local = f"file://{folder}/state", folder / "local"
        (members,) = self.local.iterdir()
        members.rename(members.with_name(f"{root_id(self.root)}-{members.name.partition('-')[2]}"))
        if not copies:
            shutil.rmtree(self.local)
        told: dict[str, Any] = json.loads((ARCHIVE / "expected.json").read_text())
        self.oracle = Oracle()
        self.oracle.totals = {key: tuple(values) for key, values in told["totals"].items()}
        self.oracle.tails = told["tails"]
        self.version: int = told["batches"]
        self.settings = folder / "riffle.toml"
        self.settings.write_text(f'encryption_keys = "file:{folder}/keys"\n')
        self.start()

    def start(self) -> None:
        """Start a driver of this version."""
        keys = f"file:{self.settings.parent}/keys"
        self.world = World(
            self.local, root=self.root, encryption_keys=keys, num_standbys=1, deliver_after_commit=True
        )  # fmt: skip

    def run(self, batches: int) -> None:
        """Run more batches; let the oracle take them."""
        chance = random.Random(self.version)
        for _ in range(batches):
            rows = drawn_batch(chance, self.version)
            self.oracle.feed(rows)
            self.world.batch(self.version, rows)
            self.version += 1

    def check(self) -> None:
        """Compare the state in the objects with the oracle's."""
        assert self.world.state("totals") == self.oracle.totals
        assert {key: last for key, (last,) in self.world.state("tails").items()} == self.oracle.tails

    def frames(self) -> set[int | None]:
        """Return the frame versions of all parts that the newest record lists, without output rows."""
        found = set()
        for (store, key_group), entry in self.world.log().manifest.entries.items():
            parts = [(link.object, link.byte_range[0]) for link in entry.chain]
            if entry.snapshot is not None:
                parts.append((f"{store}/key_group={key_group:04d}/snapshot/{entry.snapshot.id}", 0))
            found |= {frame_version(self.world.memory.get(name, start, 200) or b"") for name, start in parts}
        return found

    def riffle(self, command: str, *arguments: str) -> str:
        """Return what a command prints."""
        done = CliRunner().invoke(main, [command, *arguments, "--conf-file", str(self.settings)])
        assert done.exit_code == 0, done.output
        return done.output


@pytest.mark.parametrize("copies", [True, False])
def test_old_frames_are_read_and_new_ones_are_written(tmp_path: Path, *, copies: bool) -> None:
    """The state is what it was. With local copies or without, the query continues, and is right after each restart."""
    query = OldQuery(tmp_path, copies=copies)
    query.check()
    assert query.frames() == {1}
    query.run(6)
    query.check()
    assert 2 in query.frames()
    query.start()
    query.run(3)
    query.check()


def test_a_rewrite_leaves_no_old_frame(tmp_path: Path) -> None:
    """``riffle verify`` finds the root whole before and after, and ``riffle keys`` counts old frames apart."""
    query = OldQuery(tmp_path, copies=True)
    assert "whole" in query.riffle("verify", query.root)
    query.run(2)
    counted = query.riffle("keys", query.root)
    assert re.fullmatch(r"a: \d+ parts, \d+ bytes\na \(old frame RFE1\): \d+ parts, \d+ bytes\n", counted)
    query.riffle("keys", query.root, "--rewrite", "--execute")
    assert query.frames() == {2}
    query.start()
    query.check()
    query.run(3)
    query.check()
    assert query.frames() == {2}
    assert "whole" in query.riffle("verify", query.root)
