"""Accept and check the requests of operators to a running query.

Requests may arrive from any thread. The driver applies them before the next batch. While no batch arrives, it applies
them at its next check.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from riffle_spark.assign.model import TaskId
from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ownership.groups import GROUP, task_name
from riffle_spark.protocol.ownership.readiness import MemberState
from riffle_spark.protocol.ports import Lock
from riffle_spark.settings import LIVE, Settings, check_names


@dataclass(frozen=True, slots=True)
class OperatorRequests:
    """The requests in effect: pins by task, drained members, the slot limit per executor, and live settings.

    ``revision`` counts the requests that need an assignment.
    """

    pins: Mapping[TaskId, str] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    slots: int | None = None
    settings: Settings | None = None
    revision: int = 0


class RequestRegister:
    """The requests of operators in effect. New requests are checked here.

    Every method may be called from any thread. A request is checked and stored under one lock.
    """

    def __init__(self, key_groups: int, dispatch: str, lock: Lock) -> None:
        """Create a register without requests, for state with this number of key-groups and this dispatch."""
        self._key_groups = key_groups
        self._dispatch = dispatch
        self._lock = lock
        self.requests = OperatorRequests()
        self.members: tuple[MemberState, ...] = ()
        self._member_names: dict[str, str] = {}

    def set_members(self, members: tuple[MemberState, ...]) -> None:
        """Set the members that later requests are checked against."""
        self.members = members

    def replace_executor_names(self, names: Mapping[str, str]) -> None:
        """Move requests that name executors to the members that these executors turned out to be.

        ``names`` has the id of the member by the id of its executor.
        """
        with self._lock:
            self._member_names.update(names)
            requests = self.requests
            pins = {t: self._name_of(member) for t, member in requests.pins.items()}
            drained = frozenset(map(self._name_of, requests.drained))
            self.requests = replace(requests, pins=pins, drained=drained)

    def pin(self, key_group: int, member: str, group: str = GROUP) -> None:
        """Keep a key-group of ``group`` on a member, which is named by its id or by its executor's.

        Raises ``ConfigError`` if dispatch is ``hashed``, the member is drained, or the key-group or member is unknown.
        """
        if self._dispatch == "hashed":
            raise _refusal(
                "With dispatch = hashed key-groups cannot be pinned.", "Use dispatch = partition.", "RIFFLE-0237"
            )
        self._check_key_group(key_group)

        def add_pin(requests: OperatorRequests) -> OperatorRequests:
            name = self._live_member(member)
            if name in requests.drained:
                raise _refusal(
                    f"Member {name} is being drained.", "Undrain it first, or pin to another member.", "RIFFLE-0750"
                )
            return replace(requests, pins={**requests.pins, TaskId(group, key_group): name})

        self._change(add_pin)

    def unpin(self, key_group: int, group: str = GROUP) -> dict[str, str]:
        """Remove the pin of a key-group; return the remaining pins as members by task name.

        Raises ``ConfigError`` for an unknown key-group.
        """
        unpinned_task = TaskId(group, key_group)
        self._check_key_group(key_group)
        requests = self._change(lambda r: replace(r, pins={t: m for t, m in r.pins.items() if t != unpinned_task}))
        return {task_name(t): member for t, member in sorted(requests.pins.items())}

    def drain(self, member: str) -> None:
        """Request that everything moves away from a member, which is named by its id or by its executor's.

        Raises ``ConfigError`` if it is unknown, has pins, or is the last member that is not drained.
        """

        def add_drain(requests: OperatorRequests) -> OperatorRequests:
            name = self._live_member(member)
            drained_members = requests.drained | {name}
            if not any(m.state == "live" and self._name_of(m.id) not in drained_members for m in self.members):
                raise _refusal(
                    f"Member {name} is the last one that is not drained.", "Add an executor first.", "RIFFLE-0751"
                )
            pinned_tasks = [task_name(t) for t, pin in sorted(requests.pins.items()) if pin == name]
            if pinned_tasks:
                raise _refusal(
                    f"Key-groups {', '.join(pinned_tasks)} are pinned to member {name}.",
                    "Unpin them first.",
                    "RIFFLE-0752",
                )
            return replace(requests, drained=drained_members)

        self._change(add_drain)

    def undrain(self, member: str) -> tuple[str, ...]:
        """Let a member own tasks again; return the members that are still drained.

        A drained member that has left may be named too. Raises ``ConfigError`` for any other name.
        """

        def remove_drain(requests: OperatorRequests) -> OperatorRequests:
            state = next((m for m in self.members if member in (m.id, m.executor)), None)
            name = self._name_of(state.id if state else member)
            if state is None and name not in requests.drained:
                raise _refusal(
                    f"Unknown member {member!r}. Drained members: {', '.join(sorted(requests.drained)) or 'none'}.",
                    "Name a member that members() lists.",
                    "RIFFLE-0753",
                )
            return replace(requests, drained=requests.drained - {name})

        return tuple(sorted(self._change(remove_drain).drained))

    def add_worker(self) -> int:
        """Let every executor run one more slot; return the limit. Raises ``ConfigError`` beyond its cores."""
        return self._change_slots(1)

    def remove_worker(self) -> int:
        """Let every executor run one slot less; return the limit. Raises ``ConfigError`` below one."""
        return self._change_slots(-1)

    def _change_slots(self, step: int) -> int:
        """Change the slots per executor by ``step``; return the new limit.

        Raises ``ConfigError`` beyond 1 to the cores.
        """
        self._check_started()
        cores = max(member.cores for member in self.members)
        with self._lock:
            slots = (self.requests.slots or cores) + step
            if not 1 <= slots <= cores:
                raise _refusal(
                    f"Slots per executor must be 1 to {cores}, not {slots}.",
                    "Add or remove executors instead.",
                    "RIFFLE-0754",
                )
            self.requests = replace(self.requests, slots=None if slots == cores else slots)
        return slots

    def request_rebalance(self) -> None:
        """Request an assignment before the next batch."""
        self._check_started()
        self._change(lambda requests: requests)

    def reconfigure(self, settings: Settings, changes: Mapping[str, object]) -> Settings:
        """Change live settings from the next batch on; return the new settings.

        Raises ``ConfigError`` for settings that need a restart, and for invalid names and values.
        """
        check_names(changes, "the request")
        fixed = sorted(set(changes) - LIVE)
        if fixed:
            raise _refusal(
                f"{', '.join(fixed)} cannot change while a query runs.",
                "Restart the query with the new value.",
                "RIFFLE-0755",
            )

        def change_settings(requests: OperatorRequests) -> OperatorRequests:
            return replace(requests, settings=(requests.settings or settings).but(**changes))

        return self._change(change_settings).settings or settings

    def take_over(self, requests: OperatorRequests, *, alone: bool) -> None:
        """Apply the requests of an earlier driver.

        With ``alone`` they replace this driver's own requests. Otherwise own requests win.
        """

        def merge(own_requests: OperatorRequests) -> OperatorRequests:
            if alone:
                return replace(requests, revision=own_requests.revision)
            return replace(
                own_requests,
                pins={**requests.pins, **own_requests.pins},
                drained=requests.drained | own_requests.drained,
                slots=own_requests.slots or requests.slots,
                settings=own_requests.settings or requests.settings,
            )

        self._change(merge)

    def _live_member(self, name: str) -> str:
        """Return the id of the live member that a user names by its id or by its executor's.

        Raises ``ConfigError`` for an unknown name, and before the first batch.
        """
        self._check_started()
        for member in self.members:
            if name in (member.id, member.executor) and member.state != "awaited":
                return self._name_of(member.id)
        live = ", ".join(f"{m.id} (executor {m.executor})" for m in self.members if m.state != "awaited")
        raise _refusal(f"Unknown live member {name!r}.", f"Name one of {live}.", "RIFFLE-0756")

    def _name_of(self, member: str) -> str:
        """Return the id that a member has now. It changes once a census names the folder of its executor."""
        return self._member_names.get(member, member)

    def _check_key_group(self, key_group: int) -> None:
        """Raise ``ConfigError`` for a number that is not a key-group."""
        if not 0 <= key_group < self._key_groups:
            last = self._key_groups - 1
            raise _refusal(f"Unknown key-group {key_group}.", f"Name one of 0 to {last}.", "RIFFLE-0757")

    def _check_started(self) -> None:
        """Raise ``ConfigError`` before the first batch, because members are unknown until then."""
        if not self.members:
            raise _refusal("The query has not run a batch yet.", "Retry after its first batch.", "RIFFLE-0758")

    def _change(self, change: Callable[[OperatorRequests], OperatorRequests]) -> OperatorRequests:
        """Replace the requests by what ``change`` returns for them, under the lock; return the new requests."""
        with self._lock:
            self.requests = replace(change(self.requests), revision=self.requests.revision + 1)
            return self.requests


def _refusal(problem: str, remedy: str, error_id: str) -> ConfigError:
    """Return the error for a request that is refused."""
    return ConfigError(problem, remedy=remedy, id=error_id)
