"""Write the encrypted root that lies beside this file: `python tests/data/roots/0.1-records8/make.py` from the checkout.

It was run once with riffle-spark 0.1.0 as of commit 47296fcd, which stored each delta and merged delta as one part per
key-group. Do not run it again: a root of a later version belongs into a folder of its own.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from tests.kit.simulated.world import Oracle, World, drawn_batch  # noqa: E402

HERE = Path(__file__).parent
FOLDER = Path("/tmp/riffle-0.1-records8")
BATCHES = 45
SETTINGS = {"num_standbys": 1, "snapshot_chain_links": 16, "retained_versions": 20}


def main() -> None:
    """Run batches with a lost disk between them; write the archive and what the state was after some of them."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    (FOLDER / "keys").write_text(f"a = {base64.b64encode(bytes([1]) * 32).decode()}\n")
    world = World(FOLDER / "local", root=f"file://{FOLDER}/state", encryption_keys=f"file:{FOLDER}/keys", **SETTINGS)
    oracle, chance = Oracle(), random.Random(11)
    states: dict[int, object] = {}
    for version in range(BATCHES):
        rows = drawn_batch(chance, version)
        oracle.feed(rows)
        world.batch(version, rows)
        states[version] = json.loads(json.dumps({"totals": oracle.totals, "tails": oracle.tails}))
        if version == BATCHES // 2:
            world.cluster.lose("1", disk=True)
            world.cluster.add("3")
    assert world.state("totals") == oracle.totals
    links = [link for entry in world.log().manifest.entries.values() for link in entry.chain]
    assert any(link.merged for link in links)
    assert any(not link.merged for link in links)
    for left in (FOLDER / "local").glob("read-*"):
        shutil.rmtree(left)
    told = {"batches": BATCHES, "states": {version: states[version] for version in (38, BATCHES - 1)}}
    (HERE / "expected.json").write_text(json.dumps(told, indent=None, separators=(",", ":")) + "\n")
    with tarfile.open(HERE / "encrypted.tar.gz", "w:gz") as archive:
        for part in ("state", "local", "keys"):
            archive.add(FOLDER / part, part)


if __name__ == "__main__":
    main()
