"""The mailbox: requests of operators to a running query, in one object below its root.

Theory of operation.

1. A command adds its request to the object ``requests.json`` by compare-and-swap. So two operators never overwrite each
   other's requests, and every request gets a number that is larger than all earlier ones.
2. The driver only reads the object. It applies requests in the order of their numbers. The answers are part of the
   operator requests in its next record. So a request and its answer are committed together: a driver that crashes
   before has neither, and the next driver applies the request to the requests of the newest record.
3. The number of the newest answer is stored with every later record. A driver ignores requests up to this number, so
   each is applied once. A fenced driver cannot append a record, so it answers nothing.
4. The next command that writes the object removes old requests with an answer.

The object holds names of members, key-groups and settings, and who made the request. It holds no encryption keys. A
request to change state holds the key and the value until it is answered. Then the driver removes them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Literal

from riffle_spark.errors import UNREADABLE, ConfigError, UnavailableError
from riffle_spark.state.log.paths import MAILBOX
from riffle_spark.state.objects.store import ObjectStore

COMMANDS: Final = (
    "drain",
    "undrain",
    "pin",
    "unpin",
    "rebalance",
    "pause",
    "resume",
    "set",
    "create_savepoint",
    "delete_savepoint",
    "edit_state",
)
CHANGES_OF_STATE: Final = "edit_state"
"""The command with a key and a value of user data."""
ANSWERS_KEPT: Final = 16
"""The newest answers that each record stores."""
PENDING_MAX: Final = 16
"""The mailbox holds at most this many requests without an answer, so that one record can answer all of them."""
_SHOWN: Final = ("store", "variable", "reason")
"""The arguments of a change of state that are not user data."""
_FORMAT: Final = 1
_TRIES: Final = 20
AnswerState = Literal["applied", "refused", "expired", "superseded"]
_STATES: Final = frozenset({"applied", "refused", "expired", "superseded"})


@dataclass(frozen=True, slots=True)
class MailboxRequest:
    """A request. ``number`` is its place in the order of requests, and 0 until it is in the mailbox.

    ``id`` is random. ``arguments`` are JSON values by name. Times are milliseconds since the epoch, by the clock of the
    machine that ran the command. A request that the driver sees after ``expires_ms`` is not applied.
    """

    number: int
    id: str
    command: str
    arguments: Mapping[str, object]
    user: str
    host: str
    time_ms: int
    expires_ms: int

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> "MailboxRequest":
        """Return the request in its JSON form. Raises an error of ``UNREADABLE``."""
        fields = {name: body[name] for name in cls.__dataclass_fields__}
        numbers = ("number", "time_ms", "expires_ms")
        for name, value in fields.items():
            kind = int if name in numbers else dict if name == "arguments" else str
            if type(value) is not kind:
                raise TypeError(f"{name} = {value!r}")
        return cls(**fields)  # type: ignore[arg-type]

    @property
    def shown_arguments(self) -> Mapping[str, object]:
        """Return the arguments without keys and values of user data."""
        if self.command != CHANGES_OF_STATE:
            return self.arguments
        return {name: self.arguments[name] for name in _SHOWN if name in self.arguments}

    @property
    def subject(self) -> tuple[object, ...]:
        """Return the subject of the request. A later request with the same subject replaces its effect."""
        arguments = self.arguments
        if self.command in ("pin", "unpin"):
            return ("pin", arguments.get("store"), str(arguments.get("key_group")))
        if self.command in ("drain", "undrain"):
            return ("drain", arguments.get("member"))
        if self.command in ("pause", "resume"):
            return ("pause",)
        if self.command in ("create_savepoint", "delete_savepoint"):
            return ("savepoint", arguments.get("name"))
        if self.command == "set":
            return ("set", *sorted(arguments))
        return (self.command,)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request. ``error_id`` is empty if it was applied, and so is ``text`` except for savepoints.

    ``time_ms`` is the time of the answer by the driver's clock.
    """

    number: int
    id: str
    state: AnswerState
    time_ms: int
    error_id: str = ""
    text: str = ""

    def to_json(self) -> list[object]:
        """Return the answer as a row of a record."""
        return [self.number, self.id, self.state, self.time_ms, self.error_id, self.text]

    @classmethod
    def from_json(cls, row: object) -> "Answer":
        """Return the answer in a row of a record. Raises ``TypeError`` or ``ValueError`` if it is invalid."""
        if type(row) is not list or [type(value) for value in row] != [int, str, str, int, str, str]:
            raise TypeError(f"answer {row!r}")
        if row[2] not in _STATES:
            raise ValueError(f"answer {row!r}")
        return cls(*row)


def last_number(answers: Sequence[Answer]) -> int:
    """Return the number of the newest request with an answer, 0 if there is none."""
    return max((answer.number for answer in answers), default=0)


@dataclass(frozen=True, slots=True)
class Mailbox:
    """The content of the mailbox: the last number that a request got, and requests by ascending number."""

    last: int = 0
    requests: tuple[MailboxRequest, ...] = ()
    unreadable: tuple[int, ...] = field(default=(), compare=False)
    """Numbers of requests that this version cannot read."""

    def encode(self) -> bytes:
        """Return the bytes of the object."""
        body = {"format": _FORMAT, "last": self.last, "requests": [asdict(request) for request in self.requests]}
        return json.dumps(body, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Mailbox":
        """Return the mailbox in an object's bytes. Raises ``ConfigError`` if they are not a mailbox."""
        try:
            body = json.loads(data)
            if body["format"] != _FORMAT or type(body["last"]) is not int:
                raise ValueError(f"format {body['format']!r}")
            requests = []
            unreadable = []
            for entry in body["requests"]:
                number = int(entry["number"])
                try:
                    requests.append(MailboxRequest.from_json(entry))
                except UNREADABLE:
                    unreadable.append(number)
            requests.sort(key=lambda request: request.number)
            return cls(body["last"], tuple(requests), tuple(unreadable))
        except UNREADABLE as error:
            # Cause: Another program or a newer version of riffle-spark wrote the object.
            raise ConfigError(
                f"The requests to the query cannot be read: {type(error).__name__}.",
                remedy="Use the newest version of riffle-spark, or delete the object. Then repeat open requests.",
                where=MAILBOX,
                id="RIFFLE-1350",
            ) from None

    def without_user_data(self, answered: int) -> "Mailbox":
        """Return the mailbox without the keys and values of requests up to number ``answered``."""
        requests = tuple(
            replace(request, arguments=request.shown_arguments) if request.number <= answered else request
            for request in self.requests
        )
        return replace(self, requests=requests)

    def pending_after(self, number: int) -> tuple[MailboxRequest, ...]:
        """Return the requests with larger numbers."""
        return tuple(request for request in self.requests if request.number > number)

    def add(self, request: MailboxRequest, answered: int) -> "Mailbox":
        """Return the mailbox with a new request, which gets the next number.

        ``answered`` is the number of the newest request with an answer. Of the requests with an answer only the newest
        ``ANSWERS_KEPT`` stay. At most ``PENDING_MAX`` have none, so the oldest expired ones are dropped. Raises
        ``ConfigError`` if too many requests have no answer.
        """
        pending = self.pending_after(answered)
        live = [each for each in pending if each.expires_ms > request.time_ms]
        if len(live) >= PENDING_MAX:
            # Cause: The driver does not run, does not read requests (control = off), or runs a long batch.
            raise ConfigError(
                f"{len(live)} requests have no answer yet.",
                remedy="Wait until the query answers them (riffle requests ROOT), or until they expire.",
                where=MAILBOX,
                id="RIFFLE-1351",
            )
        number = max(self.last, answered) + 1
        answered_requests = [each for each in self.requests if each.number <= answered][-ANSWERS_KEPT:]
        expired = [each for each in pending if each.expires_ms <= request.time_ms]
        expired = expired[max(0, len(expired) + len(live) - PENDING_MAX + 1) :]
        kept_requests = sorted([*answered_requests, *expired, *live], key=lambda each: each.number)
        return Mailbox(number, (*kept_requests, replace(request, number=number)))


def read_mailbox(objects: ObjectStore) -> tuple[Mailbox, str | None]:
    """Return the mailbox and its tag, an empty mailbox without a tag if the object does not exist.

    Raises ``ConfigError`` if it cannot be read.
    """
    stored = objects.get_if_changed(MAILBOX)
    if stored is None or stored.data is None:
        return Mailbox(), None
    return Mailbox.decode(stored.data), stored.tag


def add_request(objects: ObjectStore, request: MailboxRequest, answered: Callable[[], int]) -> MailboxRequest:
    """Add a request to the mailbox by compare-and-swap, and return it with its number.

    ``answered`` returns the number of the newest request that a record answers. Repeats while other writers win.
    Raises ``UnavailableError`` after too many attempts, and ``ConfigError`` if the mailbox is full or unreadable.
    """
    unclear: UnavailableError | None = None
    for _ in range(_TRIES):
        mailbox, tag = read_mailbox(objects)
        own = next((each for each in mailbox.requests if each.id == request.id), None)
        if own is not None:  # an earlier attempt succeeded, although its answer was lost
            return own
        changed_mailbox = mailbox.add(request, answered())
        try:
            if tag is None:
                is_written = objects.put_if_absent(MAILBOX, changed_mailbox.encode())
            else:
                is_written = objects.replace_if_unchanged(MAILBOX, changed_mailbox.encode(), tag) is not None
        except UnavailableError as error:
            unclear = error
            continue
        if is_written:
            return changed_mailbox.requests[-1]
    # Cause: Many commands write at once, or the store does not answer.
    raise unclear or UnavailableError(
        f"The request could not be added in {_TRIES} attempts, because other commands changed the requests.",
        remedy="Run the command again.",
        where=MAILBOX,
        id="RIFFLE-1352",
    )
