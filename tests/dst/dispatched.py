"""Dispatch in schedules: partitions of rows, settings of drivers, and an operator who switches the dispatch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from riffle_spark import keygroups
from riffle_spark.errors import ConfigError, ConflictError, RiffleError
from riffle_spark.offline import switch
from riffle_spark.protocol.shards import Partition
from riffle_spark.settings import DISPATCHES
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.record import Record
from riffle_spark.state.restore.follow import restore_tables
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.worker.member_folders import keys_of
from tests.dst.scheduler import Actor, Process
from tests.kit.simulated.world import held_by_key

__all__ = ["Dealt", "Dispatched", "parted"]

TOPICS = 2
PARTITIONS = 3
"""The number of partitions per topic. All topics together have as many as a query has key-groups at first."""
KEY_GROUPS = {"key_group": (4, 6, 9), "partition": (6, 9), "hashed": (6, 9)}
GROUPS = ("", "heavy", "light")


def partition_of(keys: pa.Table) -> pa.Table:
    """Return the topic and partition of each key, by its hash."""
    hashes = keygroups.key_hashes(keys.columns).view(np.int64) % (TOPICS * PARTITIONS)
    topics = [f"topic-{n % TOPICS}" for n in hashes.tolist()]
    return pa.table({"topic": pa.array(topics, pa.string()), "partition": pa.array(hashes // TOPICS)})


def parted(rows: pa.Table) -> pa.Table:
    """Return rows with their topic and partition."""
    places = partition_of(rows.select(["k"]))
    return rows.append_column("topic", places["topic"]).append_column("partition", places["partition"])


def _partitions(keys: pa.Table) -> list[Partition]:
    return list(zip(*partition_of(keys).to_pydict().values(), strict=True))


@dataclass(frozen=True)
class Dealt:
    """The mapping of keys to shards of a record."""

    dispatch: str
    total: int
    shards: tuple[Partition, ...]

    @staticmethod
    def by(record: Record) -> Dealt:
        """Return the mapping of a record."""
        return Dealt(record.dispatch, record.total, record.shards)

    def of(self, keys: Sequence[object]) -> Sequence[int]:
        """Return the shard of each key, -1 if it has none."""
        return self._of(tuple(keys))

    @lru_cache(maxsize=256)  # noqa: B019 - equal instances share it, and it is bounded
    def _of(self, keys: tuple[object, ...]) -> Sequence[int]:
        column = pa.array(keys, pa.string())
        if self.dispatch == "key_group":
            return keygroups.key_groups([column], self.total).tolist() if keys else []
        numbers = {partition: shard for shard, partition in enumerate(self.shards)}
        return [numbers.get(partition, -1) for partition in _partitions(pa.table({"k": column}))]


class Dispatched:
    """The settings of a schedule's drivers, and the operator who switches the dispatch.

    ``world`` is the schedule.
    """

    def __init__(self, world: Any, folder: Path) -> None:
        self._world = world
        self._folder = folder
        self._chance = world.chance
        self._tells = self._chance.random() < 0.5
        """Whether the source's offsets contain partitions, as Kafka's do. Otherwise the rows are queried for them."""
        self._is_grouped = self._chance.random() < 0.5
        self._groups: dict[str, str] = {}
        self._share = self._chance.choice([0.0, 0.2, 0.5])
        self._is_under_way = False

    @property
    def share(self) -> float:
        """The probability of a switch. It is high after an unfinished one."""
        return 0.6 if self._is_under_way else self._share

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Patch the switch: its store calls become steps, and its names and times come from the simulation."""
        patch.setattr(switch, "open_store", lambda *_: self._world.stepped)
        for module in ("uuid", "time"):
            patch.setattr(switch, module, self)

    def uuid4(self) -> UUID:
        """Return a random name, which may become the commit id of a record."""
        return UUID(hex=self._world.log_seen.begins(self._chance.randbytes(16).hex()))

    def time_ns(self) -> int:
        """Return the operator's time."""
        return int(self._world.clock.wall_ms() * 1_000_000)

    def settings(self, newest: Record | None) -> dict[str, object]:
        """Return the settings of the next driver: the state's dispatch and, for several stores, co-location groups.

        The groups may change between drivers. Sometimes the settings still name the old dispatch.
        """
        chosen = self._world.settings
        stores = [operator.store for operator in self._world.operators]
        is_forgotten = newest is None or (newest.kind == "dispatch" and self._world.often(0.5))
        dispatch = chosen.dispatch
        total = chosen.key_groups
        if newest is not None and (not is_forgotten or self._world.faults.over):
            dispatch = newest.dispatch
            total = newest.total
        if self._is_grouped and len(stores) > 1 and self._world.often(0.6):
            drawn = {store: self._chance.choice(GROUPS) for store in stores}
            self._groups = {store: group for store, group in drawn.items() if group}
            if dispatch != "hashed":
                self._world.say(f"co-location groups: {self._groups}")
        groups = {} if dispatch == "hashed" else self._groups
        return {"dispatch": dispatch, "key_groups": total, "store_groups": tuple(groups.items())}

    def offsets(self, line: int, version: int) -> str:
        """Return Spark's offsets of a batch for all partitions read so far. They differ per batch and line."""
        lines = self._world.lines
        origin = lines.rows_of(line, version)
        if not self._tells:
            return f"offsets-{origin}-{version}"
        keys = pa.concat_tables([batch.select(["k"]) for batch in lines.jobs[line].batches[: version + 1]])
        offsets: dict[str, dict[str, int]] = {}
        for topic, partition in sorted({*_partitions(keys)}):
            offsets.setdefault(topic, {})[str(partition)] = 1_000 * origin + version
        return f"v1\n{{}}\n{json.dumps(offsets)}\n" if offsets else f"offsets-{origin}-{version}"

    def is_of_before(self, error: RiffleError, settings: Any) -> bool:
        """Return whether a driver was refused because its settings have another dispatch than the state."""
        with self._world.scheduler.quiet():
            newest = self._newest()
        is_other = newest is not None and (newest.dispatch, newest.total) != (settings.dispatch, settings.key_groups)
        return is_other and isinstance(error, ConfigError) and error.where in {"dispatch", "key_groups"}

    def _newest(self) -> Record | None:
        history = self._world.log_seen
        history.look()
        return history.records[max(history.records)] if history.records else None

    # --- the switch ---------------------------------------------------------------------------------------------------

    def begins(self, name: str) -> Actor | None:
        """Stop the query, except for work that continues unseen, and switch its dispatch if it has state."""
        world = self._world
        with world.scheduler.quiet():
            newest = self._newest()
        if newest is None:
            return None
        to, total = self._drawn(newest)
        for program in [program for program in world.programs if program.alive]:
            if self._chance.random() < 0.8:
                world.stop(program)
        alone = not any(program.alive for program in world.programs)
        alone = alone and not any(actor.kind == "late put" for actor in world.scheduler.actors)
        world.say(f"{name} switches to {to}, {total}, {'alone' if alone else 'while other actors run'}")
        looks = self._chance.random() < 0.3
        self._is_under_way = True
        return world.scheduler.spawn(
            name, "switch", Process(name), lambda: self._switch(newest, to, total, alone=alone, looks=looks)
        )

    def _drawn(self, record: Record) -> tuple[str, int]:
        """Return a random other dispatch or number of key-groups. Initial state has no partitions."""
        to = "key_group" if self._world.job.initial else self._chance.choice([*DISPATCHES, record.dispatch])
        dispatch = (record.dispatch, record.total)
        return to, self._chance.choice([total for total in KEY_GROUPS[to] if (to, total) != dispatch])

    def _switch(self, record: Record, to: str, total: int, *, alone: bool, looks: bool) -> None:
        world = self._world
        switched = partial(
            switch.switch_dispatch,
            world.home.root,
            to,
            partition_of=partition_of,
            key_groups=total,
            encryption_keys=world.settings.encryption_keys,
        )
        world.step("begins")
        try:
            if looks:
                puts = self._puts()
                switched()
                assert self._puts() == puts, "a switch without execute has written an object"
                world.step("looked at")
            plan = switched(execute=True)
        except RiffleError as error:
            world.say(f"switch: {type(error).__name__}: {str(error)[:150]}")
            if not self._is_expected(error, record, alone=alone):
                world.scheduler.broke(error)
            return
        self._is_under_way = False
        world.step("state switched")
        world.say(f"batch {plan.version} has dispatch {to}, {total} now")

    def _puts(self) -> int:
        return sum(times for step, times in self._world.scheduler.seen.items() if step.startswith("switch: put"))

    def _is_expected(self, error: RiffleError, record: Record, *, alone: bool) -> bool:
        """Return whether the store's state, or a query that continued meanwhile, explains the switch's error."""
        with self._world.scheduler.quiet():
            newest = self._newest()
        assert newest is not None
        if isinstance(error, ConfigError):
            return (newest.dispatch, newest.total) != (record.dispatch, record.total)
        if alone and type(error) is ConflictError:
            return False
        went_on = newest.sequence > record.sequence and self._world.excuses.is_gone(error)
        return went_on or bool(self._world.expects(error))

    def check_switched(self, record: Record, manifest: Manifest, expected: Mapping[str, Mapping[object, Any]]) -> None:
        """Check that the state of a record is the expected one, and that each key is in its shard."""
        dealt = Dealt.by(record)
        objects = Reader(self._world.memory, keys_of(self._world.home))
        for store in sorted(expected.keys() & record.schemas.keys()):
            entries = {shard: entry for (of, shard), entry in manifest.entries.items() if of == store}
            schema = schema_of_text(store, record.schemas[store])
            contents = dict[object, object]()
            folder = self._folder / f"switched-{record.sequence}" / store
            for shard, table in restore_tables(schema, entries, objects, folder).items():
                rows_by_key = held_by_key(table)
                assert set(dealt.of(list(rows_by_key))) <= {shard}, f"keys of another shard in {shard} of {store}"
                contents |= rows_by_key
            assert contents == dict(expected[store]), (
                f"{store} holds {contents} once it is switched, not {expected[store]}"
            )
