"""Changes of state that operators request from a running query, each committed by a record of its own.

Theory of operation. The driver puts a change as a delta between two batches. The record that lists the delta also
contains the answer to the request, so both are committed together. If the driver crashes before the record, the next
driver applies the request again, and deletes the unlisted delta. While it is unknown whether the record was written,
the driver reads no request.
"""

from collections.abc import Callable
from dataclasses import replace

from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.state_change import EditState, StateChange
from riffle_spark.protocol.batch.idle_loop import IdleLoop
from riffle_spark.protocol.batch.mailbox import MailboxRequest
from riffle_spark.protocol.batch.mailbox_reader import MailboxReader
from riffle_spark.protocol.ports import DriverPorts
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log


class StateChanges:
    """Applies the requests in a mailbox that change state. ``home`` returns the home as of the newest record."""

    def __init__(
        self, ports: DriverPorts, log: Log, mailbox: MailboxReader, idle_loop: IdleLoop, home: Callable[[], Home]
    ) -> None:
        """Let ``mailbox`` prepare changes of state, if the ports support them. Sends no request."""
        self._ports = ports
        self._log = log
        self._mailbox = mailbox
        self._idle_loop = idle_loop
        self._home = home
        if ports.edit_state is not None:
            edit_state = ports.edit_state
            mailbox.edit = lambda request: self._edit(edit_state, request)

    def poll(self, settings: Callable[[], Settings], apply: Callable[[], None]) -> None:
        """Read and apply the requests, and append a record per change of state.

        ``settings`` returns the settings in effect. ``apply`` passes applied requests to the driver's components.
        Raises ``FencedError`` if another driver has appended, ``UnavailableError`` if the outcome of a record is
        unknown.
        """
        while not (self._log.is_unclear or self._idle_loop.is_delayed()):
            answers = self._mailbox.answers
            self._mailbox.poll(settings())
            apply()
            change = self._mailbox.take_change()
            if change is None:
                return
            try:
                self._idle_loop.append_change(change)
            except BaseException:
                if not self._log.is_unclear:  # the record was not written, so the request has no answer
                    self._mailbox.take_over(answers)
                raise

    def _edit(self, edit_state: EditState, request: MailboxRequest) -> StateChange:
        """Put the delta of a requested change. Return the change, with the user, host and reason of the request."""
        tail = self._log.tail
        assert tail is not None, "requests are read after the claim"
        attempt = f"{tail.epoch}-{self._ports.new_id()}"
        change = edit_state(self._ports.objects, self._home(), tail, self._log.manifest, attempt, request.arguments)
        reason = str(request.arguments.get("reason", ""))
        return replace(change, edit={**change.edit, "user": request.user, "host": request.host, "reason": reason})
