"""Packages of npm that tests need, in the exact versions of a lock file below ``requirements``."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from apps.demo.cache import cache_folder, one_at_a_time
from tests.kit.folders import CHECKOUT

__all__ = ["ensure_npm"]

INSTALL_SECONDS = 600


def ensure_npm(name: str) -> Path:
    """Return the folder ``node_modules`` with the packages of ``requirements/NAME/package-lock.json``.

    The first call installs the packages with npm in the cache folder. Scripts of the packages do not run.
    """
    locked = CHECKOUT / "requirements" / name
    lock = (locked / "package-lock.json").read_bytes()
    folder = cache_folder() / name / hashlib.sha256(lock).hexdigest()[:16]
    complete = folder / "complete"
    with one_at_a_time(folder):
        if not complete.exists():
            npm = shutil.which("npm")
            assert npm, f"The packages of requirements/{name} need Node.js 20 or later and npm on the PATH"
            for file in ("package.json", "package-lock.json"):
                shutil.copyfile(locked / file, folder / file)
            command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            subprocess.run(command, cwd=folder, check=True, timeout=INSTALL_SECONDS)
            complete.touch()
    return folder / "node_modules"
