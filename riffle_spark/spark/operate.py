"""What operators and programs may ask of a running query, as methods of its job. Knows what to hand on to whom. Does
not know how anything is done.
"""

from __future__ import annotations

import logging

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.driver import Driver
from riffle_spark.protocol.news import RebalanceListener
from riffle_spark.protocol.readiness import MemberState, Readiness
from riffle_spark.settings import Settings, hasty
from riffle_spark.spark.gate import Gate

__all__ = ["Operated"]

_logger = logging.getLogger("riffle_spark")
_BATCH_END_SECONDS = 300.0


class Operated:
    """The part of a job that is there to be operated. Every method may be called from any thread, and again; what
    cannot work raises ``ConfigError`` with the reason. Members are named by their id or their executor's.
    """

    def __init__(self) -> None:
        self._gate = Gate()
        self._driver: Driver | None = None
        self._listener: RebalanceListener | None = None

    @property
    def listener(self) -> RebalanceListener | None:
        """What hears of key-groups that change their owner (``RebalanceListener``)."""
        return self._listener

    @listener.setter
    def listener(self, listener: RebalanceListener | None) -> None:
        self._listener = listener
        if self._driver is not None:
            self._driver.seating.listener = listener

    def pause(self) -> None:
        """Consume nothing more after the batch that is under way: the query stays alive and keeps its assignment."""
        self._gate.close()

    def resume(self) -> None:
        """Go on where ``pause`` stopped."""
        self._gate.open()

    @property
    def paused(self) -> bool:
        """Whether the query is paused."""
        return self._gate.closed

    def clean_up(self) -> None:
        """Remove all local copies of all live members, and wait for it; state is fetched anew by whoever needs it.

        Raises ``ConfigError`` unless the query is paused, ``UnavailableError`` if the batch under way does not end
        within five minutes.
        """
        driver = self._running_driver()
        if not self.paused:
            raise ConfigError(
                "local copies cannot be removed under a running query", remedy="call pause() first, resume() after it"
            )
        with self._gate.quiet(_BATCH_END_SECONDS):
            driver.clean_up()

    def pin(self, key_group: int, member: str) -> None:
        """Keep a key-group on a member: it moves there as soon as that is warm, and stays."""
        self._running_driver().operations.pin(key_group, member)

    def unpin(self, key_group: int) -> None:
        """Let a key-group go where it is best again."""
        self._running_driver().operations.unpin(key_group)

    def drain(self, member: str) -> None:
        """Move everything away from a member, warm, before it is taken away: then ``members()`` shows it empty."""
        self._running_driver().operations.drain(member)

    def undrain(self, member: str) -> None:
        """Let a drained member take part again."""
        self._running_driver().operations.undrain(member)

    def add_worker(self) -> int:
        """Let every executor run one more slot of a batch, up to its cores; return how many it runs from now on."""
        return self._running_driver().operations.add_worker()

    def remove_worker(self) -> int:
        """Let every executor run one slot less of a batch, down to one; return how many it runs from now on."""
        return self._running_driver().operations.remove_worker()

    def request_rebalance(self) -> None:
        """Ask for an assignment before the next batch."""
        self._running_driver().operations.request_rebalance()

    def reconfigure(self, **changes: object) -> Settings:
        """Change live settings (docs/configuration.md says which) from the next batch on; return those in force."""
        driver = self._running_driver()
        changed = driver.operations.reconfigure(driver.settings, changes)
        for warning in hasty(Settings(**{name: getattr(changed, name) for name in changes})):
            _logger.warning("%s", warning)
        return changed

    def members(self) -> tuple[MemberState, ...]:
        """Return the members as the last assignment saw them."""
        return self._driver.operations.members if self._driver else ()

    def readiness(self) -> tuple[Readiness, ...]:
        """Return how near every standby and warm-up is to the head of its key-group, as of the last batch."""
        return self._driver.seating.readiness if self._driver else ()

    def _running_driver(self) -> Driver:
        if self._driver is None:
            raise ConfigError("the query has not run a batch yet", remedy="ask again once it has")
        return self._driver
