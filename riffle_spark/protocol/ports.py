"""The seams of the protocol: what it is told, and what it asks of a cluster. Knows plain data. Does not know Spark.

A real query implements them in ``spark/``; a simulated one in a test. Nothing here waits, sleeps or reads a clock.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

from riffle_spark.messages.slot_orders import Order, Receipt
from riffle_spark.messages.upkeep_orders import Census, CensusOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.shards import Partition, Shards
from riffle_spark.state.log.manifest import Link
from riffle_spark.state.objects.store import ObjectStore

__all__ = [
    "Background",
    "Clock",
    "Cluster",
    "Delivery",
    "DriverPorts",
    "Executor",
    "IncomingBatch",
    "Lock",
    "RacksOf",
    "SlotLayout",
    "SlotPlace",
    "StaleRows",
    "WatermarkPolicy",
    "WatermarkSource",
    "Work",
]

WatermarkPolicy: TypeAlias = Literal["min", "max"]
WatermarkSource: TypeAlias = Literal["rows", "spark"]
Lock: TypeAlias = AbstractContextManager[object]
"""Lets one thread in at a time; is entered again and again, never by a thread that is inside."""
RacksOf = Callable[[Sequence[tuple[str, str, "str | None"]]], Mapping[str, "str | None"]]
"""From (member, host, rack by its own account) of each to the rack of each member."""


@dataclass(frozen=True, slots=True, order=True)
class Executor:
    """One live executor: Spark's id, its host, and how many tasks it runs at once, which is named ``cores``."""

    id: str
    host: str
    cores: int


@dataclass(frozen=True, slots=True)
class IncomingBatch:
    """What Spark hands over with a micro-batch.

    ``offsets`` is Spark's offset-log entry as text, ``input_digest`` a digest of the rows where that log cannot be
    read. ``run_id`` changes when a query is started again. Times are milliseconds since the epoch; ``watermark_ms`` is
    Spark's own. ``available_now``: the query ends with what is there, so that no batch may follow; ``last_pass_ms`` is
    then the watermark that this batch's own rows make, which the driver finds out. ``watermark_policy`` says which of
    several operators' watermarks is the query's: the least or the greatest.

    ``offsets_before`` is the log's entry of the batch before, which the first batch of a run brings where there is one.

    ``watermark_source`` says whose watermark counts: the one that our operators make of their ``rows``, or
    ``watermark_ms``, Spark's. By Spark's, what is due is so in the batch that has it, and late in the batch after it.
    """

    version: int
    query_id: str
    run_id: str
    offsets: str | None
    input_digest: str | None
    time_ms: int
    watermark_ms: int | None
    available_now: bool = False
    last_pass_ms: int | None = None
    watermark_policy: WatermarkPolicy = "min"
    watermark_source: WatermarkSource = "rows"
    offsets_before: str | None = None


@dataclass(frozen=True, slots=True)
class SlotPlace:
    """One slot: its number, the executor that should run it, and the key-groups it serves."""

    number: int
    executor: str
    host: str
    key_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """The slots of one assignment, in the order of their partitions.

    ``shards`` says what their key-groups stand for where dispatch is by partition; ``None``: parts of the key space.
    ``apart`` are the layouts of the stores that are in other co-location groups.
    """

    slots: tuple[SlotPlace, ...]
    shards: Shards | None = None
    apart: "tuple[tuple[tuple[str, ...], SlotLayout], ...]" = ()

    def of(self, store: str) -> "SlotLayout":
        """Return the layout of a store's group."""
        return next((layout for stores, layout in self.apart if store in stores), self._alone)

    @property
    def each(self) -> "tuple[SlotLayout, ...]":
        """The layouts of all groups."""
        return (self._alone, *(layout for _, layout in self.apart))

    @property
    def _alone(self) -> "SlotLayout":
        return replace(self, apart=()) if self.apart else self

    def orders(self) -> dict[int, tuple[int, ...]]:
        """Return each slot's key-groups by its number."""
        return {slot.number: slot.key_groups for slot in self.slots}


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a sink is told besides the rows: the batch id, an id that repeats exactly when the same rows come again, and
    the batch's time (ms).
    """

    batch_id: int
    id: str
    time_ms: int = 0

    @property
    def line(self) -> str:
        """What the ids of a query's batches have in common until it is rolled back."""
        return self.id.rpartition("/")[0]


class StaleRows(Exception):
    """The sink met a row of an attempt that is not the receipts', or a part of the result that is nowhere any more."""


class Work(Protocol):
    """One micro-batch's rows, on a cluster."""

    def executors(self) -> Sequence[Executor]:
        """Return the live executors, sorted by id."""
        ...

    def placed(self) -> bool:
        """Tell whether slots are placed by name, not by hash."""
        ...

    def partitions(self, most: int) -> Sequence[Partition]:
        """Return the distinct (topic, partition) of the rows, or ``most`` of them. Reads the input."""
        ...

    def newest_event_times(self, columns: Sequence[str]) -> Mapping[str, int]:
        """Return the newest event time (ms) of each timestamp column that has any. Reads the input."""
        ...

    def run(self, layout: SlotLayout, orders: Sequence[Order]) -> Sequence[Receipt]:
        """Run every slot of every order, keep the result once, and return all receipts."""
        ...

    def plan_fallbacks(self) -> int:
        """Return how many plans of slots that read the batch were made anew although columns had not changed."""
        ...

    def routed(self) -> Mapping[str, int | None]:
        """Return how many rows were routed, per store, counted apart from the receipts (``None``: unknown)."""
        ...

    def recount(self, store: str) -> int:
        """Return how many rows were routed to a store, counted anew and exactly."""
        ...

    def deliver(self, receipts: Sequence[Receipt], delivery: Delivery, check: Callable[[], None]) -> None:
        """Give each operator's rows to its sink, once ``check`` has returned, which is called now: no sink is called if
        it raises. Raises ``StaleRows`` on a row of any attempt but the receipts', and where some of the rows were lost.
        """
        ...

    def deliver_sealed(self, outputs: Sequence[tuple[str, Link]], delivery: Delivery) -> None:
        """Give the sinks the output rows that were sealed with a committed batch."""
        ...

    def drain(self) -> None:
        """Read the input to its end, for a batch that is skipped."""
        ...

    def release(self) -> None:
        """Drop the kept result. Idempotent."""
        ...


class Cluster(Protocol):
    """The executors, apart from any batch."""

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Ask each executor what it finds on its machine; return the answers of those that answered.

        Who has not answered after the order's ``timeout_seconds`` says so as an error. Raises ``UnavailableError`` if
        they cannot be asked now.
        """
        ...

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Run each live executor's piece of upkeep on it, beside or between the batches, and return what was done.

        A piece that has not ended by its deadline is given up: its receipt is ``overdue``, and others' may be missing.
        Raises ``UnavailableError`` if that cannot be done now.
        """
        ...

    def planned(self, executors: Sequence[str]) -> frozenset[str]:
        """Return which of these executors, that are gone, were taken away on purpose."""
        ...


class Background(Protocol):
    """Upkeep beside the next batch: each piece of work runs once, some time after it was submitted."""

    def submit(self, work: Callable[[], object]) -> None:
        """Take one piece of work."""
        ...

    def collect(self) -> Sequence[object]:
        """Return the results that have come since the last call; failures come as exceptions, to be looked at."""
        ...

    def busy(self) -> bool:
        """Tell whether submitted work has not finished yet."""
        ...

    def rest(self, seconds: float) -> None:
        """Wait in the middle of work, or not any longer if the background is being stopped."""
        ...

    def lock(self) -> Lock:
        """Return a new lock, for what the work and those who submit or ask share."""
        ...


class Clock(Protocol):
    """Where the protocol's times come from."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch. For retention and reports; never for results."""
        ...

    def seconds(self) -> float:
        """Return seconds of a clock that never goes back, for durations."""
        ...


@dataclass(frozen=True, slots=True)
class DriverPorts:
    """What a driver is given: store, cluster, clock, background, random hexadecimal ids; ``reached`` hears of each
    step.
    """

    objects: ObjectStore
    cluster: Cluster
    clock: Clock
    background: Background
    new_id: Callable[[], str]
    reached: Callable[[str], None] = field(default=lambda step: None)  # noqa: ARG005
    upkeep_objects: ObjectStore | None = None
    racks_of: RacksOf = field(default=lambda said: {member: rack for member, _, rack in said})
