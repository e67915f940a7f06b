"""The interfaces between the protocol and its environment: batches, executors, clock and background work.

``spark`` implements them on PySpark, tests implement them as simulations.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

from riffle_spark.messages.slot_orders import Order, Receipt
from riffle_spark.messages.state_change import EditState
from riffle_spark.messages.upkeep_orders import Census, CensusOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.shards import Partition, Shards
from riffle_spark.state.log.manifest import Link
from riffle_spark.state.objects.store import ObjectStore

WatermarkPolicy: TypeAlias = Literal["min", "max"]
WatermarkSource: TypeAlias = Literal["rows", "spark"]
Lock: TypeAlias = AbstractContextManager[object]
"""A lock that is not reentrant and can be used many times."""
RacksOf = Callable[[Sequence[tuple[str, str, "str | None"]]], Mapping[str, "str | None"]]
"""Returns the rack of each member, given (member, host, reported rack) of each."""


@dataclass(frozen=True, slots=True, order=True)
class Executor:
    """A live executor: Spark's id, its host, and how many tasks it runs at once (``cores``)."""

    id: str
    host: str
    cores: int


@dataclass(frozen=True, slots=True)
class IncomingBatch:
    """A micro-batch as Spark passes it to the driver. Times are milliseconds since the epoch.

    ``offsets`` is the entry of Spark's offset log as text, ``offsets_before`` the entry of the batch before, if this is
    the first batch of a run. ``input_digest`` is a digest of the rows if the offset log cannot be read. ``run_id``
    changes with each start of the query. ``watermark_ms`` is Spark's watermark. With ``available_now`` the query ends
    with the available rows; ``last_pass_ms`` is then the watermark of this batch's own rows, computed by the driver.
    ``watermark_policy`` chooses the minimum or maximum of several operators' watermarks. ``watermark_source`` is
    ``rows`` if our operators compute the watermark, ``spark`` if ``watermark_ms`` counts. Keys are then due by this
    batch's watermark, and rows late by the watermark of the batch before. ``query_name`` is the name of the query, if
    it has one and this is the first batch of a run.
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
    query_name: str = ""


@dataclass(frozen=True, slots=True)
class SlotPlace:
    """A slot: its number, the executor that should run it, and the key-groups it serves."""

    number: int
    executor: str
    host: str
    key_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """The slots of one assignment, in the order of their partitions.

    ``shards`` are the partitions of key-groups with dispatch by partition, else ``None``. ``other_groups`` are the
    layouts of the stores in other co-location groups.
    """

    slots: tuple[SlotPlace, ...]
    shards: Shards | None = None
    other_groups: "tuple[tuple[tuple[str, ...], SlotLayout], ...]" = ()

    def of(self, store: str) -> "SlotLayout":
        """Return the layout of the co-location group that a store belongs to."""
        return next((layout for stores, layout in self.other_groups if store in stores), self._first_group)

    @property
    def all_groups(self) -> "tuple[SlotLayout, ...]":
        """Return the layouts of all co-location groups."""
        return (self._first_group, *(layout for _, layout in self.other_groups))

    @property
    def _first_group(self) -> "SlotLayout":
        """Return the layout of the first co-location group without the others."""
        return replace(self, other_groups=()) if self.other_groups else self

    def key_groups_by_slot(self) -> dict[int, tuple[int, ...]]:
        """Return the key-groups of each slot, by the slot's number."""
        return {slot.number: slot.key_groups for slot in self.slots}


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch's id, delivery id and time (ms) for its sink. A repeated delivery of the same rows has the same id."""

    batch_id: int
    id: str
    time_ms: int = 0

    @property
    def id_prefix(self) -> str:
        """Return the part of the delivery id in front of the batch id. It changes when the query is rolled back."""
        return self.id.rpartition("/")[0]


class StaleRows(Exception):
    """A sink read a row of another attempt than the receipts', or a part of the result is lost."""


class Work(Protocol):
    """The rows of one micro-batch on a cluster: the driver runs the slots on them and delivers their results."""

    def executors(self) -> Sequence[Executor]:
        """Return the live executors, sorted by id."""
        ...

    def is_placed(self) -> bool:
        """Return whether Spark placed the slots on named executors. Otherwise it placed them by hash."""
        ...

    def partitions(self, limit: int) -> Sequence[Partition]:
        """Return the distinct (topic, partition) pairs of the rows, at most ``limit``. Reads the input."""
        ...

    def newest_event_times(self, columns: Sequence[str]) -> Mapping[str, int]:
        """Return the newest value (ms) of each timestamp column. Leaves out columns without a value.

        Reads the input.
        """
        ...

    def run(self, layout: SlotLayout, orders: Sequence[Order]) -> Sequence[Receipt]:
        """Run the slots of all orders, and return their receipts. The result rows are kept until ``release``."""
        ...

    def plan_fallbacks(self) -> int:
        """Return how many kept plans had to be built again although the columns had not changed."""
        ...

    def count_routed_rows(self) -> Mapping[str, int | None]:
        """Return how many rows were routed to each store, counted independently of the receipts (``None``: unknown)."""
        ...

    def recount(self, store: str) -> int:
        """Return how many rows were routed to a store, counted again exactly."""
        ...

    def deliver(self, receipts: Sequence[Receipt], delivery: Delivery, check: Callable[[], None]) -> None:
        """Call ``check``, then pass the result rows of each operator to its sink.

        Raises what ``check`` raises, and ``StaleRows`` for a row of another attempt than the receipts', and if rows are
        lost.
        """
        ...

    def deliver_sealed(self, outputs: Sequence[tuple[str, Link]], delivery: Delivery) -> None:
        """Pass the output rows that were sealed with a committed batch to the sinks.

        ``outputs`` has (store, link) pairs.
        """
        ...

    def drain(self) -> None:
        """Read the input of a skipped batch to its end, without running anything."""
        ...

    def release(self) -> None:
        """Drop the kept result rows. May be called more than once."""
        ...


class Cluster(Protocol):
    """The executors, during and between batches."""

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Return the censuses of the executors that answered.

        An executor without an answer after the order's ``timeout_seconds`` has a census with an error. Raises
        ``UnavailableError`` if they cannot be asked now.
        """
        ...

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Run each live executor's piece of upkeep, during or between batches; return the receipts.

        A piece that has not ended by its deadline is cancelled: its receipt is ``overdue``, and others may be missing.
        Raises ``UnavailableError`` if upkeep cannot run now.
        """
        ...

    def find_planned_removals(self, executors: Sequence[str]) -> frozenset[str]:
        """Return which of these lost executors were removed on purpose, for example by dynamic allocation."""
        ...


class Background(Protocol):
    """Work in the background. Each piece runs once, some time after it was submitted."""

    def submit(self, work: Callable[[], object]) -> None:
        """Submit a piece of work. Its result, or its exception, is returned by ``collect``."""
        ...

    def collect(self) -> Sequence[object]:
        """Return the results of the work that finished since the last call, exceptions of failed work included."""
        ...

    def is_busy(self) -> bool:
        """Return whether submitted work has not finished yet."""
        ...

    def rest(self, seconds: float) -> None:
        """Wait for ``seconds`` within a piece of work. Ends early when the background is stopped."""
        ...

    def lock(self) -> Lock:
        """Return a new lock for data that work and other threads share."""
        ...


class Clock(Protocol):
    """The clock of the protocol. Tests use a simulated one."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch, for retention and reports, never for results."""
        ...

    def seconds(self) -> float:
        """Return seconds of a monotonic clock, for durations."""
        ...


@dataclass(frozen=True, slots=True)
class DriverPorts:
    """The environment of a driver.

    ``new_id`` returns random hexadecimal ids. ``reached`` is called with the name of each step that the driver reaches.
    ``upkeep_objects`` is the store for upkeep, ``None`` for the same one. ``racks_of`` returns the racks of members.
    ``edit_state`` makes the changes of state that operators request; ``None`` refuses them.
    """

    objects: ObjectStore
    cluster: Cluster
    clock: Clock
    background: Background
    new_id: Callable[[], str]
    reached: Callable[[str], None] = field(default=lambda step: None)  # noqa: ARG005
    upkeep_objects: ObjectStore | None = None
    racks_of: RacksOf = field(default=lambda members: {member: rack for member, _, rack in members})
    edit_state: EditState | None = None
