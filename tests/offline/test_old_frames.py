"""An encrypted root whose parts are in frames of version 1 is read, continued and rewritten."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from riffle_spark.console.main import main
from riffle_spark.state.objects.encryption import frame_version
from tests.kit.folders import DATA
from tests.kit.roots.encrypted_root import EncryptedRoot, oracle_of
from tests.kit.simulated.world import World, two_stores

ARCHIVE = DATA / "roots" / "0.1-frame1"


class OldQuery(EncryptedRoot):
    """The query that wrote the old root, started again with the present code."""

    def __init__(self, folder: Path, *, copies: bool) -> None:
        super().__init__(ARCHIVE, folder, copies=copies)
        self.oracle = oracle_of(self.expected)
        self.settings = folder / "riffle.toml"
        self.settings.write_text(f'encryption_keys = "{self.keys}"\n')
        self.start()

    def start(self) -> None:
        """Start a driver of this version."""
        self.world = World(
            self.local,
            operators=two_stores(),
            root=self.root,
            encryption_keys=self.keys,
            num_standbys=1,
            deliver_after_commit=True,
        )

    def frames(self) -> set[int | None]:
        """Return the frame versions of all parts that the newest record lists, without output rows."""
        versions = set()
        for (store, key_group), entry in self.world.log().manifest.entries.items():
            parts = [(link.object, link.byte_range[0]) for link in entry.chain]
            if entry.snapshot is not None:
                parts.append((f"{store}/key_group={key_group:04d}/snapshot/{entry.snapshot.id}", 0))
            versions |= {frame_version(self.world.memory.get(name, start, 200) or b"") for name, start in parts}
        return versions

    def riffle(self, command: str, *arguments: str) -> str:
        """Return what a command prints."""
        done = CliRunner().invoke(main, [command, *arguments, "--conf-file", str(self.settings)])
        assert done.exit_code == 0, done.output
        return done.output


@pytest.mark.parametrize("copies", [True, False])
def test_old_frames_are_read_and_new_ones_are_written(tmp_path: Path, *, copies: bool) -> None:
    """A query continues from old frames and writes new ones, with or without local copies, also after restarts."""
    query = OldQuery(tmp_path, copies=copies)
    query.check()
    assert query.frames() == {1}
    query.run(6)
    query.check()
    assert 2 in query.frames()
    query.start()
    query.run(3)
    query.check()


def test_a_key_rewrite_leaves_no_old_frame(tmp_path: Path) -> None:
    """`riffle keys --rewrite` leaves only new frames and counts old ones separately, and `riffle verify` succeeds."""
    query = OldQuery(tmp_path, copies=True)
    assert "No problems found" in query.riffle("verify", query.root)
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
    assert "No problems found" in query.riffle("verify", query.root)
