"""Operators who make requests through the mailbox. Each request gets one answer."""

from __future__ import annotations

import random
from typing import Any

from riffle_spark.errors import ConfigError, RiffleError
from riffle_spark.protocol.batch.mailbox import MailboxRequest, add_request, last_number, read_mailbox
from riffle_spark.protocol.batch.stored_requests import read_requests
from riffle_spark.state.log.record import Record
from tests.dst.scheduler import Process

__all__ = ["SAVEPOINTS", "Mailers"]

EXPIRES_MS = [1, 60_000, 3_600_000, 3_600_000, 3_600_000]
SAVEPOINTS = ["release", "monday", "before-move"]
CONTROL_SHARE = 0.6
"""The share of queries that read requests."""


class Mailers:
    """Writers of the mailbox, each in a separate process. ``world`` is the schedule."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._chance = random.Random(f"{world.seed}/mailers")
        self._begun = 0
        self._checked: set[str] = set()

    @staticmethod
    def settings(seed: int) -> dict[str, object]:
        """Return the setting that makes the query read requests, or not."""
        is_on = random.Random(f"{seed}/control").random() < CONTROL_SHARE
        return {"control": "on" if is_on else "off"}

    def begin(self) -> None:
        """Start one operator who makes a request, or two at the same time."""
        world = self._world
        if world.settings.control != "on" or not world.log_seen.records:
            return
        for _ in range(self._chance.choice([1, 1, 2])):
            self._begun += 1
            name = f"mailer {self._begun}"
            world.scheduler.spawn(name, "mailer", Process(name), self._make_request(name))

    def _make_request(self, name: str) -> Any:
        world = self._world
        command, arguments = self._drawn()
        now_ms = world.clock.wall_ms()
        expires_ms = now_ms + self._chance.choice(EXPIRES_MS)
        request = MailboxRequest(0, name, command, arguments, "ann", name, now_ms, expires_ms)

        def make() -> None:
            try:
                new_request = add_request(world.stepped, request, self._answered)
            except ConfigError as error:
                if error.id != "RIFFLE-1351":  # a full mailbox is allowed
                    world.check_expected(error)
            except RiffleError as error:
                world.say(f"{name}: {type(error).__name__}")
            else:
                world.say(f"{name} requests {command} {arguments}, number {new_request.number}")

        return make

    def _drawn(self) -> tuple[str, dict[str, object]]:
        executors = [executor.id for executor in self._world.cluster.executors()]
        member = self._chance.choice([*executors, "absent"])
        key_group = self._chance.randrange(7)
        name = self._chance.choice(SAVEPOINTS)
        return self._chance.choice(
            [
                ("drain", {"member": member}),
                ("undrain", {"member": member}),
                ("undrain", {"member": member}),
                ("pin", {"key_group": key_group, "member": member}),
                ("unpin", {"key_group": key_group}),
                ("rebalance", {}),
                ("pause", {}),
                ("create_savepoint", {"name": name}),
                ("create_savepoint", {"name": name, **self._record()}),
                ("delete_savepoint", {"name": name}),
            ]
        )

    def _record(self) -> dict[str, object]:
        """Return the number and commit id of a record that the newest one promises, or that it no longer promises."""
        with self._world.scheduler.quiet():
            self._world.log_seen.look()
        records = self._world.log_seen.records
        newest = records[max(records)]
        record = records[self._chance.randint(max(newest.promised - 1, 0), newest.sequence)]
        return {"sequence": record.sequence, "commit_id": record.commit_id}

    def _answered(self) -> int:
        """Return the number of the newest answer in the log."""
        with self._world.scheduler.quiet():
            self._world.log_seen.look()
        records = self._world.log_seen.records
        return last_number(read_requests(records[max(records)].orders).answers) if records else 0

    def check(self) -> None:
        """Compare each new record with the previous one."""
        records = self._world.log_seen.records
        for sequence, record in list(records.items()):
            before = records.get(sequence - 1)
            if before is not None and record.commit_id not in self._checked:
                self._checked.add(record.commit_id)
                self._check_pair(before, record)

    def _check_pair(self, before: Record, record: Record) -> None:
        old = read_requests(before.orders).answers
        new = read_requests(record.orders).answers
        numbers = [answer.number for answer in new]
        assert numbers == sorted(set(numbers)), f"answers are out of order: {numbers}"
        assert last_number(new) >= last_number(old), f"record {record.sequence} lacks answers of the previous one"
        earlier = {answer.number: answer for answer in old}
        changed_answers = [answer for answer in new if answer.number in earlier and answer != earlier[answer.number]]
        assert not changed_answers, f"answered twice: {changed_answers}"
        late = [answer for answer in new if answer.number <= last_number(old) and answer.number not in earlier]
        assert not late, f"applied again: {late}"

    def compare(self) -> None:
        """Check that at the end every request in the mailbox has an answer."""
        if self._world.settings.control == "on":
            mailbox, _ = read_mailbox(self._world.memory)
            pending = mailbox.pending_after(self._answered())
            assert not pending, f"requests without an answer: {pending}"
