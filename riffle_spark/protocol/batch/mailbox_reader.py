"""The driver's side of the mailbox: read requests, apply each once, and keep the answers for the next record."""

from collections.abc import Callable, Mapping, Sequence

from riffle_spark.errors import UNREADABLE, ConfigError, RiffleError
from riffle_spark.messages.state_change import StateChange
from riffle_spark.protocol.batch.mailbox import (
    ANSWERS_KEPT,
    COMMANDS,
    Answer,
    Mailbox,
    MailboxRequest,
    last_number,
)
from riffle_spark.protocol.batch.savepoint_requests import SavepointRequests
from riffle_spark.protocol.ownership.operations import RequestRegister
from riffle_spark.protocol.ownership.placement import Placement
from riffle_spark.protocol.ports import DriverPorts
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.paths import MAILBOX

_TEXT_MAX = 300


def _refuse_pause(is_paused: bool) -> None:  # noqa: ARG001 - the signature of a callback
    raise ConfigError("This query cannot be paused by a request.", remedy="Stop the query instead.", id="RIFFLE-1353")


def _refuse_change(request: MailboxRequest) -> StateChange:
    raise ConfigError(
        f"This query cannot apply request {request.number}, which changes state.",
        remedy="Stop the query, and run the command without --request.",
        id="RIFFLE-1608",
    )


class MailboxReader:
    """Reads the mailbox of a query and applies its requests.

    ``answers`` are the newest answers, which the next record stores, as it does with ``savepoints.current``. ``hold``
    pauses (``True``) or resumes (``False``) the query, and ``edit`` puts a change of state. Not thread-safe: the driver
    calls it from one thread at a time.
    """

    def __init__(self, ports: DriverPorts, log: Log, operations: RequestRegister, placement: Placement) -> None:
        """Create the reader of the mailbox in the objects of ``ports``. ``log`` is the driver's. Sends no request."""
        self._objects = ports.objects
        self._operations = operations
        self._placement = placement
        self._clock = ports.clock
        self._mailbox = Mailbox()
        self._tag = ""
        self._warned_of: str | None = None
        self.hold: Callable[[bool], None] = _refuse_pause
        self.edit: Callable[[MailboxRequest], StateChange] = _refuse_change
        self.answers: tuple[Answer, ...] = ()
        self.savepoints = SavepointRequests(ports.objects, log, ports.clock, ports.new_id)
        self._change: StateChange | None = None

    def take_change(self) -> StateChange | None:
        """Return the change of state that the last read has made, once. The next record must list it."""
        change = self._change
        self._change = None
        return change

    def take_over(self, answers: Sequence[Answer]) -> None:
        """Continue after the answers in the record of an earlier driver."""
        self.answers = tuple(answers)

    def poll(self, settings: Settings) -> None:
        """Read the mailbox with one GET, and apply the requests that have no answer yet, up to a change of state.

        ``settings`` are the settings in effect. Sends no request if ``control`` is off, and before the first batch has
        assigned members. An error of the store becomes a warning of the next batch: it prevents steering, and must not
        fail a batch.
        """
        if settings.control != "on" or not self._operations.members:
            return
        answered = last_number(self.answers)
        try:
            self._read()
            self._remove_user_data(answered)
        except RiffleError as error:
            self._warn(error)
            return
        pending = {request.number: request for request in self._mailbox.pending_after(answered)}
        unreadable = [number for number in self._mailbox.unreadable if number > answered]
        now_ms = self._clock.wall_ms()
        answers = []
        for number in sorted({*pending, *unreadable}):
            request = pending.get(number)
            answers.append(_unreadable(number, now_ms) if request is None else self._answer(request, settings, now_ms))
            if self._change is not None:
                break
        if answers:
            answers = _with_superseded(answers, pending)
            self.answers = (*self.answers, *answers)[-ANSWERS_KEPT:]

    def _read(self) -> None:
        """Read the mailbox if it has changed. Raises ``RiffleError``."""
        stored = self._objects.get_if_changed(MAILBOX, self._tag)
        if stored is None:
            self._mailbox = Mailbox()
            self._tag = ""
        elif stored.data is not None:
            self._tag = stored.tag
            self._mailbox = Mailbox()
            self._mailbox = Mailbox.decode(stored.data)

    def _remove_user_data(self, answered: int) -> None:
        """Remove the keys and values of answered changes of state from the object, unless it has changed."""
        cleaned_mailbox = self._mailbox.without_user_data(answered)
        if cleaned_mailbox == self._mailbox or self._mailbox.unreadable:
            return
        written_object = self._objects.replace_if_unchanged(MAILBOX, cleaned_mailbox.encode(), self._tag)
        if written_object is not None:
            self._mailbox = cleaned_mailbox
            self._tag = written_object.tag

    def _warn(self, error: RiffleError) -> None:
        """Warn once of an error, and again after another one."""
        if self._warned_of != error.id:
            self._warned_of = error.id
            # Cause: The store or its rights refuse to read the object, or it is not a mailbox. Batches continue.
            self._placement.warn(
                f"[RIFFLE-1354] Cannot read requests to the query: {error.problem}\n"
                f"  What to do: {error.remedy or 'Check the store.'} To run without requests, set control = off."
            )

    def _answer(self, request: MailboxRequest, settings: Settings, now_ms: int) -> Answer:
        """Apply a request unless it has expired; return its answer."""
        if request.expires_ms <= now_ms:
            return Answer(request.number, request.id, "expired", now_ms)
        try:
            text = self._apply(request, settings)
        except RiffleError as error:
            text = f"{error.problem} {error.remedy}".strip()[:_TEXT_MAX]
            return Answer(request.number, request.id, "refused", now_ms, error.id, text)
        except UNREADABLE:
            return _unreadable(request.number, now_ms, request.id)
        return Answer(request.number, request.id, "applied", now_ms, "", text)

    def _apply(self, request: MailboxRequest, settings: Settings) -> str:
        """Apply a request, and return the text of its answer.

        Raises an error of this package if it is refused, an error of ``UNREADABLE`` for wrong arguments.
        """
        arguments = request.arguments
        operations = self._operations
        match request.command:
            case "drain":
                operations.drain(_text(arguments, "member"))
            case "undrain":
                operations.undrain(_text(arguments, "member"))
            case "pin":
                task = self._placement.task_of(_key_group(arguments), _optional_text(arguments, "store"))
                operations.pin(task.key_group, _text(arguments, "member"), task.group)
            case "unpin":
                task = self._placement.task_of(_key_group(arguments), _optional_text(arguments, "store"))
                operations.unpin(task.key_group, task.group)
            case "rebalance":
                operations.request_rebalance()
            case "pause":
                self.hold(True)
            case "resume":
                self.hold(False)
            case "set":
                operations.reconfigure(settings, arguments)
            case "create_savepoint":
                user = f"{request.user}@{request.host}"
                return self.savepoints.create(_text(arguments, "name"), user, arguments)
            case "delete_savepoint":
                return self.savepoints.delete(_text(arguments, "name"))
            case "edit_state":
                self._change = self.edit(request)
            case _:
                # Cause: The command is of a newer version than the driver.
                raise ConfigError(
                    f"Unknown request {request.command!r}.",
                    remedy=f"Use one of {', '.join(COMMANDS)}, or a newer version of riffle-spark for the query.",
                    id="RIFFLE-1355",
                )
        return ""


def _with_superseded(answers: Sequence[Answer], requests: Mapping[int, MailboxRequest]) -> list[Answer]:
    """Return the answers of one read, with applied requests that a later applied one of them replaces marked so."""
    newest: dict[tuple[object, ...], MailboxRequest] = {}
    result = []
    for answer in reversed(answers):
        request = requests.get(answer.number)
        later = None
        if request is not None and answer.state == "applied":
            later = newest.setdefault(request.subject, request)
        if later is None or later is request:
            result.append(answer)
        else:
            text = f"Request {later.number} of {later.user} on {later.host} replaced it."
            result.append(Answer(answer.number, answer.id, "superseded", answer.time_ms, "", text))
    return result[::-1]


def _unreadable(number: int, now_ms: int, request_id: str = "") -> Answer:
    """Return the answer to a request that this version cannot read."""
    text = "The request cannot be read. Repeat it with the query's version of riffle-spark."
    return Answer(number, request_id, "refused", now_ms, "RIFFLE-1356", text)


def _text(arguments: Mapping[str, object], name: str) -> str:
    """Return a text argument. Raises an error of ``UNREADABLE`` if it is missing or of another type."""
    value = arguments[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


def _optional_text(arguments: Mapping[str, object], name: str) -> str | None:
    """Return a text argument, ``None`` if it is missing."""
    return None if arguments.get(name) is None else _text(arguments, name)


def _key_group(arguments: Mapping[str, object]) -> int | tuple[str, int]:
    """Return the key-group of a request: its number, or a (topic, partition)."""
    value = arguments["key_group"]
    if isinstance(value, list):
        topic, partition = value
        if isinstance(topic, str) and type(partition) is int:
            return topic, partition
    if type(value) is not int:
        raise TypeError("key_group")
    return value
