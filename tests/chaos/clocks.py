"""Set the clocks of hosts with a small library in front of libc, which is built once per run."""

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
    """Return whether this machine has a C compiler."""
    return shutil.which("cc") is not None


def clock_environment(clock: Path) -> Mapping[str, str]:
    """Return the environment variables by which a process and its children use the clock in a file."""
    library = clock.with_name("clock.so")
    clock.parent.mkdir(parents=True, exist_ok=True)
    if not library.exists():
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_TIMEOUT_SECONDS)
    clock.write_bytes(bytes(8))
    return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(clock)}


def set_clock(clock: Path, seconds: float) -> None:
    """Set a clock to this offset from the machine's clock. The file is written in place, because it is mapped."""
    with clock.open("r+b") as file:
        file.write(int(seconds * 1e9).to_bytes(8, sys.byteorder, signed=True))
