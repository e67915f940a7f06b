"""Local copies are mapped within a limited address space, which ``spark.executor.pyspark.memory`` sets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.folders import CHECKOUT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits the addresses of a process, which needs Linux")

MIB = 1 << 20
IN_CHILD = """
import json, resource, sys
from pathlib import Path
from riffle_spark.errors import ConfigError
from riffle_spark.state.copies import part_files
from riffle_spark.state.copies.mapped_bytes import NoRoomForCopies
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.worker.slot_errors import as_riffle_error

folder, more, tasks, together = Path(sys.argv[1]), *map(int, sys.argv[2:])
size = 8 << 20
(folder / "stacks").mkdir()
for number in range(tasks * together):
    with (folder / "stacks" / f"{number}").open("wb") as file:
        file.truncate(size)
zeros = part_files.part_codec.checksum(bytes(size))
own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
if more:
    resource.setrlimit(resource.RLIMIT_AS, (own + more, -1))
told, most = [], 0
try:
    for task in range(tasks):
        files = part_files.PartFiles(folder)
        for number in range(task * together, (task + 1) * together):
            files.data(StackedPart(f"stacks/{number}", 0, size, zeros, 1, 1))
            most = max(most, part_files.mapped_bytes())
except MemoryError as error:
    told = [type(error).__name__, str(as_riffle_error(error, folder))]
print(json.dumps([most, told]))
"""


def in_child(folder: Path, more: int, tasks: int, together: int) -> tuple[int, list[str]]:
    """Open files of 8 MiB in a process that may use ``more`` additional bytes of addresses (0: no limit). Each task
    opens ``together`` files. Return the maximum of mapped bytes, and the class and text of the error.
    """
    command = [sys.executable, "-c", IN_CHILD, str(folder), str(more), str(tasks), str(together)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=100, check=True)
    most, error = json.loads(done.stdout)
    return most, error


def test_files_of_earlier_tasks_are_unmapped_to_free_addresses(tmp_path: Path) -> None:
    """With 200 MiB of addresses, 40 tasks of 16 MiB each succeed, because files of earlier tasks are unmapped."""
    most, error = in_child(tmp_path, 200 * MIB, 40, 2)
    assert error == []
    assert 80 * MIB <= most <= 100 * MIB


def test_the_error_for_unmappable_copies_does_not_advise_fewer_rows(tmp_path: Path) -> None:
    """If the copies of one task do not fit, the error names the copies and the setting, and advises no fewer rows."""
    most, (kind, text) = in_child(tmp_path, 100 * MIB, 1, 40)
    assert most < 100 * MIB
    assert kind == "NoRoomForCopies"
    assert "RIFFLE-0485" in text
    assert "spark.executor.pyspark.memory" in text
    assert "maxOffsetsPerTrigger" not in text


GROWTH_IN_CHILD = """
import resource
from pathlib import Path
own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (own + (3 << 30), -1))
import riffle_spark
import pyarrow.compute
before = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
rows = pyarrow.table({"a": list(range(1000)), "b": ["x"] * 1000}).group_by("b").aggregate([("a", "sum")])
print(int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() - before)
"""


def test_arrow_does_not_reserve_addresses_if_they_are_limited() -> None:
    """With limited addresses, Arrow uses an allocator that does not reserve 1 GiB for its first value."""
    command = [sys.executable, "-c", GROWTH_IN_CHILD]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=100, check=True)
    assert int(done.stdout) < 256 * MIB


FETCHES_IN_CHILD = """
import json, resource, sys, threading, time
from pathlib import Path
from riffle_spark.state.copies.mapped_bytes import reserve_few_addresses
from riffle_spark.state.restore.prefetch import run_ahead
from riffle_spark.state.restore.reader import in_parallel

own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (own + int(sys.argv[1]), -1))
reserve_few_addresses()
names = set()
def work(item):
    names.add(threading.current_thread().name)
    time.sleep(0.02)
    return -item
answers = in_parallel(work, range(40))
answers += [data.result() for _, data in run_ahead(work, range(40), lambda item: 1)]
print(json.dumps([answers, sorted(names)]))
"""


@pytest.mark.parametrize(("room", "in_own_threads"), [(80 * MIB, False), (480 * MIB, True)])
def test_fetches_use_fewer_threads_if_addresses_are_limited(room: int, in_own_threads: bool) -> None:
    """Fetches use fewer threads, or only the calling thread, if twelve stacks of 8 MiB and an arena do not fit."""
    command = [sys.executable, "-c", FETCHES_IN_CHILD, str(room)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    answers, names = json.loads(done.stdout)
    assert answers == [-item for item in range(40)] * 2
    assert ("MainThread" not in names) == in_own_threads


REFUSED_THREAD_IN_CHILD = """
import resource, threading
from pathlib import Path
from riffle_spark.worker.slot_errors import as_riffle_error
own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (own + (1 << 20), -1))
try:
    threading.Thread(target=print).start()
except RuntimeError as error:
    print(as_riffle_error(error, None))
"""


def test_a_thread_that_cannot_start_is_an_error_that_names_the_setting() -> None:
    """A thread that cannot start is an error that names the setting that limits addresses."""
    command = [sys.executable, "-c", REFUSED_THREAD_IN_CHILD]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=100, check=True)
    assert "A Python worker cannot start a thread" in done.stdout
    assert "Raise spark.executor.pyspark.memory" in done.stdout
