"""What pip-audit's answer comes to, for ``./run audit``: whole or not, and which holes are known."""

from __future__ import annotations

import json
import sys
from pathlib import Path

__all__ = ["main", "verdict"]

NO_HOLES = 0
HOLES = 1
NO_ANSWER = 2


def verdict(answer: str) -> tuple[int, list[str]]:
    """Return the exit code of an audit, and what to say: an answer of which something is missing is none."""
    try:
        asked = json.loads(answer)["dependencies"]
        skipped = sorted(each["name"] for each in asked if "skip_reason" in each)
        holes = [
            f"{each['name']} {each['version']}: {hole['id']}, mended in {', '.join(hole['fix_versions']) or 'none'}"
            for each in asked
            for hole in each.get("vulns", [])
        ]
    except (ValueError, KeyError, TypeError):
        return NO_ANSWER, ["NOT AUDITED: the advisory service could not be reached, or did not answer"]
    if skipped or not asked:
        some = f"{len(skipped)} of {len(asked)} packages ({', '.join(skipped[:5])}...)"
        return NO_ANSWER, [
            *holes,
            f"NOT AUDITED: the advisory service could not be reached, or knows nothing of {some}",
        ]
    return (HOLES if holes else NO_HOLES), holes or [f"no known holes in {len(asked)} packages"]


def main(path: str) -> int:
    """Print what an answer in a file comes to; return the exit code."""
    code, lines = verdict(Path(path).read_text())
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
