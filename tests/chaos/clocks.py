"""Clocks of hosts that can be set: a small library in front of libc, built once per run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["can_tell_clocks", "clock_environment", "set_clock"]

SOURCE = Path(__file__).with_name("clock.c")
BUILD_TIMEOUT_SECONDS = 60.0


def can_tell_clocks() -> bool:
    """Tell whether there is a C compiler."""
    return shutil.which("cc") is not None


def clock_environment(clock: Path) -> Mapping[str, str]:
    """Return what a process is started with, and all below it, to live by the clock of a file."""
    library = clock.with_name("clock.so")
    clock.parent.mkdir(parents=True, exist_ok=True)
    if not library.exists():
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_TIMEOUT_SECONDS)
    clock.write_bytes(bytes(8))
    return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(clock)}


def set_clock(clock: Path, seconds: float) -> None:
    """Move a clock that far from this machine's: written in place, for it is mapped."""
    with clock.open("r+b") as file:
        file.write(int(seconds * 1e9).to_bytes(8, sys.byteorder, signed=True))
