"""Read the JSON of pip-audit for ``./run audit``: which packages were audited, and which have known vulnerabilities."""

from __future__ import annotations

import json
import sys
from pathlib import Path

__all__ = ["main", "verdict"]

NO_HOLES = 0
HOLES = 1
NO_ANSWER = 2


def verdict(answer: str) -> tuple[int, list[str]]:
    """Return the exit code of an audit and the lines to print.

    A package without an answer makes the audit incomplete.
    """
    try:
        dependencies = json.loads(answer)["dependencies"]
        skipped = sorted(dependency["name"] for dependency in dependencies if "skip_reason" in dependency)
        holes = [
            f"{package['name']} {package['version']}: {hole['id']}, fix: {', '.join(hole['fix_versions']) or 'none'}"
            for package in dependencies
            for hole in package.get("vulns", [])
        ]
    except (ValueError, KeyError, TypeError):
        return NO_ANSWER, ["NOT AUDITED: the advisory service could not be reached, or did not answer"]
    if skipped or not dependencies:
        gaps = f"{len(skipped)} of {len(dependencies)} packages ({', '.join(skipped[:5])}...)"
        return NO_ANSWER, [
            *holes,
            f"NOT AUDITED: the advisory service could not be reached, or knows nothing of {gaps}",
        ]
    return (HOLES if holes else NO_HOLES), holes or [f"no known holes in {len(dependencies)} packages"]


def main(path: str) -> int:
    """Print the result of an audit that a file holds, and return its exit code."""
    code, lines = verdict(Path(path).read_text())
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
