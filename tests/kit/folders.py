"""Folders of this checkout."""

from __future__ import annotations

from pathlib import Path

__all__ = ["APPS", "CHECKOUT", "DATA"]

CHECKOUT = Path(__file__).resolve().parents[2]
DATA = CHECKOUT / "tests" / "data"
APPS = CHECKOUT / "tests" / "kit" / "streams" / "apps"
