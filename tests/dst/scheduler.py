"""Actors that take turns: each is a thread that runs only while it holds the baton, which is passed on at random.

Everything between two steps is atomic, and one seed gives one history. An actor stops at its steps (``step``), at which
faults may occur, at waits and at sleeps. Time advances when all actors wait.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections import Counter, deque
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from riffle_spark.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Actor", "Killed", "Process", "Scheduler", "TurnLock"]

STEP_SECONDS = 0.001
FOREVER = 1e15
LAST_STEPS = 120
MOST_STEPS = 400_000


class Killed(BaseException):
    """The actor's process has ended. Clean-up code of the actor has no effect."""


class Process:
    """A driver's program or an executor. All its actors end together."""

    def __init__(self, name: str, executor: str = "") -> None:
        self.name = name
        self.executor = executor
        self.alive = True
        self.asleep_until = self.slept = 0.0

    def sleep(self, second: float, seconds: float) -> None:
        """Make its machine sleep: its actors and its monotonic clocks stop."""
        self.wake(second)
        self.asleep_until = second + seconds
        self.slept = self.slept + seconds

    def wake(self, second: float) -> None:
        """Wake its machine up, if it sleeps."""
        self.slept -= max(0.0, self.asleep_until - second)
        self.asleep_until = second


class Actor:
    """One thread of a process. Its steps are counted by ``kind``."""

    def __init__(self, name: str, kind: str, process: Process, work: Callable[[], object]) -> None:
        self.name = name
        self.kind = kind
        self.process = process
        self.work = work
        self.until = 0.0
        self.ready: Callable[[], bool] | None = None
        self.slow = 0.0
        self.quiet = 0
        self.killed = self.done = False
        self.result: object = None
        self.error: BaseException | None = None
        self.wrote: str | None = None
        """The file that the actor has written since its previous step. If it dies, any part of the bytes may remain."""
        self.wrote_from = 0
        """The size of that file before. In a journal, earlier entries remain."""
        self.written: set[str] = set()
        """The files that the actor wrote. It need not check them again."""
        self.met: set[str] = set()
        """The kinds of faults that the actor met, and the objects whose calls failed or whose bytes were damaged."""
        self.epoch = -1
        """The newest epoch of the records that it has read."""
        self.unanswered: tuple[str, int] = ("", 0)
        """The lasting fault of the store for this actor, and the number of its remaining calls."""
        self.saw_free = -1
        """The step at which it last found that a record's number is free."""
        self.thread: threading.Thread | None = None
        self.gate = threading.Lock()
        self.gate.acquire()
        self.returns_to: Actor | None = None
        self.weight = 1.0
        self.began = 0.0

    def wakes(self, second: float) -> bool:
        """Return whether it can continue now: its condition is true or its time is over."""
        if self.process.asleep_until > second:
            return False
        return self.until <= second or (self.ready is not None and self.ready())

    def time(self, second: float) -> float:
        """Return the time at which it can continue without a condition."""
        return max(self.until, second) if self.process.asleep_until <= second else self.process.asleep_until


class Scheduler:
    """Runs actors until the first one, the conductor, ends or a violation is found (``failure``).

    ``at_step`` is called at each step and returns its fault. ``switches`` is the share of steps at which another actor
    continues. ``died`` is called for actors that are killed.
    """

    def __init__(self, chance: random.Random, clock: ManualClock, switches: float) -> None:
        self.chance = chance
        self.clock = clock
        self.switches = switches
        self.at_step: Callable[[Actor, str], str | None] = lambda *_: None
        self.died: Callable[[Actor], object] = lambda *_: None
        self.actors: list[Actor] = []
        self.seen: Counter[str] = Counter()
        self.last: deque[str] = deque(maxlen=LAST_STEPS)
        self.count = self.digest = 0
        self.failure: BaseException | None = None
        self._current: Actor | None = None
        self._main = threading.Lock()
        self._main.acquire()
        self._conductor: Actor | None = None
        self._over = False

    @property
    def now(self) -> float:
        """The simulated time in seconds."""
        return self.clock.seconds()

    def spawn(self, name: str, kind: str, process: Process, work: Callable[[], object]) -> Actor:
        """Add an actor. It starts when it is chosen."""
        actor = Actor(name, kind, process, work)
        actor.weight = self.chance.choice([1, 1, 4, 20])
        self.actors.append(actor)
        return actor

    def run(self, conduct: Callable[[], object]) -> None:
        """Run the conductor and all actors until the conductor ends. Raises the violation that was found."""
        self._conductor = self.spawn("conductor", "conductor", Process("conductor"), conduct)
        self._hand(self._conductor)
        self._main.acquire()
        self._over = True
        for actor in list(self.actors):
            self.kill(actor)
        if self.failure is not None:
            raise self.failure if isinstance(self.failure, Exception) else AssertionError(str(self.failure))

    def mine(self) -> Actor | None:
        """Return the current actor, ``None`` in other threads and while the actor is quiet."""
        actor = self._current
        if actor is None or actor.quiet or actor.thread is not threading.current_thread():
            return None
        return actor

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Run a block whose operations are no steps."""
        actor = self._current if self.mine() else None
        if actor is not None:
            actor.quiet += 1
        try:
            yield
        finally:
            if actor is not None:
                actor.quiet -= 1

    def step(self, label: str) -> str | None:
        """Stop at a step: another actor may continue, and a fault may occur. Return the fault."""
        actor = self.mine()
        if actor is None:
            return None
        if actor.killed:
            raise Killed
        self.count += 1
        if self.count > MOST_STEPS:
            self.broke(AssertionError(f"the query did not end in {MOST_STEPS} steps"))
        name = f"{actor.kind}: {label}"
        self.seen[name] += 1
        line = f"{actor.name} {label}"
        self.last.append(line)
        self.digest = zlib.crc32(line.encode(), self.digest)
        self.clock.advance(STEP_SECONDS)
        befalls = self.at_step(actor, label)
        actor.wrote = None
        if actor.slow:
            self.sleep(actor.slow)
        elif self.chance.random() < self.switches:
            self._switch(actor)
        return befalls

    def sleep(self, seconds: float) -> None:
        """Continue after at least this time."""
        actor = self.mine()
        if actor is None:
            return
        actor.until = self.now + seconds
        self._switch(actor)

    def hang(self) -> None:
        """Continue only when another actor releases this one."""
        actor = self.mine()
        if actor is not None:
            actor.until = FOREVER
            self._switch(actor)

    def wait(self, ready: Callable[[], bool], seconds: float = FOREVER) -> bool:
        """Wait for a condition, at most this many seconds. Return whether it is true."""
        actor = self.mine()
        if actor is None or ready():
            return ready()
        actor.ready = ready
        actor.until = self.now + seconds
        try:
            self._switch(actor)
        finally:
            actor.ready = None
        return ready()

    def broke(self, failure: BaseException) -> None:
        """Record a violation and end everything. Raises ``Killed`` in an actor."""
        self.failure = self.failure or failure
        actor = self._current
        if actor is not None and actor.thread is threading.current_thread():
            actor.killed = True
            raise Killed

    def kill(self, actor: Actor) -> None:
        """End an actor at its current step. Nothing that it does while it ends has an effect.

        Raises ``Killed`` in that actor.
        """
        if actor.done:
            return
        if not actor.killed:
            actor.killed = True
            with self.quiet():
                self.died(actor)
        if actor is self._current:
            raise Killed
        if actor.thread is None:
            self._leave(actor)
            return
        previous = self._current
        me = previous if previous is not None and previous.thread is threading.current_thread() else None
        actor.returns_to = me
        self._current = actor
        actor.gate.release()
        if me is None:
            self._main.acquire()
        else:
            me.gate.acquire()
        self._current = previous

    def _switch(self, actor: Actor) -> None:
        chosen = self._choose()
        if chosen is None:
            self.broke(AssertionError("deadlock: each actor waits for another one"))
        elif chosen is not actor:
            self._hand(chosen)
            actor.gate.acquire()
        actor.until = 0.0
        if actor.killed:
            raise Killed

    def _choose(self) -> Actor | None:
        while True:
            second = self.now
            able = [actor for actor in self.actors if actor.wakes(second)]
            if able:
                return able[0] if len(able) == 1 else self.chance.choices(able, [actor.weight for actor in able])[0]
            times = [time for time in (actor.time(second) for actor in self.actors) if time < FOREVER]
            if not times:
                return None
            self.clock.advance(max(min(times) - second, STEP_SECONDS) + STEP_SECONDS)

    def _hand(self, actor: Actor) -> None:
        self._current = actor
        if actor.thread is None:
            actor.thread = threading.Thread(target=self._run, args=[actor], name=actor.name, daemon=True)
            actor.thread.start()
        else:
            actor.gate.release()

    def _run(self, actor: Actor) -> None:
        try:
            if not actor.killed:
                actor.result = actor.work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - nothing may be lost
            actor.error = error
            self.failure = self.failure or error
        self._leave(actor)
        if actor.killed and actor.returns_to is not None:
            actor.returns_to.gate.release()
            return
        ends = self._over or self._conductor is actor or self.failure is not None or not self.actors
        chosen = None if ends else self._choose()
        if chosen is None:
            if not ends:
                self.failure = AssertionError("deadlock: each actor waits for another one")
            self._current = None
            self._main.release()
        else:
            self._hand(chosen)

    def _leave(self, actor: Actor) -> None:
        actor.done = True
        if actor in self.actors:
            self.actors.remove(actor)


class TurnLock:
    """A lock among actors. Waiting and releasing let other actors continue. Outside of a run it has no effect."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held: Actor | None = None

    def __enter__(self) -> None:
        actor = self._scheduler.mine()
        if actor is not None:
            self._scheduler.wait(lambda: self._held is None or self._held.done)
            self._held = actor

    def __exit__(self, *_: object) -> None:
        self._held = None
        self._scheduler.step("lock left")
