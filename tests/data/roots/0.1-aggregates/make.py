"""Write the root that lies beside this file: `python tests/data/roots/0.1-aggregates/make.py` from the checkout.

It was run with riffle-spark 0.1.0 as of commit c8d259ea, when `aggregate` had functions of its own. It is not to be run
again: a later version writes other bytes.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from tests.kit.roots.aggregates_query import KEYS, AggregatesQuery  # noqa: E402

FOLDER = Path("/tmp/riffle-0.1-aggregates")
BATCHES = 3


def main() -> None:
    """Run a few batches and pack what they left."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    query = AggregatesQuery(FOLDER)
    for _ in range(BATCHES):
        assert query.feed().num_rows == len(KEYS)
    with tarfile.open(Path(__file__).parent / "state.tar.gz", "w:gz") as archive:
        for part in ("state", "local"):
            archive.add(FOLDER / part, part)


if __name__ == "__main__":
    main()
