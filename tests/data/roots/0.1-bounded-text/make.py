"""Write the root that lies beside this file: `python tests/data/roots/0.1-bounded-text/make.py` from the checkout.

It was run with riffle-spark 0.1.0 as of commit cbc97e31, which accepted `varchar(5)` as a type of state. Later versions
refuse it, so it is not to be run again.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from tests.kit.roots.bounded_text_query import KEYS, feed  # noqa: E402

FOLDER = Path("/tmp/riffle-0.1-bounded-text")


def main() -> None:
    """Run one batch and pack what it left."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    assert set(feed(FOLDER, "varchar(5)")) == set(KEYS)
    with tarfile.open(Path(__file__).parent / "state.tar.gz", "w:gz") as archive:
        for part in ("state", "local"):
            archive.add(FOLDER / part, part)


if __name__ == "__main__":
    main()
