"""Processes that play schedules in parallel. Results have the order of their numbers.

So a run is the same for any number of processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

__all__ = ["AHEAD", "Players"]

AHEAD = 16
"""The aims of a schedule depend on all results up to this many before it. More processes would be idle."""
RENEWED = 100
"""A process is replaced after this many tasks, which bounds its memory."""
_FORK = multiprocessing.get_context("fork")

Task = TypeVar("Task")
Answer = TypeVar("Answer")


@dataclass
class _Player(Generic[Task]):
    process: BaseProcess
    pipe: Connection
    plays: tuple[int, Task] | None = None
    played: int = 0


class Players(Generic[Task, Answer]):
    """Processes that ``play`` tasks. ``died`` returns the result of a task whose process ended with a code."""

    def __init__(
        self, processes: int, play: Callable[[Task], Answer], died: Callable[[Task, int | None], Answer]
    ) -> None:
        self._play = play
        self._died = died
        self._wanted = processes
        self._players: list[_Player[Task]] = []

    def answers(self, task: Callable[[int], Task], count: int, is_over: Callable[[], bool]) -> Iterator[Answer]:
        """Yield the answers to ``count`` tasks in order, or fewer if ``is_over`` returns true before.

        A task is created when the answer ``AHEAD`` numbers before it was yielded and the next one is requested.
        """
        waiting = deque((number, task(number)) for number in range(min(AHEAD, count)))
        answered: dict[int, Answer] = {}
        self._players = [self._begun(index) for index in range(min(self._wanted, count, AHEAD))]
        for number in range(count):
            while number not in answered:
                if is_over():
                    waiting.clear()
                self._hand_out(waiting)
                if all(player.plays is None for player in self._players):
                    return
                self._hear(answered)
            yield answered.pop(number)
            if number + AHEAD < count:
                waiting.append((number + AHEAD, task(number + AHEAD)))

    def _hand_out(self, waiting: deque[tuple[int, Task]]) -> None:
        for player in self._players:
            if player.plays is None and waiting:
                player.plays = waiting.popleft()
                with suppress(ConnectionError):  # the pipe of an ended process is handled in _hear
                    player.pipe.send(player.plays[1])

    def _hear(self, answered: dict[int, Answer]) -> None:
        """Wait for an answer. A process that ended is replaced."""
        ready = wait([player.pipe for player in self._players if player.plays is not None])
        for index, player in enumerate(self._players):
            if player.pipe in ready and player.plays is not None:
                number, task = player.plays
                try:
                    answered[number] = player.pipe.recv()
                    player.plays = None
                    player.played += 1
                except (EOFError, ConnectionError):
                    player.process.join()
                    answered[number] = self._died(task, player.process.exitcode)
                if player.plays is not None or player.played == RENEWED:
                    _end(player)
                    self._players[index] = self._begun(index)

    def _begun(self, index: int) -> _Player[Task]:
        own_end, its = _FORK.Pipe()
        inherited = [own_end, *(player.pipe for player in self._players)]
        process = _FORK.Process(target=_works, args=[its, inherited, index, self._play], daemon=True)
        process.start()
        its.close()
        return _Player(process, own_end)

    def end(self) -> None:
        """Kill all processes."""
        for player in self._players:
            _end(player)


def _end(player: _Player[Task]) -> None:
    player.process.kill()
    player.process.join()
    player.pipe.close()


def _works(pipe: Connection, inherited: list[Connection], index: int, play: Callable[[Task], Answer]) -> None:
    """Play tasks until the pipe is closed.

    The pipes of other processes are closed first, so that their end is noticed. The process runs on one core, because
    threads that take turns are slow on two.
    """
    for connection in inherited:
        connection.close()
    if hasattr(os, "sched_setaffinity"):  # only on Linux
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[index % len(cores)]})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted command ends its processes itself
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(play(task))
