"""Names of objects below a root.

    log/<sequence>                                      the log: batch | claim | rollback | adopt | dispatch | orders
    delta/<version>/<epoch>-<attempt>                   the changes of one attempt of a slot
    merged/<version>-<epoch>-<attempt>                  merged changes of successive deltas, of many key-groups
    <store>/key_group=<0042>/snapshot/<snapshot id>     the whole state of a key-group
    savepoints/<version>-<epoch>-<random id>            a savepoint: the whole record that it keeps
    requests.json                                       the mailbox of requests from operators
    queries/<name>, query=<name>/...                    queries that share this root (``query_roots``)
    status.json, status.html                            the driver's status, and its page, written again every minute

Numbers are zero-padded to 20 digits (key-groups to at least 4), so that names sort as their numbers do.
"""

import re
from typing import Final, NamedTuple

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.objects.place import Place

BLOCK = ".block"
"""The suffix of local block files (``state.formats.blocks``)."""
LOG = "log/"
MAILBOX = "requests.json"
STATUS = "status.json"
STATUS_PAGE = "status.html"
REPLACED = frozenset({MAILBOX, STATUS, STATUS_PAGE})
"""Objects that no record lists, and that are replaced. All other objects are immutable."""
QUERIES = "queries/"
SAVEPOINTS = "savepoints/"
_MERGED_FOLDER = "merged"
OTHER_OBJECTS = frozenset({*REPLACED, QUERIES.rstrip("/"), SAVEPOINTS.rstrip("/"), _MERGED_FOLDER})
"""Names that a store must not have, because other objects use them. Earlier versions allowed stores with these names.
"""
QUERY = "query="
FAR = 10_000
"""Records of a log are never this far apart."""
_DIGITS = 20
_STORE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_RESERVED = frozenset({"log", "delta"})
_DELTA = re.compile(r"delta/(\d{20}|-\d{19})/((\d+)-[0-9a-f]{32})\Z")
_SAVEPOINT = re.compile(r"savepoints/(\d{20})-(\d+)-[0-9a-f]{32}\Z")
_MERGED = re.compile(rf"{_MERGED_FOLDER}/((\d{{20}})-(\d+)-[0-9a-f]{{32}})\Z")
_SNAPSHOT = re.compile(r"([^/]+)/key_group=(\d{4,})/snapshot/((\d{20})-(\d+)-[0-9a-f]{32})\Z")


FIRST_VERSION_EPOCH: Final = 1
"""The epoch of a first version, which no batch computed. The first driver's claim has the next one."""


def check_store_name(name: str) -> str:
    """Return ``name``. Raises ``ConfigError`` if it cannot be part of object and folder names."""
    if not isinstance(name, str) or not _STORE_NAME.match(name) or ".." in name or name in _RESERVED:
        raise ConfigError(
            f"{name!r} is not a valid store name.",
            remedy="Use 1 to 64 letters, digits, '.', '_' or '-', with a letter or digit first and without '..'. The "
            "names 'log' and 'delta' are reserved.",
            where="store",
            id="RIFFLE-0410",
        )
    return name


def no_log_error(root: str, foreign: str | None) -> ConfigError:
    """Return the error for a root with objects but no log, or with a ``foreign`` object among the log's records."""
    if foreign is None:
        # Cause: `root` points to data of another program, or the log was deleted.
        return ConfigError(
            f"{root} has objects, but no riffle log.",
            remedy="If this root held riffle's state, restore its log from a backup or the bucket's versions. "
            "Otherwise set root to an empty folder or prefix, or to an existing riffle root.",
            where=root,
            id="RIFFLE-0411",
        )
    # Cause: A person or a tool put the object there.
    return ConfigError(
        f"The log of {root} contains an object that is not riffle's.",
        remedy="Move it elsewhere. A root belongs to one query.",
        where=foreign if foreign.isprintable() else ascii(foreign),
        id="RIFFLE-0412",
    )


def is_of_shared_root(name: str) -> bool:
    """Return whether an object belongs to a query that has its own root below this one."""
    return name.startswith((QUERIES, QUERY))


def shared_root(root: str) -> ConfigError:
    """Return the error for a root that has no log and holds the roots of wrapped queries."""
    # Cause: riffle_spark.on was given this root, so its queries have their own roots below it.
    return ConfigError(
        f"{root} holds the state of wrapped queries, and no log of its own.",
        remedy="Use another root for a Stateful job. In a command, and in option('riffle.root', ...), name the root of "
        f"a query: {root}/{QUERY}NAME.",
        where=root,
        id="RIFFLE-1122",
    )


def far_beyond_error(sequence: int) -> CorruptStateError:
    """Return the error for an object with the name of a record whose number the log has not reached."""
    # Cause: The object was copied from another log, or restored without the records before it.
    return CorruptStateError(
        f"The log has record {sequence}, far ahead of all others.",
        remedy="Move it elsewhere and run riffle verify, or restore the log's objects from one backup.",
        where=record_name(sequence),
        id="RIFFLE-0413",
    )


def record_name(sequence: int) -> str:
    """Return the object name of the record with this number."""
    return f"{LOG}{sequence:0{_DIGITS}d}"


def parse_record_name(name: str) -> int | None:
    """Return the number in the object name of a record, or ``None`` for other names."""
    digits = name.removeprefix(LOG)
    return int(digits) if len(digits) == _DIGITS and digits.isascii() and digits.isdigit() else None


def delta_name(version: int, attempt: str) -> str:
    """Return the object name of the delta that attempt ``<epoch>-<attempt id>`` sealed in batch ``version``.

    The version is -1 if an operator changed adopted state on which no batch ran.
    """
    return f"delta/{version:0{_DIGITS}d}/{attempt}"


def merged_delta_name(merged_id: str) -> str:
    """Return the object name of a merged delta; its id is ``<version>-<epoch>-<attempt id>``, as of a snapshot."""
    return f"{_MERGED_FOLDER}/{merged_id}"


def snapshot_name(store: str, key_group: int, snapshot_id: str) -> str:
    """Return the object name of a key-group's snapshot; its id is ``<version>-<epoch>-<attempt id>``."""
    return f"{snapshot_prefix(store, key_group)}/snapshot/{snapshot_id}"


def snapshot_prefix(store: str, key_group: int) -> str:
    """Return the prefix of the object names of a key-group's snapshots."""
    return f"{store}/key_group={key_group:04d}"


def delta_place(store: str, key_group: int, version: int, attempt: str) -> Place:
    """Return the place of a key-group's part in a delta, for its encryption."""
    return Place(f"delta/{store}/{key_group}/{version}/{attempt}", f"{delta_name(version, attempt)}/{key_group}")


def merged_delta_place(store: str, key_group: int, merged_id: str) -> Place:
    """Return the place of a key-group's part in a merged delta, for its encryption."""
    text = f"merged-delta/{store}/{key_group}/{merged_id}"
    return Place(text, text)


def output_place(store: str, version: int, attempt: str) -> Place:
    """Return the place of a store's output rows in a delta, for their encryption."""
    return Place(f"output/{store}/{version}/{attempt}", f"{delta_name(version, attempt)}/output")


def snapshot_place(store: str, key_group: int, snapshot_id: str) -> Place:
    """Return the place of a snapshot, for its encryption."""
    return Place(f"snapshot/{store}/{key_group}/{snapshot_id}", snapshot_prefix(store, key_group))


def merged_place(store: str, key_group: int, unique: str) -> Place:
    """Return the place of a merged part in a local file with this unique name, for its encryption."""
    return Place(f"merged/{store}/{key_group}/{unique}", snapshot_prefix(store, key_group))


def block_place(store: str, name: str) -> Place:
    """Return the place of a block in a local file with this unique name, for its encryption.

    A delta or merged delta has the name of its local file: its version and attempt (``sealed_block_name``).
    """
    return Place(f"block/{store}/{name}", f"block/{store}/{name}")


def sealed_block_name(version: int, attempt: str) -> str:
    """Return the name of the local file with a sealed delta, or a merged delta of this member, as a block."""
    return f"{version}-{attempt}{BLOCK}"


def snapshot_id(version: int, attempt: str) -> str:
    """Return the id of the snapshot, or of the merged delta, that attempt ``<epoch>-<attempt id>`` took of ``version``.

    Adopted state on which no batch ran has version -1. Its snapshots have 0 in their names.
    """
    return f"{max(version, 0):0{_DIGITS}d}-{attempt}"


def savepoint_name(savepoint_id: str) -> str:
    """Return the object name of a savepoint; its id is ``<version>-<epoch>-<random id>``."""
    return f"{SAVEPOINTS}{savepoint_id}"


class ObjectName(NamedTuple):
    """The kind (``delta``, ``merged``, ``snapshot`` or ``savepoint``), version and epoch in an object's name."""

    kind: str
    version: int
    epoch: int


def parse_object_name(name: str) -> ObjectName | None:
    """Return the kind, version and epoch in the name of a delta, merged delta, snapshot or savepoint.

    Return ``None`` for other names.
    """
    if match := _DELTA.match(name):
        return ObjectName("delta", int(match[1]), int(match[3]))
    if match := _MERGED.match(name):
        return ObjectName(_MERGED_FOLDER, int(match[2]), int(match[3]))
    if match := _SNAPSHOT.match(name):
        return ObjectName("snapshot", int(match[4]), int(match[5]))
    if match := _SAVEPOINT.match(name):
        return ObjectName("savepoint", int(match[1]), int(match[2]))
    return None


def is_of_first_version(name: str) -> bool:
    """Return whether an object may be a snapshot of a store's first version, which the first record of a log lists."""
    object_name = parse_object_name(name)
    return object_name is not None and object_name.kind == "snapshot" and object_name.epoch == FIRST_VERSION_EPOCH
