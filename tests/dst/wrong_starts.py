"""A query that is started on the root of another one, or with the wrong checkpoint, is refused."""

from __future__ import annotations

from typing import Any

from riffle_spark.errors import RiffleError
from riffle_spark.protocol.ports import IncomingBatch
from tests.dst.cluster import SteppedWork
from tests.dst.dispatched import parted

__all__ = ["WrongStarts"]

_WRONG: tuple[dict[str, Any], ...] = (
    {"version": 1, "query_id": "another query"},
    {"version": 0, "query_id": "another query"},
    {"version": 0, "offsets": "others"},
    {"version": 0, "offsets": None, "input_digest": "other"},
    {"version": -1, "offsets": "others"},
    {"version": 20, "offsets": "others"},
    {"version": 1, "offsets_before": "those of another line"},
)
"""The wrong fields of a batch. ``version`` is relative to the newest one."""


class WrongStarts:
    """An operator who starts queries on the wrong root. ``world`` is the schedule."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def begin(self) -> None:
        """Start a wrong query, if there is state."""
        world = self._world
        with world.scheduler.quiet():
            world.log_seen.look()
        records = world.log_seen.records
        newest = records[max(records)] if records else None
        if newest is None or newest.version < 0:
            return
        name = f"wrong start {len(world.programs)}"
        wrong = world.chance.choice(_WRONG)
        version = max(0, newest.version + wrong["version"])
        incoming = world.incoming(**{"query_id": newest.query_id, **wrong, "version": version, "run_id": name})
        program = world.program(name)
        world.say(f"{name}: batch {version}, {wrong}")
        world.scheduler.spawn(f"{name} batch", "driver", program, lambda: self._run(program, incoming))

    def _run(self, program: Any, incoming_batch: IncomingBatch) -> None:
        """Run the wrong batch, which must be refused.

        If a rollback has made it the right next batch meanwhile, the process ends before it runs.
        """
        world = self._world
        driver = program.driver

        def reached(label: str) -> None:
            tail = driver._log.tail  # private: the last record that the driver knows
            if label == "before run":
                is_next = (tail.query_id, tail.version + 1) == (incoming_batch.query_id, incoming_batch.version)
                if not is_next or (incoming_batch.offsets_before and tail.offsets):
                    world.scheduler.broke(AssertionError(f"{incoming_batch} is run after batch {tail.version}"))
                world.stop(program)

        driver._reached = reached  # private: the batch is stopped here
        job = world.lines.jobs[world.remedies.line]
        version = min(incoming_batch.version, world.last)
        work = SteppedWork(
            world.cluster, parted(job.batches[0]), job.operators_of(version), world.sinks, job.initial_of(version)
        )
        try:
            report = driver.process(incoming_batch, job.operators_of(version), work)
        except RiffleError as error:
            world.say(f"{program.name}: {type(error).__name__}: {str(error)[:150]}")
        else:
            world.scheduler.broke(AssertionError(f"{incoming_batch} was accepted with the decision {report.decision}"))
        world.stop(program)
