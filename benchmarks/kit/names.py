"""Names of cases on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Collection

__all__ = ["wanted_names"]


def wanted_names(parser: argparse.ArgumentParser, only: str, names: Collection[str]) -> list[str]:
    """Return the names in ``only``, a list with commas. Exit with the parser's error if one is not among ``names``."""
    selected_names = only.split(",")
    unknown = sorted(set(selected_names) - set(names))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(names)}")
    return selected_names
