"""``./run dst --schedules N [--seed S] [--json]``: play random histories of a query with faults.

Each seed plays one schedule. A failure is printed with its history and the command that replays it. ``--seed S`` plays
one schedule, or ``--schedules`` of them from there on.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.dst.coverage import Coverage, ScheduleResult, aims_for
from tests.dst.faults import Aim
from tests.dst.players import Players
from tests.dst.schedule import Schedule

__all__ = ["main"]

MEMORY = Path("/dev/shm")
MOST_SECONDS = 900.0
"""The limit for one schedule. A process that exceeds it prints its stacks and ends. The slowest take seconds."""
INTERRUPTED = 130


@dataclass(frozen=True)
class _Task:
    seed: int
    aims: tuple[Aim, ...]
    job: str
    tell: bool


def main(arguments: Sequence[str]) -> int:
    """Play schedules; return 1 if one of them fails."""
    options = _asked(arguments)
    coverage = Coverage()
    code = 0
    try:
        with (
            _folder(MEMORY if os.access(MEMORY, os.W_OK) else None) as folder,
            closing(_play_results(options, coverage, folder)) as all_told,
        ):
            for result in all_told:
                coverage.add(result)
                if result.output:
                    print(result.output, file=sys.stderr if result.failure else sys.stdout)
                if result.failure and not options.go_on:
                    break
    except KeyboardInterrupt:
        code = INTERRUPTED
    print(
        json.dumps(coverage.to_json())
        if options.json
        else f"{coverage.table()}\n{json.dumps(coverage.to_json(), indent=1)}"
    )
    return 1 if coverage.failures or (options.cells and coverage.empty()) else code


def _play_results(
    namespace: argparse.Namespace, coverage: Coverage, folder: Path
) -> Generator[ScheduleResult, None, None]:
    """Yield the result of each schedule.

    A single schedule is played in this process, for a debugger. Others are played in child processes.
    """
    aims = tuple(map(Aim.read, namespace.aim))
    count = namespace.schedules if namespace.schedules is not None else 1 if namespace.seed is not None else 100
    until = time.monotonic() + namespace.seconds

    def task(number: int) -> _Task:
        number += namespace.seed or 0
        seed, chosen = (number, aims) if aims or count == 1 else aims_for(coverage, number)
        return _Task(seed, chosen, namespace.job, namespace.history)

    if count == 1:
        yield _played(folder, task(0))
        return
    players = Players[_Task, ScheduleResult](namespace.processes, partial(_played, folder), _died)
    try:
        yield from players.answers(task, count, lambda: time.monotonic() > until)
    finally:
        players.end()


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    if "--planted" in arguments:
        parser.error("--planted has moved. Run ./run planted --schedules 500 [NAME ...]")
    options = parser.parse_args(arguments)
    for name in ("schedules", "processes", "seconds"):
        number = getattr(options, name)
        if number is not None and not number >= 1:
            parser.error(f"--{name}: {number} is less than 1, so no schedule would be played")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./run dst", description=__doc__)
    parser.add_argument("--schedules", type=int, help="how many schedules to play (100 without --seed)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="how many processes play in parallel (%(default)s)"
    )
    parser.add_argument("--seed", type=int, help="the first seed. Without --schedules only this seed is played")
    parser.add_argument(
        "--aim",
        action="append",
        default=[],
        metavar="FAULT@STEP@N",
        help="a fault at a step, as a failed schedule prints it",
    )
    parser.add_argument("--job", default="", help="play only this kind of query")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no schedule after this time")
    parser.add_argument("--cells", action="store_true", help="fail if a fault never met a possible step")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first schedule that fails")
    parser.add_argument("--history", action="store_true", help="also print the events of schedules that pass")
    return parser


def _played(base: Path, task: _Task) -> ScheduleResult:
    """Play a schedule. Return its result."""
    schedule = None
    failure = ""
    with _bounded(), _folder(base) as folder:
        try:
            schedule = Schedule(task.seed, folder, aims=task.aims, job=task.job)
            schedule.run()
        except Exception as error:  # noqa: BLE001 - a bug shows in any way
            failure = f"{type(error).__name__}: {error}"[:2000]
    history = schedule.history if schedule else []
    output = "\n".join(history) if task.tell or failure else ""
    if failure:
        last = [f"    {line}" for line in list(schedule.scheduler.last)[-30:]] if schedule else []
        output = "\n".join([output, "its last steps:", *last, failure, _replay(task)])
        failure = f"seed {task.seed}: {failure[:200]}"
    if schedule is None:
        return ScheduleResult(task.seed, failure=failure, output=output)
    return ScheduleResult(
        task.seed, tuple(schedule.faults.hit), dict(schedule.disturbed), dict(schedule.faults.met), failure, output
    )


def _died(task: _Task, code: int | None) -> ScheduleResult:
    """Return the result of a schedule whose process ended or did not respond."""
    reason = f"its process ended with code {code} before the schedule, or hung for {MOST_SECONDS:.0f} s"
    return ScheduleResult(
        task.seed, failure=f"seed {task.seed}: {reason}", output=f"seed {task.seed}: {reason}\n{_replay(task)}"
    )


def _replay(task: _Task) -> str:
    job = f" --job '{task.job}'" if task.job else ""
    return f"replay: ./run dst --seed {task.seed}{job}" + "".join(f" --aim '{aim}'" for aim in task.aims)


@contextmanager
def _folder(base: Path | None) -> Iterator[Path]:
    """Yield a temporary folder, in memory if possible."""
    folder = Path(tempfile.mkdtemp(prefix="riffle-dst-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _bounded() -> Iterator[None]:
    """End this process if it hangs, and print the stack of each thread."""
    faulthandler.dump_traceback_later(MOST_SECONDS, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the iteration order of sets is part of a history
        command = [sys.executable, "-m", "tests.dst", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - this program, once more
    signal.signal(signal.SIGTERM, _interrupted)  # so that figures are printed and child processes end
    sys.exit(main(sys.argv[1:]))
