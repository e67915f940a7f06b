"""The memory use of a worker, and what its container and machine have left."""

from __future__ import annotations

from pathlib import Path

import pytest

from riffle_spark.worker.memory_use import memory_use

MIB = 2**20
PAGE = 4096


def system(folder: Path, **files: str) -> Path:
    """Return a folder like `/` of a system with 1 GiB left, on which a worker uses 200 MiB."""
    usual = {
        "proc/self/statm": f"{900 * MIB // PAGE} {200 * MIB // PAGE} 10 1 0 9 0\n",
        "proc/meminfo": f"MemTotal: 8000 kB\nMemFree: 1 kB\nMemAvailable: {1024 * 1024} kB\n",
        "proc/self/cgroup": "9:name=systemd:/\n4:memory:/box\n0::/pod/one\n",
    }
    for name, text in {**usual, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def group(where: str, version: int, limit: str, used: int, idle: int) -> dict[str, str]:
    """Return the files of a control group."""
    names = ("memory.max", "memory.current", "inactive_file")
    names = names if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    stat = f"anon 5\n{names[2]} {idle}\nslab 3\n"
    return {f"{where}/{names[0]}": limit, f"{where}/{names[1]}": f"{used}\n", f"{where}/memory.stat": stat}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, 1024),
        (group("sys/fs/cgroup/pod/one", 2, str(700 * MIB), 500 * MIB, 100 * MIB), 300),
        (group("sys/fs/cgroup/pod/one", 2, "max", 500 * MIB, 0), 1024),
        (group("sys/fs/cgroup", 2, str(700 * MIB), 650 * MIB, 0), 50),
        (group("sys/fs/cgroup/memory/box", 1, str(700 * MIB), 600 * MIB, 0), 100),
        (group("sys/fs/cgroup/memory/box", 1, str(2**63 - PAGE), 600 * MIB, 0), 1024),
        (group("sys/fs/cgroup/memory", 1, str(300 * MIB), 300 * MIB, 0), 0),
    ],
)
def test_free_memory_is_the_minimum_of_machine_and_control_groups(
    tmp_path: Path, files: dict[str, str], left: int
) -> None:
    """The memory left is the minimum over the machine and its control groups. Cached files count as left."""
    assert memory_use(system(tmp_path, **files)) == (200 * MIB, left * MIB)


def test_a_system_without_memory_files_reports_zero(tmp_path: Path) -> None:
    """On a system without these files, both figures are 0."""
    assert memory_use(tmp_path) == (0, 0)
    assert memory_use(system(tmp_path, **{"proc/self/statm": "what"})) == (0, 0)


def test_a_worker_reports_its_own_memory() -> None:
    """The figures of this process are not 0."""
    used_bytes, left = memory_use()
    assert used_bytes > 10 * MIB
    assert left > 0
